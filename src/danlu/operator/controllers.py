"""Controllers: one a kind, what they watch, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from danlu.kube.client import Selection
from danlu.kube.controller import Controller, own_key, owner_of
from danlu.kube.events import EventRecorder
from danlu.kube.expectations import Expectations
from danlu.kube.informer import Informer
from danlu.kube.manager import Manager
from danlu.kube.resources import PODS, SERVICES, Resource
from danlu.kube.store import O, by_label, by_owner
from danlu.kube.types import Clock, Object
from danlu.operator.adopting import Adopter, frees_name, job_keys, job_of_label
from danlu.operator.belongings import Belongings
from danlu.operator.carrying import Carrier
from danlu.operator.gangs import pod_groups
from danlu.operator.jobmetrics import JobMetrics
from danlu.operator.observing import observed_pod
from danlu.operator.reading import JobReader
from danlu.operator.reconcile import Reconciler
from danlu.operator.telling import EventTeller, StatusWriter
from danlu.operator.types import (
    JobObject,
    OperatorSettings,
    PodDecorator,
    PodGroupObject,
    PodObject,
    ServiceObject,
)
from danlu.operator.vanishing import Vanishing
from danlu.operator.writing import Children
from danlu.operator.written import Written
from danlu.training.cluster import GROUP, VERSION
from danlu.training.framework import Framework
from danlu.training.rendering import JOB_NAME
from danlu.training.types import Pace

__all__ = ["Controllers", "job_resource"]

_POD = PODS.decoded(PodObject)
_SERVICE = SERVICES.decoded(ServiceObject)


def job_resource(framework: Framework) -> Resource[JobObject]:
    """The kind of jobs of a framework, as the operator reads them."""
    return Resource(GROUP, VERSION, framework.plural, framework.kind, JobObject)


class Controllers:
    """Controllers of several kinds over the same pods and Services."""

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
        # Only what bears the labels of a job is followed, of all that a cluster has.
        theirs = Selection(settings.namespace, labels=JOB_NAME)
        indexes = {"owner": by_owner, "job": by_label(JOB_NAME)}
        self.pods = manager.informer(_POD, theirs, indexes=indexes)
        self.services = manager.informer(_SERVICE, theirs, indexes=indexes)
        self.groups: Informer[PodGroupObject] | None = None
        if settings.gang_scheduler:
            groups = pod_groups(settings.gang_scheduler)
            self.groups = manager.informer(groups, Selection(settings.namespace))
        self.pod_children = self._children(self.pods)
        self.service_children = self._children(self.services)

    def _children(self, informer: Informer[O]) -> Children[O]:
        found = Children(
            self.manager.client,
            informer.resource,
            informer.store,
            expectations=self.expectations,
        )
        informer.handle(found.seen)
        return found

    def add(self, framework: Framework) -> Informer[JobObject]:
        """Add the controller of a kind, and give what follows its jobs."""
        resource = job_resource(framework)
        jobs = self.manager.informer(resource, Selection(self.settings.namespace))
        reconciler = self._reconciler(framework, jobs)
        controller: Controller[JobObject] = Controller(
            f"{framework.kind.lower()}-controller",
            reconciler,
            workers=self.settings.threads,
            clock=self.clock,
        )
        controller.watch(jobs, own_key, when=reconciler.concerns)
        keys, matters = job_keys(framework), _matters(framework)
        controller.watch(self.pods, keys, when=matters)
        controller.watch(self.services, keys, when=matters)
        controller.watch(self.pods, job_of_label, when=frees_name)
        controller.watch(self.services, job_of_label, when=frees_name)
        if self.groups is not None:
            controller.watch(self.groups, owner_of(framework.kind, GROUP))
        jobs.handle(self._ended(framework, reconciler))
        self.manager.add(controller)
        return jobs

    def _reconciler(self, framework: Framework, jobs: Informer[JobObject]) -> Reconciler:
        written = Written(clock=self.clock)
        teller = EventTeller(self.recorder, jobs.resource)
        vanishing = Vanishing(self.manager.client, jobs.store, pods=self.pod_children)
        self.pods.handle(vanishing.seen)
        return Reconciler(
            framework=framework,
            jobs=jobs.store,
            carrier=self._carrier(framework, jobs, teller),
            adopter=Adopter(
                self.manager.client,
                jobs.resource,
                framework,
                children=(self.pod_children, self.service_children),
            ),
            vanishing=vanishing,
            reader=JobReader(framework),
            written=written,
            writer=StatusWriter(
                self.manager.client,
                jobs.resource,
                framework,
                written=written,
                metrics=self.metrics,
                seconds=self.settings.status_seconds,
            ),
            teller=teller,
            expectations=self.expectations,
            clock=self.clock,
            pace=msgspec.convert(self.settings.pace, Pace),
        )

    def _carrier(
        self, framework: Framework, jobs: Informer[JobObject], teller: EventTeller
    ) -> Carrier:
        return Carrier(
            client=self.manager.client,
            framework=framework,
            resource=jobs.resource,
            jobs=jobs.store,
            settings=self.settings,
            pods=self.pod_children,
            services=self.service_children,
            groups=self.groups.store if self.groups is not None else None,
            belongings=Belongings(self.manager.client),
            teller=teller,
            decorators=self.decorators,
        )

    def _ended(
        self, framework: Framework, reconciler: Reconciler
    ) -> Callable[[JobObject | None, JobObject | None], None]:
        def ended(old: JobObject | None, new: JobObject | None) -> None:
            if old is not None and new is None:
                reconciler.forget(old.metadata.uid)
                self.metrics.deleted(old.metadata.namespace, framework)

        return ended


def _matters(framework: Framework) -> Callable[[Object | None, Object | None], bool]:
    """Whether a change of a pod or Service changes anything for its job, where it is of this kind.

    Of a pod's many changes most do not: it was scheduled, it is ready.
    """
    keys = job_keys(framework)

    def matters(old: Object | None, new: Object | None) -> bool:
        if old is None or new is None:
            return True
        before, after = old.metadata, new.metadata
        if not keys(old) and not keys(new):
            return False
        if isinstance(old, PodObject) and isinstance(new, PodObject):
            if observed_pod(old, framework) != observed_pod(new, framework):
                return True
        elif before.deletion_timestamp != after.deletion_timestamp:
            return True
        return before.labels != after.labels or before.owner_references != after.owner_references

    return matters
