"""Watch one job of a cluster: its object, its pods, its report, and whether the cluster answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import anyio
import msgspec

from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.objects import (
    POD,
    REPORT,
    JobObject,
    PodObject,
    ReportObject,
    job_resource,
)
from danlu.jobs.kubernetes.views import build_view, own_report
from danlu.jobs.kubernetes.waiting_reasons import NO_REASONS, find_waiting_reasons
from danlu.jobs.types import JobView
from danlu.kube.client import Client
from danlu.kube.clock import move_on_after, sleep
from danlu.kube.informer import Informer
from danlu.kube.watch import ListOptions
from danlu.training.names import reports_config_map_name
from danlu.training.types import ReplicaId

# The view is rebuilt after this time even without a change, because it also depends on the time.
_POLL_SECONDS = 5.0
_REASONS_POLL_SECONDS = 2.0
_PROBE_TIMEOUT = 5.0


class JobWatcher:
    """Watches a job until it is closed; an async context manager.

    It uses plain tasks and not a task group, because it is used inside async generators, which may
    be closed in a different task.
    """

    def __init__(self, client: Client, found: ClusterJob, *, where: str) -> None:
        self.framework = found.framework
        self._client = client
        self._found = found
        self._where = where
        self._generation = 0
        self._seen_generation = -1
        self._newest: Mapping[ReplicaId, PodObject] = {}
        namespace, name = found.job.key
        self._pod_options = found.pod_selection
        self._final_pods: dict[str, PodObject] | None = None
        self._final_pods_lock = asyncio.Lock()
        self._is_over = False
        self._reasons = NO_REASONS
        self._change_event = asyncio.Event()
        self._error: DanluError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        job = ListOptions(namespace, fields=f"metadata.name={name}")
        pods = self._pod_options
        report = ListOptions(namespace, fields=f"metadata.name={reports_config_map_name(name)}")
        self._connection = ConnectionMonitor(client, pods, lambda: self._notify_change(None, None))
        self._jobs: Informer[JobObject] = Informer(
            client, job_resource(found.framework), job, on_failure=self._on_failure
        )
        self._pods: Informer[PodObject] = Informer(client, POD, pods, on_failure=self._on_failure)
        self._reports: Informer[ReportObject] = Informer(client, REPORT, report)

    async def __aenter__(self) -> JobWatcher:
        informers: tuple[Informer[Any], ...] = (self._jobs, self._pods, self._reports)
        for informer in informers:
            informer.add_event_handler(self._notify_change)
        self._tasks = [asyncio.create_task(informer.run()) for informer in informers]
        self._tasks += [
            asyncio.create_task(self._notify_after_sync(informer)) for informer in informers
        ]
        self._tasks.append(asyncio.create_task(self._poll_reasons()))
        try:
            # Don't wait for the report: users without permission to read it still see the job.
            for informer in (self._jobs, self._pods):
                await self._wait_for_sync(informer)
        except BaseException:
            await self._cancel_tasks()
            raise
        self._notify_change(None, None)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._cancel_tasks()

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll_reasons(self) -> None:
        """Ask from time to time why the job waits; most jobs don't wait that long."""
        while True:
            await sleep(self._client.clock, _REASONS_POLL_SECONDS)
            await self._connection.probe()
            job, view = self.job, self.view()
            if job is None or view is None:
                continue
            reasons = await find_waiting_reasons(self._client, job.job, view, self._own_pods())
            if reasons != self._reasons:
                self._reasons = reasons
                self._notify_change(None, None)

    async def _notify_after_sync(self, informer: Informer[Any]) -> None:
        await informer.wait_for_cache_sync()
        self._notify_change(None, None)

    async def _wait_for_sync(self, informer: Informer[Any]) -> None:
        while not informer.has_synced:
            if self._error is not None:
                raise self._error
            await self.wait_for_change(self._generation)

    def _on_failure(self, error: DanluError) -> None:
        # The informer retries temporary errors. Others, like missing permissions, are final.
        if not isinstance(error, TemporaryError):
            self._error = error
        self._connection.record_failure(error)
        self._notify_change(None, None)

    def _notify_change(self, old: object, new: object) -> None:
        self._generation += 1
        self._change_event.set()

    # -- reading ----------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """A number that increases with every change."""
        return self._generation

    async def wait_for_change(self, since: int) -> None:
        """Wait for a generation other than ``since``, up to a few seconds."""
        with anyio.move_on_after(_POLL_SECONDS):
            while self._generation == since:
                self._change_event.clear()
                await self._change_event.wait()

    @property
    def job(self) -> ClusterJob | None:
        """The job, or None if it was deleted, even if there is a new one of the same name."""
        job = self._jobs.indexer.get(self._found.job.key)
        if job is None or job.metadata.uid != self._found.uid:
            return None
        return msgspec.structs.replace(self._found, job=job)

    @property
    def pods(self) -> Mapping[ReplicaId, PodObject]:
        """The newest pod of each replica that has one."""
        self._refresh_state()
        return self._newest

    @property
    def is_over(self) -> bool:
        """Whether the job is finished or deleted."""
        self._refresh_state()
        return self._is_over

    def _refresh_state(self) -> None:
        # Compute it once per generation, however many replicas' readers ask.
        if self._seen_generation == self._generation:
            return
        self._seen_generation = self._generation
        self._newest = self._found.newest_pods(self._own_pods())
        view = self.view()
        self._is_over = view is None or view.finished

    async def read_final_pods(self) -> None:
        """Read the pods of a job that is over, once.

        The job and its pods are watched separately, so its end may be seen before that of its pods,
        or even before they are seen at all.
        """
        async with self._final_pods_lock:
            if self._final_pods is not None:
                return
            try:
                pods = (await self._client.list(POD, self._pod_options)).items
            except OutsideError:
                pods = ()  # those of the watch have to do
            self._final_pods = {pod.metadata.uid: pod for pod in pods}
        self._notify_change(None, None)

    def _own_pods(self) -> list[PodObject]:
        pods = {pod.metadata.uid: pod for pod in self._pods.indexer} | (self._final_pods or {})
        return self._found.select_pods(pods.values())

    @property
    def report(self) -> ReportObject | None:
        """What the replicas reported."""
        return own_report(next(iter(self._reports.indexer), None), self._found.uid)

    def view(self) -> JobView | None:
        """Return the current view of the job; None if it was deleted."""
        job = self.job
        if job is None:
            return None
        view = build_view(
            job,
            pods=self._own_pods(),
            report=self.report,
            where=self._where,
            now=self._client.clock.now(),
            reasons=self._reasons,
        )
        warnings = (*view.warnings, *self._connection.warnings)
        return msgspec.structs.replace(view, warnings=warnings)


