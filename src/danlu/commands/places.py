"""Where jobs run: this machine, or a namespace of a cluster, as ``--on`` names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.jobs.types import Jobs

__all__ = ["Cluster", "cluster_of", "is_away", "jobs_on"]

_LOCAL = ("", "local")
_KUBERNETES = "kubernetes"
_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Cluster(msgspec.Struct, frozen=True):
    """A namespace of a cluster, by a context of the kubeconfig; empty: what that itself says."""

    context: str = ""
    namespace: str = ""

    @property
    def where(self) -> str:
        """The place as ``--on`` takes it."""
        context = f":{self.context}" if self.context or self.namespace else ""
        return f"{_KUBERNETES}{context}" + (f"/{self.namespace}" if self.namespace else "")


def is_away(on: str) -> bool:
    """Whether ``on`` is another place than this machine; raises :class:`UsageError` for none."""
    return cluster_of(on) is not None


def cluster_of(on: str, settings: Settings | None = None) -> Cluster | None:
    """The cluster that ``on`` names, ``kubernetes[:CONTEXT[/NAMESPACE]]``; None for this machine.

    What it does not say is taken from the configuration. Raises :class:`UsageError` for a place
    that is not known.
    """
    if on in _LOCAL:
        return None
    name, _, rest = on.partition(":")
    if name != _KUBERNETES:
        raise UsageError(
            f"there is no place {on}",
            hint="`--on kubernetes[:CONTEXT]` is a cluster; without --on it runs here",
        )
    # A context of EKS is an ARN with slashes and colons in it; a namespace has neither.
    context, _, namespace = rest.rpartition("/") if _is_split(rest) else (rest, "", "")
    if settings is not None:
        own = settings.config.kubernetes
        context = context or own.context
        namespace = namespace or own.namespace
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"{namespace} cannot be a namespace", hint="small letters, digits and '-', at most 63"
        )
    return Cluster(context, namespace)


def _is_split(rest: str) -> bool:
    return "/" in rest and not rest.startswith("arn:")


def jobs_on(on: str, settings: Settings) -> Jobs:
    """The jobs of the place ``on``; empty and ``local`` are this machine.

    Raises :class:`UsageError` for a place or a context that there is not.
    """
    cluster = cluster_of(on, settings)
    if cluster is None:
        from danlu.commands.jobs import here

        return here(settings)
    from danlu.jobs.kubernetes.client import KubernetesJobs
    from danlu.kube.kubeconfig import load_access

    return KubernetesJobs(
        load_access(context=cluster.context),
        namespace=cluster.namespace,
        where=on,
        pull_secret=settings.config.kubernetes.image_pull_secret,
        renewing=load_access(context=cluster.context),
    )


def sending(on: str, words: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` for what of ``words`` (by flag) cannot be had at ``on``."""
    given = [flag for flag, value in words.items() if value]
    if given and is_away(on):
        raise UsageError(
            f"{' and '.join(given)} can only be had on this machine, and not on {on}",
            hint="nodes of a cluster have an image: --image REF, or --env builds and pushes one",
        )
