"""The controllers: one per kind of job, over shared caches of pods and Services."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from danlu.kube.clock import Clock
from danlu.kube.controller import Controller, map_to_owner, map_to_self
from danlu.kube.core_v1 import Pod
from danlu.kube.events import EventRecorder
from danlu.kube.expectations import Expectations
from danlu.kube.informer import Informer, O, index_by_label, index_by_owner
from danlu.kube.manager import Manager
from danlu.kube.priorities import DEFAULT_PRIORITY, LOW_PRIORITY
from danlu.kube.resources import PODS, SERVICES
from danlu.kube.types import Object
from danlu.kube.watch import ListOptions
from danlu.operator.apply import DecisionApplier, PriorityClassReader
from danlu.operator.controller_ref import (
    ControllerRefManager,
    map_label_to_job,
    map_to_job,
    releases_name,
)
from danlu.operator.decoding import JobDecoder, observe_pod
from danlu.operator.gang_scheduling import pod_group_resource
from danlu.operator.job_formats import choose_job_format
from danlu.operator.owned_objects import DependentObjects, OwnedObjects
from danlu.operator.reconcile import Reconciler
from danlu.operator.status import (
    DeletedPods,
    JobMetrics,
    StatusCache,
    StatusWriter,
)
from danlu.operator.types import (
    JobObject,
    OperatorSettings,
    PodDecorator,
    PodGroupObject,
    ServiceObject,
    job_resource,
)
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME
from danlu.training.types import RestartBackoff
from danlu.util.decoding import convert_value

_PODS = PODS.with_model(Pod)
_SERVICES = SERVICES.with_model(ServiceObject)
#: Workers for running jobs only, while all others create the pods of large jobs.
_RESERVED_WORKERS = 1
#: While many jobs wait, pods of a job that start or end together trigger one reconciliation.
#: (Kubernetes' Job controller always waits a second: pkg/controller/job, syncJobBatchPeriod).
_BATCH_SECONDS = 0.5


class ControllerSet:
    """Builds the controllers of several kinds over the same pods and Services."""

    def __init__(
        self,
        manager: Manager,
        settings: OperatorSettings,
        *,
        clock: Clock,
        recorder: EventRecorder,
        decorators: Sequence[PodDecorator],
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.clock = clock
        self.recorder = recorder
        self.decorators = decorators
        self.expectations: Expectations[str] = Expectations(clock=clock)
        self.metrics = JobMetrics(manager.metrics)
        # Only objects with the label of a job are watched, not all pods of the cluster.
        options = ListOptions(settings.namespace, labels=JOB_NAME)
        indexes = {"owner": index_by_owner, "job": index_by_label(JOB_NAME)}
        self.pods = manager.get_informer(_PODS, options, indexes=indexes)
        self.services = manager.get_informer(_SERVICES, options, indexes=indexes)
        self.pod_groups: Informer[PodGroupObject] | None = None
        if settings.gang_scheduler:
            resource = pod_group_resource(settings.gang_scheduler)
            self.pod_groups = manager.get_informer(resource, ListOptions(settings.namespace))
        self.priority_classes = PriorityClassReader(manager.client)
        self.owned_pods = self._build_owned_objects(self.pods)
        self.owned_services = self._build_owned_objects(self.services)

    def _build_owned_objects(self, informer: Informer[O]) -> OwnedObjects[O]:
        owned = OwnedObjects(
            self.manager.client,
            informer.resource,
            informer.indexer,
            expectations=self.expectations,
        )
        informer.add_event_handler(owned.on_event)
        return owned

    def add_kind(self, framework: Framework) -> Informer[JobObject]:
        """Add the controller of a kind; return the informer of its jobs."""
        resource = job_resource(framework)
        jobs = self.manager.get_informer(resource, ListOptions(self.settings.namespace))
        reconciler = self._build_reconciler(framework, jobs)
        controller: Controller[JobObject] = Controller(
            f"{framework.kind.lower()}-controller",
            reconciler,
            workers=self.settings.threads,
            reserved=_RESERVED_WORKERS,
            clock=self.clock,
        )
        controller.watch(
            jobs,
            map_to_self,
            predicate=reconciler.should_reconcile,
            priority=_get_change_priority,
        )
        get_job, predicate = map_to_job(framework), _job_predicate(framework)
        controller.watch(
            self.pods,
            get_job,
            predicate=predicate,
            priority=_get_pod_priority,
            batch_seconds=_BATCH_SECONDS,
        )
        controller.watch(self.services, get_job, predicate=predicate, priority=_get_change_priority)
        controller.watch(self.pods, map_label_to_job, predicate=releases_name)
        controller.watch(self.services, map_label_to_job, predicate=releases_name)
        if self.pod_groups is not None:
            get_owner = map_to_owner(framework.kind, resource.group)
            # A PodGroup changes when its job may start, which can wait for jobs that run.
            controller.watch(self.pod_groups, get_owner, priority=lambda old, new: LOW_PRIORITY)

        def on_job_event(old: JobObject | None, new: JobObject | None) -> None:
            if old is not None and new is None:
                reconciler.forget(old.metadata.uid)
                self.metrics.record_deletion(old.metadata.namespace, framework)

        jobs.add_event_handler(on_job_event)
        self.manager.add_controller(controller)
        return jobs

    def _build_reconciler(self, framework: Framework, jobs: Informer[JobObject]) -> Reconciler:
        client = self.manager.client
        status_cache = StatusCache(clock=self.clock)
        job_format = choose_job_format(framework, client)
        deleted_pods = DeletedPods(client, jobs.indexer, pods=self.owned_pods)
        self.pods.add_event_handler(deleted_pods.on_event)
        applier = DecisionApplier(
            client=client,
            resource=jobs.resource,
            jobs=jobs.indexer,
            settings=self.settings,
            pods=self.owned_pods,
            services=self.owned_services,
            pod_groups=self.pod_groups.indexer if self.pod_groups is not None else None,
            dependents=DependentObjects(client),
            priority_classes=self.priority_classes,
            recorder=self.recorder,
            decorators=self.decorators,
        )
        return Reconciler(
            framework=framework,
            jobs=jobs.indexer,
            applier=applier,
            controller_refs=ControllerRefManager(
                client, jobs.resource, framework, owned=(self.owned_pods, self.owned_services)
            ),
            deleted_pods=deleted_pods,
            decoder=JobDecoder(job_format),
            status_cache=status_cache,
            status_writer=StatusWriter(
                client,
                jobs.resource,
                framework,
                job_format=job_format,
                cache=status_cache,
                metrics=self.metrics,
                seconds=self.settings.status_seconds,
            ),
            recorder=self.recorder,
            expectations=self.expectations,
            clock=self.clock,
            backoff=convert_value(self.settings.pace, RestartBackoff),
        )


def _get_change_priority(old: Object | None, new: Object | None) -> int:
    """Return the priority of a change of a job or Service.

    New jobs must not delay those that run, especially not a thousand that are created together.
    """
    return LOW_PRIORITY if old is None else DEFAULT_PRIORITY


def _get_pod_priority(old: Pod | None, new: Pod | None) -> int:
    """Return the priority of a change of a pod: a new pending pod changes nothing for its job."""
    created = old is None and new is not None and new.status.phase in ("", "Pending")
    return LOW_PRIORITY if created else DEFAULT_PRIORITY


def _job_predicate(framework: Framework) -> Callable[[Object | None, Object | None], bool]:
    """Return a predicate for changes of pods and Services that matter to a job of this kind.

    Most changes of a pod do not: it was scheduled, it became ready.
    """
    get_job = map_to_job(framework)

    def matters(old: Object | None, new: Object | None) -> bool:
        if old is None or new is None:
            return True
        before, after = old.metadata, new.metadata
        if not get_job(old) and not get_job(new):
            return False
        if isinstance(old, Pod) and isinstance(new, Pod):
            if observe_pod(old, framework) != observe_pod(new, framework):
                return True
        elif before.deletion_timestamp != after.deletion_timestamp:
            return True
        return before.labels != after.labels or before.owner_references != after.owner_references

    return matters
