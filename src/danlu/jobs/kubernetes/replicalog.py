"""The log of one replica, over restarts in place, pods that replace one another, and broken
connections: each line once.

A log is asked for anew from the second of its last line on, for servers count no finer; of what
comes again as many lines are passed over as were given. Times of one container never go back, and
those of a container that takes the place of another in the same pod come after all of that one's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from danlu.errors import TemporaryError
from danlu.jobs.kubernetes.objects import ContainerStatus, PodObject
from danlu.jobs.kubernetes.sight import Sight
from danlu.jobs.kubernetes.views import attempt_of, main_status
from danlu.jobs.types import LogLine
from danlu.kube.client import Client
from danlu.kube.failures import BadRequest, NotFound
from danlu.kube.podlogs import LogPiece
from danlu.training.conversion import read_status
from danlu.training.types import ReplicaId

__all__ = ["ReplicaLog"]


class ReplicaLog:
    """Reads one replica's log on from where it was read to."""

    def __init__(self, client: Client, sight: Sight, replica: ReplicaId) -> None:
        self.replica = replica
        self._client = client
        self._sight = sight
        self._uid = ""
        self._attempt = 0
        self._number = 0
        # Of the last line given: its time, how many there were of that time, and how many of its
        # bytes were given where its end was not there yet.
        self._last = 0
        self._equal = 0
        self._cut = 0
        self._restarts = 0

    @property
    def pod(self) -> PodObject | None:
        """The replica's newest pod."""
        return self._sight.pods.get(self.replica)

    @property
    def running(self) -> bool:
        """Whether there is a container whose log may still grow."""
        pod = self.pod
        status = self._status(pod) if pod is not None else None
        return status is not None and status.state.running is not None

    async def read(self, *, follow: bool = False) -> AsyncGenerator[LogLine, None]:
        """Lines there are and were not given yet; with ``follow`` until the container ends.

        Nothing where none is to be had now: the container has not started, its pod is gone, or
        its node cannot be reached.
        """
        pod = self.pod
        status = self._status(pod) if pod is not None else None
        if pod is None or status is None or not _started(status):
            return
        self._take(pod)
        if status.restart_count > self._restarts:
            async for line in self._lines(pod, previous=True):
                yield line
            self._restarts = status.restart_count
        async for line in self._lines(pod, follow=follow and status.state.running is not None):
            yield line

    def _status(self, pod: PodObject) -> ContainerStatus | None:
        return main_status(pod, self._sight.framework.container)

    def _take(self, pod: PodObject) -> None:
        """Begin with a pod, where it is another than before."""
        if pod.metadata.uid == self._uid:
            return
        found = self._sight.job
        known = 0
        if found is not None:
            record = read_status(found.status).record(self.replica)
            known = attempt_of(record, pod.metadata.uid)
        # The pod may be known before the status that tells of it.
        self._attempt = max(known, self._attempt + 1 if self._uid else 0)
        self._uid = pod.metadata.uid
        self._last, self._equal, self._cut, self._restarts = 0, 0, 0, 0

    async def _lines(
        self, pod: PodObject, *, follow: bool = False, previous: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        status = self._status(pod)
        pieces = self._client.log(
            pod.metadata.name,
            namespace=pod.metadata.namespace,
            container=status.name if status else "",
            follow=follow,
            previous=previous,
            since=self._last,
        )
        again = self._equal
        try:
            async with aclosing(pieces) as stream:
                async for piece in stream:
                    if piece.time < self._last:
                        continue
                    if piece.time == self._last and again:
                        again -= 1
                        if not again and self._cut < len(piece.data) and self._cut:
                            yield self._line(piece, begin=self._cut)
                            self._given(piece, counted=True)
                        continue
                    yield self._line(piece)
                    # Only now it is with who reads: what was cancelled meanwhile is given again.
                    self._given(piece)
        except (BadRequest, NotFound, TemporaryError):
            # Not started yet, gone, or not to be reached: whoever reads looks again.
            return

    def _line(self, piece: LogPiece, *, begin: int = 0) -> LogLine:
        data = piece.data[begin:]
        return LogLine(
            self.replica, self._attempt, self._number, piece.moment, data, whole=piece.whole
        )

    def _given(self, piece: LogPiece, *, counted: bool = False) -> None:
        if not counted:
            self._equal = self._equal + 1 if piece.time == self._last else 1
        self._last = piece.time
        self._cut = 0 if piece.whole else len(piece.data)
        self._number += 1


def _started(status: ContainerStatus) -> bool:
    """Whether the container, or one before it in the same pod, has ever run."""
    state = status.state
    return bool(state.running or state.terminated or status.last_state.terminated)
