"""Jobs that are tied to whoever submitted them: a Lease that must be renewed, or the job stops.

What counts is when this operator saw the Lease change, by its own clock: clocks of other machines
are never compared with it, and an operator that was away begins to count anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from danlu.kube.client import Client, Selection
from danlu.kube.controller import Controller, Done, Later, Outcome
from danlu.kube.failures import Conflict, Invalid, NotFound
from danlu.kube.informer import Informer
from danlu.kube.leader import Lease
from danlu.kube.manager import Manager
from danlu.kube.patches import merge_patch
from danlu.kube.resources import LEASES, Resource
from danlu.kube.types import Clock, Key, Object
from danlu.operator.types import JobObject
from danlu.training.cluster import STOPPED, TIED, lease_name
from danlu.training.types import JobStatus

__all__ = ["SUBMITTER_GONE", "Ties", "add_ties"]

SUBMITTER_GONE = "submitter gone"
_log = logging.getLogger(__name__)
_LEASES = LEASES.decoded(Lease)
_SECONDS = 15.0
_SUFFIX = lease_name("")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A Lease as it was when we saw it change, or that there was none."""

    job: str
    version: str
    at: float


class Ties:
    """Stops jobs whose Lease is not renewed; reconciles by the job's key."""

    def __init__(
        self,
        client: Client,
        leases: Informer[Lease],
        jobs: Mapping[Resource[JobObject], Informer[JobObject]],
        *,
        clock: Clock,
    ) -> None:
        self._client = client
        self._leases = leases
        self._jobs = jobs
        self._clock = clock
        self._seen: dict[Key, _Seen] = {}

    async def __call__(self, key: Key) -> Outcome:
        """See whether the job's Lease is alive; when to look again is exact."""
        found = self._tied(key)
        if found is None:
            self._seen.pop(key, None)
            return Done()
        resource, job = found
        lease = self._leases.store.get(Key(key.namespace, lease_name(key.name)))
        left = self._left(key, job, lease)
        if left > 0:
            return Later(left)
        await self._stop(resource, job)
        self._seen.pop(key, None)
        return Done()

    def __len__(self) -> int:
        """How many jobs are watched."""
        return len(self._seen)

    def _tied(self, key: Key) -> tuple[Resource[JobObject], JobObject] | None:
        """The job of that name that is tied and goes on."""
        for resource, informer in self._jobs.items():
            job = informer.store.get(key)
            if job is not None and is_tied(job) and not _over(job):
                return resource, job
        return None

    def _left(self, key: Key, job: JobObject, lease: Lease | None) -> float:
        """Seconds until the job must stop."""
        now = self._clock.monotonic()
        version = lease.metadata.resource_version if lease is not None else ""
        seen = self._seen.get(key)
        if seen is None or (seen.job, seen.version) != (job.metadata.uid, version):
            # A Lease that is gone is no sign of life: time goes on from the last one.
            alive = seen is None or seen.job != job.metadata.uid or lease is not None
            at = now if alive or seen is None else seen.at
            seen = self._seen[key] = _Seen(job.metadata.uid, version, at)
        duration = float(lease.spec.lease_duration_seconds) if lease is not None else 0.0
        return seen.at + (duration or _SECONDS) - now

    async def _stop(self, resource: Resource[JobObject], job: JobObject) -> None:
        metadata = job.metadata
        _log.info("%s: stopped, for whoever submitted it is gone", job.key)
        # The uid is a precondition: a later job of that name is not meant.
        change = {
            "metadata": {"uid": metadata.uid, "annotations": {STOPPED: SUBMITTER_GONE}},
            "spec": {"runPolicy": {"suspend": True}},
        }
        try:
            await self._client.patch(
                resource, metadata.name, merge_patch(change), namespace=metadata.namespace
            )
        except (NotFound, Conflict, Invalid) as error:
            _log.info("%s: not stopped: %s", job.key, error)


def add_ties(
    manager: Manager,
    jobs: Mapping[Resource[JobObject], Informer[JobObject]],
    *,
    namespace: str,
    clock: Clock,
) -> Ties:
    """Let ``manager`` stop the tied ones of ``jobs`` whose submitter is gone."""
    leases = manager.informer(_LEASES, Selection(namespace, labels=f"{TIED}=true"))
    ties = Ties(manager.client, leases, jobs, clock=clock)
    controller: Controller[Object] = Controller("ties", ties, clock=clock)
    for informer in jobs.values():
        controller.watch(informer, lambda job: (job.key,), when=_matters)
    controller.watch(leases, _job_of)
    manager.add(controller)
    return ties


def is_tied(job: JobObject) -> bool:
    """Whether a Lease of the job's name must be renewed for it."""
    return job.metadata.annotations.get(TIED) == lease_name(job.metadata.name)


def _matters(old: JobObject | None, new: JobObject | None) -> bool:
    return any(one is not None and is_tied(one) for one in (old, new))


def _job_of(lease: Object) -> Iterable[Key]:
    name = lease.metadata.name
    return (Key(lease.metadata.namespace, name.removesuffix(_SUFFIX)),)


def _over(job: JobObject) -> bool:
    """Whether it is finished, deleted or stopped already."""
    if job.metadata.deletion_timestamp is not None or STOPPED in job.metadata.annotations:
        return True
    try:
        return msgspec.json.decode(job.status, type=JobStatus).finished
    except msgspec.MsgspecError:
        # What is no job is told of by who reconciles it.
        return True
