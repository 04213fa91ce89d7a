"""The targets of jobs: this machine, or a namespace of a cluster (``--on``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.commands.jobs.views import local_backend
from danlu.commands.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.types import JobBackend
from danlu.training.names import MAX_RESULT_BYTES, MAX_TERMINATION_MESSAGE_BYTES

_LOCAL = ("", "local")
_KUBERNETES = "kubernetes"
_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ClusterTarget(msgspec.Struct, frozen=True):
    """A namespace of a cluster, by kubeconfig context; empty means the kubeconfig's default."""

    context: str = ""
    namespace: str = ""

    @property
    def where(self) -> str:
        """The value of ``--on`` for this target."""
        context = f":{self.context}" if self.context or self.namespace else ""
        return f"{_KUBERNETES}{context}" + (f"/{self.namespace}" if self.namespace else "")


def is_remote(on: str) -> bool:
    """Return whether ``on`` is not this machine; :class:`UsageError` if it is unknown."""
    return parse_target(on) is not None


def parse_target(on: str, settings: Settings | None = None) -> ClusterTarget | None:
    """Parse ``kubernetes[:CONTEXT[/NAMESPACE]]``; None for this machine.

    Missing parts come from the configuration. Raises :class:`UsageError` for an unknown target.
    """
    if on in _LOCAL:
        return None
    name, _, rest = on.partition(":")
    if name != _KUBERNETES:
        raise UsageError(
            f"unknown --on target '{on}'",
            hint="use `kubernetes[:CONTEXT[/NAMESPACE]]` or `local`",
        )
    # An EKS context is an ARN, which contains slashes and colons; a namespace has neither.
    context, _, namespace = rest.rpartition("/") if _has_namespace(rest) else (rest, "", "")
    if settings is not None:
        own = settings.config.kubernetes
        context = context or own.context
        namespace = namespace or own.namespace
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"invalid namespace {namespace!r}",
            hint="use lower-case letters, digits and '-', at most 63 characters",
        )
    return ClusterTarget(context, namespace)


def _has_namespace(rest: str) -> bool:
    return "/" in rest and not rest.startswith("arn:")


def result_limit_note(on: str) -> str:
    """Describe the size limit of return values; empty for this machine."""
    if not is_remote(on):
        return ""
    return (
        f"return values are limited to {MAX_RESULT_BYTES >> 10} KiB in total with danlu's "
        f"operator, and to {MAX_TERMINATION_MESSAGE_BYTES} bytes per replica without it: "
        "write larger ones to a volume"
    )


def select_backend(on: str, settings: Settings) -> JobBackend:
    """Return the job backend of a target; empty and ``local`` mean this machine.

    Raises :class:`UsageError` for an unknown target or context.
    """
    cluster = parse_target(on, settings)
    if cluster is None:
        return local_backend(settings)
    # Loaded only for clusters: the HTTP client takes longer to import than a local command runs.
    from danlu.jobs.kubernetes.client import KubernetesJobs
    from danlu.kube.kubeconfig import load_cluster_config

    return KubernetesJobs(
        load_cluster_config(context=cluster.context),
        namespace=cluster.namespace,
        where=on,
        pull_secret=settings.config.kubernetes.image_pull_secret,
        renewing=load_cluster_config(context=cluster.context),
        trusted=settings.config.kubernetes.trust_results,
    )


def reject_local_flags(on: str, words: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if ``on`` is a cluster and one of these flags is set."""
    given = [flag for flag, value in words.items() if value]
    if given and is_remote(on):
        raise UsageError(
            f"{' and '.join(given)} cannot be used with --on {on}",
            hint="on a cluster use --image REF, or --env, which builds and pushes an image",
        )
