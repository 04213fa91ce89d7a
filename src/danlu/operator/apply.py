"""Apply a decision: create, correct and delete the objects of a job."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.core_v1 import Pod
from danlu.kube.errors import Conflict, Forbidden, NotFound
from danlu.kube.events import EventRecorder, get_reference
from danlu.kube.informer import Indexer
from danlu.kube.resources import PERSISTENT_VOLUME_CLAIMS, PRIORITY_CLASSES, Resource
from danlu.kube.types import Key, Manifest, Object
from danlu.operator import builders, gang_scheduling
from danlu.operator.job_formats import job_manifest
from danlu.operator.owned_objects import (
    BatchTask,
    DependentObjects,
    NameConflict,
    OwnedObjects,
    slow_start_batch,
)
from danlu.operator.types import (
    JobObject,
    OperatorSettings,
    PodDecorator,
    PodGroupObject,
    ServiceObject,
)
from danlu.training.framework import Framework
from danlu.training.rendering import parse_replica_id
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Job,
    ObservedReplicas,
    ReplicaId,
    ReplicaPhase,
)
from danlu.util.lru import LRUCache

_log = logging.getLogger(__name__)
#: The value of a class cannot change, but the class can be deleted and created with another one.
_PRIORITY_CACHE_SECONDS = 300.0
#: Event reasons by kind, written out so that they can be searched for.
FAILED_CREATE_REASONS = {
    "ConfigMap": "FailedCreateConfigMap",
    "HorizontalPodAutoscaler": "FailedCreateHorizontalPodAutoscaler",
    "PersistentVolumeClaim": "FailedCreatePersistentVolumeClaim",
    "Pod": "FailedCreatePod",
    "PodGroup": "FailedCreatePodGroup",
    "Role": "FailedCreateRole",
    "RoleBinding": "FailedCreateRoleBinding",
    "Secret": "FailedCreateSecret",
    "Service": "FailedCreateService",
    "ServiceAccount": "FailedCreateServiceAccount",
}
#: An event's message has a limit, and a dozen names are enough to recognise the list.
_MAX_NAMES = 12


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """One reconciliation: the job as the cache has it and decoded, its pods, and the decision.

    The status of ``job`` is that of the decision.
    """

    framework: Framework
    job_object: JobObject
    job: Job
    pods: Sequence[Pod]
    observed: ObservedReplicas
    decision: Decision

    @property
    def is_active(self) -> bool:
        """Whether the job is neither finished nor suspended."""
        status = self.decision.status
        return not status.finished and not status.has_condition(ConditionType.SUSPENDED)

    @property
    def replicas_to_create(self) -> list[ReplicaId]:
        """The replicas to create a pod for."""
        return [
            action.replica for action in self.decision.actions if isinstance(action, CreateReplica)
        ]

    @property
    def pods_to_delete(self) -> list[Pod]:
        """The pods to delete."""
        actions = self.decision.actions
        uids = {action.uid for action in actions if isinstance(action, DeleteReplica)}
        return [pod for pod in self.pods if pod.metadata.uid in uids]

    @property
    def running_replicas(self) -> list[ReplicaId]:
        """The replicas that run and are not being deleted."""
        return [
            replica.id
            for replica in self.observed.replicas
            if replica.phase is ReplicaPhase.RUNNING and not replica.deleting
        ]


@dataclass(frozen=True, kw_only=True)
class DecisionApplier:
    """Applies decisions about the jobs of one kind.

    First the objects that pods need, then deletions, then new pods with their Services, and last
    the job itself. The first failure ends the pass, and the next reconciliation decides again.
    """

    client: Client
    resource: Resource[JobObject]
    jobs: Indexer[JobObject]
    settings: OperatorSettings
    pods: OwnedObjects[Pod]
    services: OwnedObjects[ServiceObject]
    pod_groups: Indexer[PodGroupObject] | None
    dependents: DependentObjects
    priority_classes: PriorityClassReader
    recorder: EventRecorder
    decorators: Sequence[PodDecorator] = ()

    async def apply(self, context: ReconcileContext) -> bool:
        """Do what was decided; return whether pods were created, which triggers a reconciliation.

        Raises :class:`NameConflict` if another object has a name that the job needs, and the error
        of the API server or of a pod decorator. Errors that will not go away by themselves are
        recorded as an event first.
        """
        job = context.job
        await self._sync_dependents(context)
        existing = self._existing_services(context)
        desired = builders.desired_services(
            job,
            context.framework,
            observed=context.observed,
            decision=context.decision,
            existing=existing.keys(),
        )
        unneeded = [service for replica, service in existing.items() if replica not in desired]
        missing = desired - existing.keys()
        deleted: set[str] = set()
        created: dict[ReplicaId, str] = {}
        still_needed = partial(self._job_still_exists, job)
        try:
            deletions = [*self._delete_tasks(context, unneeded, deleted)]
            await slow_start_batch(deletions, still_needed=still_needed)
            creations = [*self._create_tasks(context, missing, created)]
            await slow_start_batch(creations, still_needed=still_needed)
        finally:
            self._record_pods(context, deleted, created)
        if any(isinstance(action, DeleteJob) for action in context.decision.actions):
            await self._delete_after_ttl(context)
        return bool(created)

    async def _delete_after_ttl(self, context: ReconcileContext) -> None:
        """Delete a job whose time to live is over, or what is left of it."""
        job = context.job
        if context.framework.keeps_expired_jobs:
            pods = [pod for pod in context.pods if pod.metadata.deletion_timestamp is None]
            tasks = [partial(self.pods.delete, job.uid, pod) for pod in pods]
            await slow_start_batch(tasks, still_needed=partial(self._job_still_exists, job))
            return
        options = DeleteOptions(uid=job.uid, propagation="Background")
        await self.client.delete(self.resource, job.name, namespace=job.namespace, options=options)

    def _record_pods(
        self, context: ReconcileContext, deleted: set[str], created: Mapping[ReplicaId, str]
    ) -> None:
        """Record one event for all deleted and one for all created pods of this pass."""
        about = get_reference(self.resource, context.job_object)
        # In the order of the requests; responses arrive in any order.
        names = [pod.metadata.name for pod in context.pods_to_delete]
        if names := [name for name in names if name in deleted]:
            message = summarize_names("Deleted", "pod", names)
            self.recorder.event(about, "Normal", "SuccessfulDeletePod", message)
        replicas = context.replicas_to_create
        if names := [created[replica] for replica in replicas if replica in created]:
            message = summarize_names("Created", "pod", names)
            self.recorder.event(about, "Normal", "SuccessfulCreatePod", message)

    async def _record_failure(
        self, context: ReconcileContext, reason: str, operation: Awaitable[None]
    ) -> None:
        """Await ``operation``; record an error that will not resolve by itself, and raise it."""
        try:
            await operation
        except (NameConflict, TemporaryError, NotFound, Conflict):
            raise
        except DanluError as error:
            about = get_reference(self.resource, context.job_object)
            self.recorder.event(about, "Warning", reason, str(error))
            raise

    def _job_still_exists(self, job: Job) -> bool:
        """Return whether the job was not deleted meanwhile: no more pods are created then."""
        cached = self.jobs.get(Key(job.namespace, job.name))
        return (
            cached is not None
            and cached.metadata.uid == job.uid
            and cached.metadata.deletion_timestamp is None
        )

    # -- dependent objects

    async def _sync_dependents(self, context: ReconcileContext) -> None:
        job = context.job
        if not context.is_active:
            for manifest in (builders.build_autoscaler(job), self._build_pod_group(context, {})):
                if manifest is not None:
                    await self.dependents.delete(job, manifest)
            return
        # Before a pod is created, what it needs is checked on the server.
        recheck = bool(context.replicas_to_create)
        pod_group = self._build_pod_group(context, await self._read_priorities(context))
        manifests = (*self._framework_objects(context), builders.build_autoscaler(job), pod_group)
        for manifest in manifests:
            if manifest is not None:
                await self._record_failure(
                    context,
                    FAILED_CREATE_REASONS.get(manifest["kind"], "FailedCreate"),
                    self.dependents.create_or_patch(job, manifest, recheck=recheck),
                )

    def _framework_objects(self, context: ReconcileContext) -> Iterator[Manifest | None]:
        job = context.job
        topology = builders.build_topology(job, context.framework, self.settings)
        claims = context.framework.list_claims(job)
        for manifest in context.framework.extra_objects(job, topology):
            is_claim = manifest["kind"] == PERSISTENT_VOLUME_CLAIMS.kind
            outlives = is_claim and claims.get(manifest["metadata"]["name"])
            yield (builders.add_namespace if outlives else builders.add_owner)(job, manifest)
        yield builders.build_config_map(
            job, context.framework, context.running_replicas, topology=topology
        )

    async def _read_priorities(self, context: ReconcileContext) -> dict[str, int]:
        if not self.settings.gang_scheduler:
            return {}
        names = gang_scheduling.relevant_priority_classes(context.job, context.framework)
        return await self.priority_classes.values(names)

    def _build_pod_group(
        self, context: ReconcileContext, priorities: Mapping[str, int]
    ) -> Manifest | None:
        job = context.job
        manifest = gang_scheduling.build_pod_group(
            job, context.framework, settings=self.settings, priorities=priorities
        )
        return None if manifest is None else builders.add_owner(job, manifest)

    def _may_create_pods(self, job: Job) -> bool:
        if self.pod_groups is None:
            return True
        group = self.pod_groups.get(Key(job.namespace, job.name))
        return gang_scheduling.may_create_pods(group, self.settings.gang_scheduler)

    # -- pods and Services

    def _existing_services(self, context: ReconcileContext) -> dict[ReplicaId, ServiceObject]:
        services = self.services.owned_by(context.job.uid)
        replicas = (
            parse_replica_id(service.metadata.labels, context.framework) for service in services
        )
        return {
            replica: service
            for replica, service in zip(replicas, services, strict=True)
            if replica is not None
        }

    def _delete_tasks(
        self, context: ReconcileContext, services: Iterable[ServiceObject], deleted: set[str]
    ) -> Iterator[BatchTask]:
        for pod in context.pods_to_delete:
            yield partial(self._delete_pod, context, pod, deleted)
        for service in services:
            if service.metadata.deletion_timestamp is None:
                yield partial(self.services.delete, context.job.uid, service)

    def _create_tasks(
        self,
        context: ReconcileContext,
        missing: frozenset[ReplicaId],
        created: dict[ReplicaId, str],
    ) -> Iterator[BatchTask]:
        """Create pods, each with its Service; then Services that existing pods lack."""
        replicas = context.replicas_to_create
        for replica in replicas if self._may_create_pods(context.job) else ():
            yield partial(self._create_pod, context, replica, created)
            if replica in missing:
                yield partial(self._create_service, context, replica)
        for replica in sorted(missing.difference(replicas)):
            yield partial(self._create_service, context, replica)

    async def _create_pod(
        self, context: ReconcileContext, replica: ReplicaId, created: dict[ReplicaId, str]
    ) -> None:
        job = context.job
        manifest = builders.build_pod(job, context.framework, replica, settings=self.settings)
        creation = self._create_decorated_pod(context, replica, manifest)
        await self._record_failure(context, "FailedCreatePod", creation)
        created[replica] = manifest["metadata"]["name"]

    async def _create_decorated_pod(
        self, context: ReconcileContext, replica: ReplicaId, manifest: Manifest
    ) -> None:
        for decorator in self.decorators:
            job = job_manifest(context.job_object, context.framework)
            manifest = await decorator(job, manifest)
        record = context.job.status.record(replica)
        released = {record.last, *record.past}
        await self.pods.create(context.job.uid, manifest, is_released=released.__contains__)

    async def _create_service(self, context: ReconcileContext, replica: ReplicaId) -> None:
        manifest = builders.build_service(context.job, context.framework, replica)
        creation = self.services.create(context.job.uid, manifest)
        await self._record_failure(context, "FailedCreateService", creation)

    async def _delete_pod(self, context: ReconcileContext, pod: Pod, deleted: set[str]) -> None:
        deletion = self.pods.delete(context.job.uid, pod)
        await self._record_failure(context, "FailedDeletePod", deletion)
        deleted.add(pod.metadata.name)


def summarize_names(verb: str, noun: str, names: Sequence[str]) -> str:
    """Return ``Created pod: a``, or ``Created pods: a, b and 998 more``."""
    shown = ", ".join(names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{verb} {noun}{'' if len(names) == 1 else 's'}: {shown}{more}"


# -- PriorityClasses ------------------------------------------------------------------------------


class _PriorityClass(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A PriorityClass (scheduling.k8s.io/v1)."""

    value: int = 0


_PRIORITY_CLASSES = PRIORITY_CLASSES.with_model(_PriorityClass)


@dataclass(frozen=True, slots=True)
class _CachedValue:
    value: int | None
    at: float


class PriorityClassReader:
    """Reads the values of PriorityClasses by name, with a cache.

    Few jobs need one, so they are read on demand and not watched.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cache: LRUCache[str, _CachedValue] = LRUCache()

    async def values(self, names: Iterable[str]) -> dict[str, int]:
        """Return the value of each class; unreadable ones are left out, as in Kubeflow."""
        values = {name: await self._get_value(name) for name in sorted(names)}
        return {name: value for name, value in values.items() if value is not None}

    async def _get_value(self, name: str) -> int | None:
        now = self._client.clock.monotonic()
        cached = self._cache.get(name)
        if cached is None or now - cached.at >= _PRIORITY_CACHE_SECONDS:
            cached = _CachedValue(await self._fetch_value(name), now)
            self._cache.put(name, cached)
        return cached.value

    async def _fetch_value(self, name: str) -> int | None:
        try:
            return (await self._client.get(_PRIORITY_CLASSES, name)).value
        except (Forbidden, NotFound) as error:
            _log.warning("ignoring priority class %s: %s", name, error)
            return None
