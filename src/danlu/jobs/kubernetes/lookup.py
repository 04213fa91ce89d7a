"""Find jobs in a namespace of a cluster, whatever their kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.objects import JobObject, job_resource
from danlu.kube.client import Client
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.watch import ListOptions
from danlu.training.framework import Framework
from danlu.training.names import KUBEFLOW_GROUP
from danlu.training.registry import list_frameworks
from danlu.util.tasks import run_concurrently

_MAX_LISTED = 10

T = TypeVar("T")


class ClusterJob(msgspec.Struct, frozen=True):
    """A job and the framework of its kind."""

    job: JobObject
    framework: Framework

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.metadata.name

    @property
    def uid(self) -> str:
        """UID of the job."""
        return self.job.metadata.uid

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether it was submitted with these labels."""
        return labels.items() <= self.job.submitted_labels.items()


async def find_job(
    client: Client, namespace: str, name: str, labels: Mapping[str, str]
) -> ClusterJob:
    """Return the job of that name with these labels, whatever its kind.

    Raises :class:`UsageError`, naming existing jobs, if there is none.
    """
    for found in await list_by_name(client, namespace, name):
        if found.has_labels(labels):
            return found
    raise await job_not_found_error(client, namespace, name, labels)


async def list_by_name(client: Client, namespace: str, name: str) -> list[ClusterJob]:
    """Return the jobs of that name, at most one of each kind that the user may read."""
    frameworks = list_frameworks()
    results = await run_concurrently(
        partial(_get_job, client, framework, namespace, name) for framework in frameworks
    )
    return [
        ClusterJob(job, framework)
        for framework, job in zip(frameworks, _drop_forbidden(results), strict=True)
        if job is not None
    ]


async def _get_job(
    client: Client, framework: Framework, namespace: str, name: str
) -> JobObject | Forbidden | None:
    try:
        return await client.get(job_resource(framework), name, namespace=namespace)
    except NotFound:
        return None  # the job, or the kind
    except Forbidden as error:
        return error


def _drop_forbidden(results: Sequence[T | Forbidden | None]) -> list[T | None]:
    """Replace errors with None; raise the first one if there are only errors."""
    errors = [result for result in results if isinstance(result, Forbidden)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return [None if isinstance(result, Forbidden) else result for result in results]


async def list_jobs(client: Client, namespace: str, labels: Mapping[str, str]) -> list[ClusterJob]:
    """Return all jobs of a namespace that have these labels, newest first.

    Raises :class:`OutsideError` if the cluster has no CRD for any kind of job.
    """
    frameworks = list_frameworks()
    results = await run_concurrently(
        partial(_list_kind, client, framework, namespace) for framework in frameworks
    )
    lists = _drop_forbidden(results)
    if all(result is None for result in results):
        raise missing_crds_error(client)
    found = [
        ClusterJob(job, framework)
        for framework, jobs in zip(frameworks, lists, strict=True)
        for job in jobs or ()
    ]
    return sorted(
        (job for job in found if job.has_labels(labels)),
        key=lambda found: (str(found.job.metadata.creation_timestamp), found.name),
        reverse=True,
    )


async def _list_kind(
    client: Client, framework: Framework, namespace: str
) -> Sequence[JobObject] | Forbidden | None:
    try:
        jobs = await client.list(job_resource(framework), ListOptions(namespace))
    except NotFound:
        return None
    except Forbidden as error:
        return error
    return jobs.items


async def job_not_found_error(
    client: Client, namespace: str, name: str, labels: Mapping[str, str]
) -> UsageError:
    """Return the error for a job that does not exist, or that lacks these labels."""
    names = [found.name for found in await list_jobs(client, namespace, labels)]
    hint = f"there are no jobs in namespace {namespace}"
    if names:
        more = ", …" if len(names) > _MAX_LISTED else ""
        hint = f"existing jobs: {', '.join(names[:_MAX_LISTED])}{more}"
    return UsageError(f"job {name!r} not found", hint=hint)


def missing_crds_error(client: Client) -> OutsideError:
    """Return the error for a cluster without CRDs of training jobs."""
    return OutsideError(
        f"the cluster at {client.config.server} has no CRDs of {KUBEFLOW_GROUP}",
        hint="install the operator and its CRDs with"
        " `danlu operator manifests --image REF | kubectl apply --server-side -f -`",
    )
