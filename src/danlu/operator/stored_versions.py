"""Refuse a cluster whose jobs of a kind are in a version that this operator does not serve.

Without a conversion webhook a server returns an object of any version as one of the version that is
asked for, without the fields that this version does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from danlu.errors import OutsideError
from danlu.kube.client import Client
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.operator.types import job_resource
from danlu.training.framework import Framework

_log = logging.getLogger(__name__)


async def check_stored_versions(client: Client, frameworks: Iterable[Framework]) -> None:
    """Check that the CRDs of kinds with several versions have the one of ``frameworks`` only.

    A CRD that does not exist, or that the operator may not read, is not checked. Raises
    :class:`OutsideError`.
    """
    for framework in frameworks:
        if not framework.single_version:
            continue
        name = definition_name(framework)
        try:
            found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        except NotFound:
            continue
        except Forbidden as error:
            _log.warning("cannot check the stored versions of %s: %s", name, error.message)
            continue
        version = job_resource(framework).version
        served = [each["name"] for each in found["spec"]["versions"] if each.get("served")]
        stored = (found.get("status") or {}).get("storedVersions") or []
        if others := sorted({*served, *stored} - {version}):
            raise OutsideError(
                f"the cluster has {framework.kind}s of {', '.join(others)}, not {version} alone:"
                f" CRD {name}",
                hint=f"serve them with --{framework.kind.lower()}-version={others[0]}, leave the"
                " kind out with --enable-scheme, or delete the CRD with its jobs",
            )


def definition_name(framework: Framework) -> str:
    """Return the name of a kind's CRD."""
    return f"{framework.plural}.{job_resource(framework).group}"
