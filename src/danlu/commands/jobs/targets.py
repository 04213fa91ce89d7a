"""Where jobs run (``--on``): on this machine, or in a namespace of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.commands.jobs.views import local_backend
from danlu.commands.remote.contexts import ClusterAddress, find_current_context
from danlu.commands.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.types import JobBackend
from danlu.training.names import MAX_RESULT_BYTES, MAX_TERMINATION_MESSAGE_BYTES
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.paths import Paths

#: Engines that run environments, but no jobs.
_ENVIRONMENT_ENGINES = ("docker", "podman")


def is_remote(on: str) -> bool:
    """Return whether jobs of ``on`` run on a cluster.

    Raises :class:`UsageError` as :func:`find_target` does.
    """
    return find_target(on)[1] is not None


def find_target(on: str, settings: Settings | None = None) -> tuple[str, ClusterAddress | None]:
    """Return the name of the context ``on``, and the cluster that runs its jobs, if one does.

    ``on`` may also be a cluster's address, ``kubernetes[:CONTEXT[/NAMESPACE]]``; empty is the
    current context. With ``settings``, missing parts come from the configuration. Raises
    :class:`UsageError` if the context does not exist or does not run jobs of this process.
    """
    paths = Paths.of() if settings is None else settings.paths
    name, context = find_current_context(paths, chosen=on)
    if context.is_remote and not on:
        return LOCAL_CONTEXT, None  # this process runs here, and so do its jobs
    if context.is_remote:
        raise UsageError(
            f"context {name} is another machine, where only danlu's commands can start jobs",
            hint=f"use `danlu train --on {name}`",
        )
    if on and context.engine in _ENVIRONMENT_ENGINES:
        raise UsageError(
            f"training jobs do not run in {context.engine}", hint="use `--on local`, or a cluster"
        )
    cluster = context.cluster
    if cluster is None or settings is None:
        return name, cluster
    own = settings.config.kubernetes
    return name, ClusterAddress(cluster.context or own.context, cluster.namespace or own.namespace)


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
    """Return the job backend of a context, by default of the current one.

    Raises :class:`UsageError` as :func:`find_target` does.
    """
    name, cluster = find_target(on, settings)
    if cluster is None:
        return local_backend(settings)
    # Loaded only for clusters: the HTTP client takes longer to import than a local command runs.
    from danlu.jobs.kubernetes.client import KubernetesJobs
    from danlu.kube.kubeconfig import load_cluster_config

    return KubernetesJobs(
        load_cluster_config(context=cluster.context),
        namespace=cluster.namespace,
        where=name,
        pull_secret=settings.config.kubernetes.image_pull_secret,
        checkpoint_claim=settings.config.kubernetes.checkpoint_claim,
        renewing=load_cluster_config(context=cluster.context),
        trusted=settings.config.kubernetes.trust_results,
    )


def reject_local_flags(on: str, words: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if ``on`` is a cluster and one of these flags is set."""
    given = [flag for flag, value in words.items() if value]
    name, cluster = find_target(on)
    if given and cluster is not None:
        raise UsageError(
            f"{' and '.join(given)} cannot be used with --on {name}",
            hint="on a cluster use --image REF, or --env, which builds and pushes an image",
        )
