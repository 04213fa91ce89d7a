"""Read the log of one replica across container restarts, new pods and broken connections.

Each line is returned exactly once. After an interruption, the log is requested again from the
second of the last line, because ``sinceTime`` has no finer resolution, and as many lines of that
time are skipped as were returned before. This works because timestamps of one container never
decrease, and those of a restarted container are later than all before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from danlu.errors import TemporaryError
from danlu.jobs.kubernetes.job_watcher import JobWatcher
from danlu.jobs.kubernetes.objects import PodObject
from danlu.jobs.kubernetes.views import attempt_number, main_container_status
from danlu.jobs.types import LogLine
from danlu.kube.client import Client
from danlu.kube.core_v1 import ContainerStatus
from danlu.kube.errors import BadRequest, NotFound
from danlu.kube.pod_logs import PodLogLine
from danlu.training.types import ReplicaId


class ReplicaLog:
    """Reads one replica's log, continuing where the last read ended."""

    def __init__(self, client: Client, watcher: JobWatcher, replica: ReplicaId) -> None:
        self.replica = replica
        self._client = client
        self._watcher = watcher
        self._uid = ""
        self._attempt = 0
        self._number = 0
        # About the last line returned: its time, how many lines had the same time, and, if its end
        # was missing, how many of its bytes were returned.
        self._last = 0
        self._equal = 0
        self._cut = 0
        self._restarts = 0

    @property
    def pod(self) -> PodObject | None:
        """The replica's newest pod."""
        return self._watcher.pods.get(self.replica)

    @property
    def is_running(self) -> bool:
        """Whether the main container is running, so that its log may grow."""
        pod = self.pod
        status = self._main_status(pod) if pod is not None else None
        return status is not None and status.state.running is not None

    async def read(self, *, follow: bool = False) -> AsyncGenerator[LogLine, None]:
        """Yield new lines; with ``follow`` until the container ends.

        Yields nothing if the log is not available: the container has not started, the pod is
        deleted, or its node cannot be reached.
        """
        pod = self.pod
        status = self._main_status(pod) if pod is not None else None
        if pod is None or status is None or not _ever_ran(status):
            return
        self._switch_pod(pod)
        if status.restart_count > self._restarts:
            async for line in self._stream_lines(pod, previous=True):
                yield line
            self._restarts = status.restart_count
        running = status.state.running is not None
        async for line in self._stream_lines(pod, follow=follow and running):
            yield line

    def _main_status(self, pod: PodObject) -> ContainerStatus | None:
        return main_container_status(pod, self._watcher.framework.container)

    def _switch_pod(self, pod: PodObject) -> None:
        """Start at the beginning if this is a new pod."""
        if pod.metadata.uid == self._uid:
            return
        job = self._watcher.job
        recorded = 0
        if job is not None:
            record = job.status.record(self.replica)
            recorded = attempt_number(record, pod.metadata.uid)
        # The pod may be seen before the status update that counts it.
        self._attempt = max(recorded, self._attempt + 1 if self._uid else 0)
        self._uid = pod.metadata.uid
        self._last, self._equal, self._cut, self._restarts = 0, 0, 0, 0

    async def _stream_lines(
        self, pod: PodObject, *, follow: bool = False, previous: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        status = self._main_status(pod)
        stream = self._client.read_log(
            pod.metadata.name,
            namespace=pod.metadata.namespace,
            container=status.name if status else "",
            follow=follow,
            previous=previous,
            since=self._last,
        )
        to_skip = self._equal
        try:
            async with aclosing(stream) as lines:
                async for line in lines:
                    if line.time < self._last:
                        continue
                    if line.time == self._last and to_skip:
                        to_skip -= 1
                        if not to_skip and self._cut < len(line.data) and self._cut:
                            # The last line was returned without its end, which is there now.
                            yield self._make_line(line, begin=self._cut)
                            self._advance_past(line, counted=True)
                        continue
                    yield self._make_line(line)
                    # Only after the yield: a line whose consumer was cancelled is returned again.
                    self._advance_past(line)
        except (BadRequest, NotFound, TemporaryError):
            # Not started yet, deleted, or not reachable; the caller tries again.
            return

    def _make_line(self, line: PodLogLine, *, begin: int = 0) -> LogLine:
        data = line.data[begin:]
        return LogLine(
            self.replica, self._attempt, self._number, line.timestamp, data, whole=line.whole
        )

    def _advance_past(self, line: PodLogLine, *, counted: bool = False) -> None:
        if not counted:
            self._equal = self._equal + 1 if line.time == self._last else 1
        self._last = line.time
        self._cut = 0 if line.whole else len(line.data)
        self._number += 1


def _ever_ran(status: ContainerStatus) -> bool:
    """Return whether the container, or an earlier one of the same pod, has ever run."""
    state = status.state
    return bool(state.running or state.terminated or status.last_state.terminated)
