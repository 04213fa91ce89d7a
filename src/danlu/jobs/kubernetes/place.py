"""Where on a cluster jobs are looked for and put: a namespace behind an API server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.objects import JobObject, job_resource
from danlu.jobs.kubernetes.together import together
from danlu.kube.client import Client, Selection
from danlu.kube.failures import Forbidden, NotFound
from danlu.training.cluster import GROUP
from danlu.training.framework import Framework
from danlu.training.registry import frameworks

__all__ = ["Found", "all_jobs", "find", "look", "no_kinds", "unknown"]


T = TypeVar("T")


class Found(msgspec.Struct, frozen=True):
    """A job and the framework of its kind."""

    job: JobObject
    framework: Framework


async def find(client: Client, namespace: str, name: str) -> Found:
    """The job of that name, whatever its kind.

    Raises :class:`UsageError` where there is none, naming those that are.
    """
    found = await look(client, namespace, name)
    if found:
        return found[0]
    raise await unknown(client, namespace, name)


async def look(client: Client, namespace: str, name: str) -> list[Found]:
    """The jobs of that name, of each kind one at most; of those that may be read."""
    kinds = frameworks()
    looks = (_get(client, one, namespace, name) for one in kinds)
    got = _allowed(await together(looks))
    return [Found(job, one) for one, job in zip(kinds, got, strict=True) if job is not None]


async def _get(
    client: Client, framework: Framework, namespace: str, name: str
) -> JobObject | Forbidden | None:
    try:
        return await client.get(job_resource(framework), name, namespace=namespace)
    except NotFound:
        return None  # the job, or the kind
    except Forbidden as error:
        return error


def _allowed(answers: Sequence[T | Forbidden | None]) -> list[T | None]:
    """The answers, None for what may not be read; raises where nothing may be."""
    refusals = [one for one in answers if isinstance(one, Forbidden)]
    if refusals and len(refusals) == len(answers):
        raise refusals[0]
    return [None if isinstance(one, Forbidden) else one for one in answers]


async def all_jobs(client: Client, namespace: str) -> list[Found]:
    """All jobs of a namespace, the newest first.

    Raises :class:`OutsideError` where the cluster knows no kind of job.
    """
    kinds = frameworks()
    answers = await together(_list(client, one, namespace) for one in kinds)
    lists = _allowed(answers)
    if all(one is None for one in answers):
        raise no_kinds(client)
    found = [
        Found(job, kind) for kind, jobs in zip(kinds, lists, strict=True) for job in jobs or ()
    ]
    return sorted(
        found,
        key=lambda one: (str(one.job.metadata.creation_timestamp), one.job.metadata.name),
        reverse=True,
    )


async def _list(
    client: Client, framework: Framework, namespace: str
) -> Sequence[JobObject] | Forbidden | None:
    try:
        listing = await client.list(job_resource(framework), Selection(namespace))
    except NotFound:
        return None
    except Forbidden as error:
        return error
    return listing.items


async def unknown(client: Client, namespace: str, name: str) -> UsageError:
    """The error of a job that is not there."""
    known = [one.job.metadata.name for one in await all_jobs(client, namespace)]
    listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
    there = f"there are {listed}" if known else f"there are no jobs in the namespace {namespace}"
    return UsageError(f"there is no job {name}", hint=there)


def no_kinds(client: Client) -> OutsideError:
    """The error of a cluster that knows no kind of training job."""
    return OutsideError(
        f"the cluster at {client.access.server} knows no {GROUP} jobs",
        hint="`danlu operator manifests --image REF | kubectl apply --server-side -f -` installs"
        " the operator and its kinds",
    )
