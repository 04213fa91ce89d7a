"""Stop jobs whose submitter is gone: it must renew a Lease as long as the job should run.

Only when this operator saw the Lease change counts, by its own clock: timestamps of other machines
are never compared with it, and an operator that was down starts counting again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from danlu.kube.client import Client
from danlu.kube.clock import Clock
from danlu.kube.controller import Controller, ReconcileResult, RequeueAfter, Success, map_to_self
from danlu.kube.errors import Conflict, Invalid, NotFound
from danlu.kube.informer import Informer
from danlu.kube.leader import Lease
from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.kube.resources import LEASES, Resource
from danlu.kube.types import Key, Object
from danlu.kube.watch import ListOptions
from danlu.operator.types import JobObject
from danlu.training.names import (
    STOPPED_ANNOTATION,
    SUBMITTER_LEASE_ANNOTATION,
    submitter_lease_name,
)
from danlu.training.types import JobStatus
from danlu.util.decoding import decode_json

SUBMITTER_GONE = "submitter gone"
_log = logging.getLogger(__name__)
_LEASES = LEASES.with_model(Lease)
_DEFAULT_LEASE_SECONDS = 15.0
_LEASE_SUFFIX = submitter_lease_name("")


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """The version of a Lease (empty if it does not exist), and when we saw it change."""

    job: str
    version: str
    at: float


class SubmitterLeaseController:
    """Suspends jobs whose Lease is not renewed; reconciles by the key of the job."""

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
        self._observed: dict[Key, _ObservedLease] = {}

    async def __call__(self, key: Key) -> ReconcileResult:
        """Suspend the job if its Lease has expired, or check again when it would."""
        active = self._find_job(key)
        if active is None:
            self._observed.pop(key, None)
            return Success()
        resource, job = active
        lease = self._leases.indexer.get(Key(key.namespace, submitter_lease_name(key.name)))
        seconds = self._seconds_left(key, job, lease)
        if seconds > 0:
            return RequeueAfter(seconds)
        await self._suspend_job(resource, job)
        self._observed.pop(key, None)
        return Success()

    def __len__(self) -> int:
        """Return the number of jobs with an observed Lease."""
        return len(self._observed)

    def _find_job(self, key: Key) -> tuple[Resource[JobObject], JobObject] | None:
        """Return the active job of this name that has a submitter lease."""
        for resource, informer in self._jobs.items():
            job = informer.indexer.get(key)
            if job is not None and _has_submitter_lease(job) and not _is_inactive(job):
                return resource, job
        return None

    def _seconds_left(self, key: Key, job: JobObject, lease: Lease | None) -> float:
        now = self._clock.monotonic()
        version = lease.metadata.resource_version if lease is not None else ""
        observed = self._observed.get(key)
        if observed is None or observed.job != job.metadata.uid:
            observed = self._observed[key] = _ObservedLease(job.metadata.uid, version, now)
        elif observed.version != version:
            # Deleting a Lease is not a sign of life: the time since its last renewal counts.
            at = now if lease is not None else observed.at
            observed = self._observed[key] = _ObservedLease(job.metadata.uid, version, at)
        duration = float(lease.spec.lease_duration_seconds) if lease is not None else 0.0
        return observed.at + (duration or _DEFAULT_LEASE_SECONDS) - now

    async def _suspend_job(self, resource: Resource[JobObject], job: JobObject) -> None:
        metadata = job.metadata
        _log.info("%s: suspending, its submitter is gone", job.key)
        # The uid is a precondition, so that a later job of this name is not suspended.
        change = {
            "metadata": {
                "uid": metadata.uid,
                "annotations": {STOPPED_ANNOTATION: SUBMITTER_GONE},
            },
            "spec": {"runPolicy": {"suspend": True}},
        }
        try:
            await self._client.patch(
                resource, metadata.name, merge_patch(change), namespace=metadata.namespace
            )
        except (NotFound, Conflict, Invalid) as error:
            _log.info("%s: not suspended: %s", job.key, error)


def add_submitter_lease_controller(
    manager: Manager,
    jobs: Mapping[Resource[JobObject], Informer[JobObject]],
    *,
    namespace: str,
    clock: Clock,
) -> SubmitterLeaseController:
    """Add the controller that suspends jobs whose submitter is gone."""
    options = ListOptions(namespace, labels=f"{SUBMITTER_LEASE_ANNOTATION}=true")
    leases = manager.get_informer(_LEASES, options)
    reconciler = SubmitterLeaseController(manager.client, leases, jobs, clock=clock)
    controller: Controller[Object] = Controller("submitter-lease", reconciler, clock=clock)
    for informer in jobs.values():
        controller.watch(informer, map_to_self, predicate=_concerns_lease)
    controller.watch(leases, _map_lease_to_job)
    manager.add_controller(controller)
    return reconciler


def _has_submitter_lease(job: JobObject) -> bool:
    annotation = job.metadata.annotations.get(SUBMITTER_LEASE_ANNOTATION)
    return annotation == submitter_lease_name(job.metadata.name)


def _concerns_lease(old: JobObject | None, new: JobObject | None) -> bool:
    return any(job is not None and _has_submitter_lease(job) for job in (old, new))


def _map_lease_to_job(lease: Object) -> Iterable[Key]:
    name = lease.metadata.name
    return (Key(lease.metadata.namespace, name.removesuffix(_LEASE_SUFFIX)),)


def _is_inactive(job: JobObject) -> bool:
    """Return whether the job is finished, being deleted, or already stopped."""
    metadata = job.metadata
    if metadata.deletion_timestamp is not None or STOPPED_ANNOTATION in metadata.annotations:
        return True
    try:
        return decode_json(job.status, JobStatus).finished
    except msgspec.MsgspecError:
        # The reconciler of the job reports an invalid status.
        return True
