"""One job of a cluster, followed: its object, its pods, and what they reported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from danlu.errors import DanluError, TemporaryError
from danlu.jobs.kubernetes.objects import (
    POD,
    REPORT,
    JobObject,
    PodObject,
    ReportObject,
    job_resource,
)
from danlu.jobs.kubernetes.silence import Silence
from danlu.jobs.kubernetes.told import concerned, warnings_of
from danlu.jobs.kubernetes.views import newest, own_pods, own_report, view_of
from danlu.jobs.types import JobView
from danlu.kube.client import Client, Selection
from danlu.kube.clock import sleep
from danlu.kube.informer import Informer
from danlu.kube.types import Key
from danlu.training.cluster import reports_name
from danlu.training.framework import Framework
from danlu.training.types import ReplicaId

__all__ = ["Sight"]

#: Seconds after which a job is looked at again though nothing was told: time itself may tell.
_LOOK = 5.0

#: Seconds between two questions about what waits, and whether anybody answers.
_ASK = 3.0


class Sight:
    """Follows a job until it is closed; an async context manager.

    Tasks and not a task group, for generators live in it, which may be left in any task.
    """

    def __init__(
        self, client: Client, framework: Framework, *, namespace: str, name: str, where: str
    ) -> None:
        self.framework = framework
        self._client = client
        self._key = Key(namespace, name)
        self._where = where
        self._uid = ""
        self._changes = 0
        self._seen = -1
        self._newest: Mapping[ReplicaId, PodObject] = {}
        self._over = False
        self._warned: Mapping[str, str] = {}
        self._news = asyncio.Event()
        self._error: DanluError | None = None
        one = Selection(namespace, fields=f"metadata.name={name}")
        self._jobs: Informer[JobObject] = Informer(
            client, job_resource(framework), one, on_failure=self._failed
        )
        mine = Selection(namespace, labels=f"training.kubeflow.org/job-name={name}")
        self._silence = Silence(client, mine, lambda: self._told(None, None))
        self._pods: Informer[PodObject] = Informer(client, POD, mine, on_failure=self._failed)
        report = Selection(namespace, fields=f"metadata.name={reports_name(name)}")
        self._reports: Informer[ReportObject] = Informer(client, REPORT, report)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Sight:
        informers: tuple[Informer[Any], ...] = (self._jobs, self._pods, self._reports)
        for informer in informers:
            informer.handle(self._told)
        self._tasks = [asyncio.create_task(one.run()) for one in informers]
        self._tasks += [asyncio.create_task(self._tell_synced(one)) for one in informers]
        self._tasks.append(asyncio.create_task(self._ask()))
        try:
            # Of reports nothing is waited for: whoever may not read them still sees the job.
            for informer in informers[:2]:
                await self._synced(informer)
        except BaseException:
            await self._close()
            raise
        found = self.job
        self._uid = found.metadata.uid if found else ""
        self._told(None, None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _ask(self) -> None:
        """Ask now and then why what waits does so: most jobs wait for nothing that long."""
        while True:
            await sleep(self._client.clock, _ASK)
            await self._silence.listen()
            view = self.view()
            about = concerned(view, self._own(), self._uid) if view is not None else []
            warned = await warnings_of(self._client, self._key.namespace, about)
            if warned != self._warned:
                self._warned = warned
                self._told(None, None)

    async def _tell_synced(self, informer: Informer[Any]) -> None:
        await informer.wait_synced()
        self._told(None, None)

    async def _synced(self, informer: Informer[Any]) -> None:
        while not informer.synced:
            if self._error is not None:
                raise self._error
            await self.changed(self._changes)

    def _failed(self, error: DanluError) -> None:
        # What is refused once is refused again; what is worth trying again is tried.
        if not isinstance(error, TemporaryError):
            self._error = error
        self._silence.failed(error)
        self._told(None, None)

    def _told(self, old: object, new: object) -> None:
        self._changes += 1
        self._news.set()

    # -- looking ----------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """How many changes were told by now."""
        return self._changes

    async def changed(self, since: int) -> None:
        """Wait until more than ``since`` changes were told; a while at most."""
        with anyio.move_on_after(_LOOK):
            while self._changes == since:
                self._news.clear()
                await self._news.wait()

    @property
    def job(self) -> JobObject | None:
        """The job that was there at the beginning, while it is there."""
        found = self._jobs.store.get(self._key)
        return found if found and self._uid in ("", found.metadata.uid) else None

    @property
    def pods(self) -> Mapping[ReplicaId, PodObject]:
        """The newest pod of each replica that has one."""
        self._refresh()
        return self._newest

    @property
    def over(self) -> bool:
        """Whether the job is finished, or gone."""
        self._refresh()
        return self._over

    def _refresh(self) -> None:
        """Look once at each change, however many ask."""
        if self._seen == self._changes:
            return
        self._seen = self._changes
        self._newest = newest(self._own(), self.framework.types)
        view = self.view()
        self._over = view is None or view.finished

    def _own(self) -> list[PodObject]:
        return own_pods(list(self._pods.store), self._uid)

    @property
    def report(self) -> ReportObject | None:
        """What its replicas reported."""
        return own_report(next(iter(self._reports.store), None), self._uid)

    def view(self) -> JobView | None:
        """The job as it is known now; None where it is gone."""
        found = self.job
        if found is None:
            return None
        view = view_of(
            found,
            self.framework,
            pods=self._own(),
            report=self.report,
            where=self._where,
            now=self._client.clock.now(),
            warned=self._warned,
        )
        warnings = (*view.warnings, *self._silence.warnings)
        return msgspec.structs.replace(view, warnings=warnings)
