"""A decision carried out: what a job owns is made, corrected and removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client, Deletion
from danlu.kube.failures import Conflict, NotFound
from danlu.kube.resources import Resource
from danlu.kube.store import Store
from danlu.kube.types import Document, Key
from danlu.operator import children
from danlu.operator.belongings import Belongings
from danlu.operator.gangs import may_begin, pod_group
from danlu.operator.observing import replica_of
from danlu.operator.reading import job_manifest
from danlu.operator.scaling import autoscaler
from danlu.operator.services import services_wanted
from danlu.operator.telling import EventTeller, listed
from danlu.operator.types import (
    JobObject,
    OperatorSettings,
    PodDecorator,
    PodGroupObject,
    PodObject,
    ServiceObject,
)
from danlu.operator.writing import Children, NameTaken, slow_start
from danlu.training.framework import Framework
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Job,
    Observed,
    Phase,
    ReplicaId,
)

__all__ = ["Carrier", "Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job as the cache has it and as it was read, its pods, and what was decided of it.

    The job's status is the decision's.
    """

    found: JobObject
    job: Job
    pods: Sequence[PodObject]
    observed: Observed
    decision: Decision

    @property
    def goes_on(self) -> bool:
        """Whether the job is neither finished nor suspended."""
        status = self.decision.status
        return not status.finished and not status.has(ConditionType.SUSPENDED)

    @property
    def creations(self) -> list[ReplicaId]:
        """The replicas to make."""
        return [one.replica for one in self.decision.actions if isinstance(one, CreateReplica)]

    @property
    def deletions(self) -> list[PodObject]:
        """The pods to remove."""
        actions = self.decision.actions
        uids = {one.uid for one in actions if isinstance(one, DeleteReplica)}
        return [pod for pod in self.pods if pod.metadata.uid in uids]

    @property
    def running(self) -> list[ReplicaId]:
        """The replicas that run and are not about to end."""
        replicas = self.observed.replicas
        return [one.id for one in replicas if one.phase is Phase.RUNNING and not one.deleting]


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """Carries decisions on jobs of one kind out.

    First what pods need, then the pods that are to go, then those that are to come with their
    Services, at last the job itself. What fails ends the pass, and the next one decides anew.
    """

    client: Client
    framework: Framework
    resource: Resource[JobObject]
    jobs: Store[JobObject]
    settings: OperatorSettings
    pods: Children[PodObject]
    services: Children[ServiceObject]
    groups: Store[PodGroupObject] | None
    belongings: Belongings
    teller: EventTeller
    decorators: Sequence[PodDecorator] = ()

    async def carry_out(self, task: Task) -> bool:
        """Do what was decided; whether pods were made, so that the job will be looked at again.

        Raises :class:`NameTaken` where something of another bears a name that the job needs, and
        what the API server or a decorator refuses, told by an event where it is not of the moment.
        """
        await self._keep_belongings(task)
        served = self._served(task.job)
        wanted = services_wanted(
            task.job,
            self.framework,
            observed=task.observed,
            decision=task.decision,
            there=served.keys(),
        )
        unwanted = [one for replica, one in served.items() if replica not in wanted]
        ended: set[str] = set()
        made: dict[ReplicaId, str] = {}
        try:
            still = partial(self._stands, task.job)
            await slow_start([*self._deletions(task, unwanted, ended)], still=still)
            missing = wanted - served.keys()
            await slow_start([*self._creations(task, missing, made)], still=still)
        finally:
            # In the order in which they were asked for: answers come in any.
            names = [pod.metadata.name for pod in task.deletions]
            self._tell(task, "Deleted", [name for name in names if name in ended])
            self._tell(task, "Created", [made[one] for one in task.creations if one in made])
        if any(isinstance(one, DeleteJob) for one in task.decision.actions):
            await self._delete_job(task.job)
        return bool(made)

    def _tell(self, task: Task, verb: str, names: Sequence[str]) -> None:
        if names:
            reason = f"Successful{verb.removesuffix('d')}Pod"
            self.teller.done(task.found, reason, listed(verb, "pod", names))

    def _stands(self, job: Job) -> bool:
        """Whether the job is there yet: who deletes one does not wait for its pods to be made."""
        found = self.jobs.get(Key(job.namespace, job.name))
        same = found is not None and found.metadata.uid == job.uid
        return found is not None and same and found.metadata.deletion_timestamp is None

    # -- belongings

    async def _keep_belongings(self, task: Task) -> None:
        job = task.job
        extra = [one for one in (autoscaler(job), self._group(job)) if one is not None]
        if not task.goes_on:
            for document in extra:
                await self.belongings.remove(job, document)
            return
        again = bool(task.creations)
        for document in (*self._files_and_objects(task), *extra):
            await self._told(
                task,
                f"FailedCreate{document['kind']}",
                self.belongings.ensure(job, document, again=again),
            )

    def _files_and_objects(self, task: Task) -> Iterator[Document]:
        job = task.job
        topology = children.topology_of(job, self.framework, self.settings)
        for document in self.framework.objects(job, topology):
            yield children.owned(job, document)
        files = children.config_map(job, self.framework, task.running, topology=topology)
        if files is not None:
            yield files

    def _group(self, job: Job) -> Document | None:
        document = pod_group(job, self.framework, settings=self.settings)
        return None if document is None else children.owned(job, document)

    def _may_begin(self, job: Job) -> bool:
        if self.groups is None:
            return True
        group = self.groups.get(Key(job.namespace, job.name))
        return may_begin(group, self.settings.gang_scheduler)

    # -- pods and Services

    def _deletions(
        self, task: Task, services: Iterable[ServiceObject], ended: set[str]
    ) -> Iterator[Callable[[], Awaitable[object]]]:
        for pod in task.deletions:
            yield partial(self._delete_pod, task, pod, ended)
        for service in services:
            if service.metadata.deletion_timestamp is None:
                yield partial(self.services.delete, task.job.uid, service)

    def _creations(
        self, task: Task, missing: frozenset[ReplicaId], made: dict[ReplicaId, str]
    ) -> Iterator[Callable[[], Awaitable[object]]]:
        """Make pods, each with its Service; then Services of pods that are there without."""
        begins = self._may_begin(task.job)
        for replica in task.creations if begins else ():
            yield partial(self._create_pod, task, replica, made)
            if replica in missing:
                yield partial(self._create_service, task, replica)
        for replica in sorted(missing.difference(task.creations)):
            yield partial(self._create_service, task, replica)

    def _served(self, job: Job) -> dict[ReplicaId, ServiceObject]:
        found = (
            (replica_of(one.metadata, self.framework), one) for one in self.services.of(job.uid)
        )
        return {replica: one for replica, one in found if replica is not None}

    async def _create_pod(self, task: Task, replica: ReplicaId, made: dict[ReplicaId, str]) -> None:
        job = task.job
        record = job.status.record(replica)
        document = children.pod(job, self.framework, replica, settings=self.settings)
        await self._told(
            task,
            "FailedCreatePod",
            self._create_decorated(task, document, past={record.last, *record.past}),
        )
        made[replica] = document["metadata"]["name"]

    async def _create_decorated(self, task: Task, document: Document, *, past: set[str]) -> None:
        for decorator in self.decorators:
            document = await decorator(job_manifest(task.found, self.framework), document)
        await self.pods.create(task.job.uid, document, past=past.__contains__)

    async def _create_service(self, task: Task, replica: ReplicaId) -> None:
        document = children.service(task.job, self.framework, replica)
        making = self.services.create(task.job.uid, document)
        await self._told(task, "FailedCreateService", making)

    async def _delete_pod(self, task: Task, pod: PodObject, ended: set[str]) -> None:
        await self._told(task, "FailedDeletePod", self.pods.delete(task.job.uid, pod))
        ended.add(pod.metadata.name)

    async def _delete_job(self, job: Job) -> None:
        how = Deletion(uid=job.uid, propagation="Background")
        await self.client.delete(self.resource, job.name, namespace=job.namespace, how=how)

    async def _told(self, task: Task, reason: str, doing: Awaitable[None]) -> None:
        """Do it; what fails and is not of the moment is told to the job's owner."""
        try:
            await doing
        except DanluError as error:
            passing = isinstance(error, NameTaken | TemporaryError | NotFound | Conflict)
            if passing:
                raise
            self.teller.failed(task.found, reason, str(error))
            raise
