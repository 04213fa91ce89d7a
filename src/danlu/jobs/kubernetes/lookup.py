"""Find jobs in a namespace of a cluster, whatever their kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.objects import job_resource
from danlu.jobs.kubernetes.runtimes import add_runtime, missing_crds_error
from danlu.kube.client import Client
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.watch import ListOptions
from danlu.training.framework import Framework
from danlu.training.registry import find_kind, list_kinds
from danlu.util.tasks import run_concurrently

_MAX_LISTED = 10

T = TypeVar("T")


async def find_job(
    client: Client, namespace: str, name: str, labels: Mapping[str, str]
) -> ClusterJob:
    """Return the job of that name with these labels; ``KIND/NAME`` names its kind, too.

    Raises :class:`UsageError`, naming existing jobs, unless there is exactly one.
    """
    kind, _, plain_name = name.rpartition("/")
    kinds = [find_kind(kind)] if kind else list_kinds()
    jobs = [
        msgspec.structs.replace(found, is_ambiguous=bool(kind))
        for found in await list_by_name(client, namespace, plain_name, kinds)
        if found.has_labels(labels)
    ]
    if not jobs:
        raise await job_not_found_error(client, namespace, name, labels)
    if len(jobs) > 1:
        names = [msgspec.structs.replace(found, is_ambiguous=True).unique_name for found in jobs]
        listed = " and ".join(found.framework.kind for found in jobs)
        hint = f"add its kind: {' or '.join(names)}"
        raise UsageError(f"there are several jobs called {name}: {listed}", hint=hint)
    return await add_runtime(client, jobs[0])


async def list_by_name(
    client: Client, namespace: str, name: str, kinds: Sequence[Framework] = ()
) -> list[ClusterJob]:
    """Return the jobs of that name, at most one of each kind that the user may read."""
    frameworks = kinds or list_kinds()
    results = await run_concurrently(
        partial(_get_job, client, framework, namespace, name) for framework in frameworks
    )
    return [job for job in _drop_forbidden(results) if job is not None]


async def _get_job(
    client: Client, framework: Framework, namespace: str, name: str
) -> ClusterJob | Forbidden | None:
    # A cluster has one version of a kind.
    for version in (framework, *framework.other_versions):
        try:
            job = await client.get(job_resource(version), name, namespace=namespace)
        except NotFound:
            continue  # the job, or the version
        except Forbidden as error:
            return error
        return ClusterJob(job, version)
    return None


def _drop_forbidden(results: Sequence[T | Forbidden | None]) -> list[T | None]:
    """Replace errors with None; raise the first one if there are only errors."""
    errors = [result for result in results if isinstance(result, Forbidden)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return [None if isinstance(result, Forbidden) else result for result in results]


async def list_jobs(
    client: Client,
    namespace: str,
    labels: Mapping[str, str],
    *,
    warn: Callable[[str], object] = lambda text: None,
) -> list[ClusterJob]:
    """Return all jobs of a namespace that have these labels, newest first.

    ``warn`` is called with a sentence about the kinds that the user may not list. Raises
    :class:`OutsideError` if the cluster has no CRD for any kind of job.
    """
    frameworks = list_kinds()
    results = await run_concurrently(
        partial(_list_kind, client, framework, namespace) for framework in frameworks
    )
    lists = _drop_forbidden(results)
    if all(result is None for result in results):
        raise missing_crds_error(client)
    hidden = [
        job_resource(framework)
        for framework, result in zip(frameworks, results, strict=True)
        if isinstance(result, Forbidden)
    ]
    # A server forbids kinds that it does not have, too.
    served = {
        group: await _serves_group(client, group) for group in {kind.group for kind in hidden}
    }
    if names := ", ".join(kind.display_name for kind in hidden if served[kind.group]):
        warn(f"jobs are missing: no permission to list {names} in namespace {namespace}")
    found = [job for jobs in lists for job in jobs or ()]
    counts = Counter(job.name for job in found)
    return sorted(
        (
            msgspec.structs.replace(job, is_ambiguous=counts[job.name] > 1)
            for job in found
            if job.has_labels(labels)
        ),
        key=lambda found: (str(found.job.metadata.creation_timestamp), found.name),
        reverse=True,
    )


async def _list_kind(
    client: Client, framework: Framework, namespace: str
) -> Sequence[ClusterJob] | Forbidden | None:
    for version in (framework, *framework.other_versions):
        try:
            jobs = await client.list(job_resource(version), ListOptions(namespace))
        except NotFound:
            continue
        except Forbidden as error:
            return error
        return [ClusterJob(job, version) for job in jobs.items]
    return None


async def _serves_group(client: Client, group: str) -> bool:
    try:
        return await client.serves_group(group)
    except OutsideError:
        return False


async def job_not_found_error(
    client: Client, namespace: str, name: str, labels: Mapping[str, str]
) -> UsageError:
    """Return the error for a job that does not exist, or that lacks these labels."""
    names = [found.unique_name for found in await list_jobs(client, namespace, labels)]
    hint = f"there are no jobs in namespace {namespace}"
    if names:
        more = ", …" if len(names) > _MAX_LISTED else ""
        hint = f"existing jobs: {', '.join(names[:_MAX_LISTED])}{more}"
    return UsageError(f"job {name!r} not found", hint=hint)