class ConnectionMonitor:
    """Detects that a cluster does not respond, and since when.

    A closed connection proves nothing, because servers and proxies close connections all the time.
    After a failure, the monitor therefore sends its own request.
    """

    def __init__(
        self, client: Client, selection: ListOptions, changed: Callable[[], object]
    ) -> None:
        self._client = client
        self._selection = selection
        self._on_change = changed
        self._failing_since: datetime | None = None
        self._down_since: datetime | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning that stays the same for the duration of an outage; empty without one."""
        if self._down_since is None:
            return ()
        since = self._down_since.astimezone().strftime("%H:%M:%S")
        return (f"the cluster has not responded since {since}; retrying",)

    def record_failure(self, error: DanluError) -> None:
        """Remember when requests began to fail."""
        if isinstance(error, TemporaryError) and self._failing_since is None:
            self._failing_since = self._client.clock.now()

    async def probe(self) -> None:
        """Check whether the server responds, if requests have failed; call it repeatedly."""
        if self._failing_since is None:
            return
        before = self._down_since
        if await self._server_responds():
            self._failing_since = self._down_since = None
        else:
            self._down_since = self._failing_since
        if self._down_since != before:
            self._on_change()

    async def _server_responds(self) -> bool:
        with move_on_after(self._client.clock, _PROBE_TIMEOUT):
            try:
                await self._client.list_page(POD, self._selection, limit=1)
            except TemporaryError:
                return False
            except OutsideError:
                pass  # an error is a response, too
            return True
        return False
