"""Read the logs of a training job's hosts from CloudWatch, each line once and in order per host.

A host writes to a stream called ``NAME/algo-N-TIME``; each start of a job has new ones.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from danlu.jobs.types import MAX_LINE_BYTES, LogLine
from danlu.training.types import ReplicaId

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

#: Lines arrive seconds after they were printed: a finished job's log has ended when it was read
#: this many times without any.
_QUIET_READS = 2

Call = Callable[..., Awaitable[dict[str, Any]]]
"""Calls an operation of CloudWatch Logs; raises :class:`~danlu.util.aws.AwsError`."""


async def list_log_streams(call: Call, name: str) -> Sequence[Mapping[str, Any]]:
    """Return the streams of a job, as CloudWatch describes them."""
    found: list[Mapping[str, Any]] = []
    parameters = {"logGroupName": LOG_GROUP, "logStreamNamePrefix": f"{name}/"}
    while True:
        answer = await call("describe_log_streams", **parameters)
        found += answer.get("logStreams") or ()
        if not answer.get("nextToken"):
            return found
        parameters["nextToken"] = answer["nextToken"]


@dataclass
class _HostStream:
    replica: ReplicaId
    attempt: int
    token: str = ""
    is_read: bool = False
    """Whether it was at its end when it was read last."""


class JobLogReader:
    """Reads the logs of one job; ``hosts`` are its replicas by host, ``call`` is the service."""

    def __init__(self, call: Call, name: str, hosts: Mapping[str, ReplicaId]) -> None:
        self._call = call
        self._name = name
        self._hosts = hosts
        self._streams: dict[str, _HostStream] = {}
        self._counts: dict[ReplicaId, int] = {}

    async def read(
        self,
        replicas: Collection[ReplicaId],
        *,
        follow: bool,
        tail: int | None,
        is_finished: Callable[[], Awaitable[bool]],
        interval: float,
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of some replicas, or all; see :class:`danlu.jobs.types.JobBackend`."""
        if tail is None:
            async for line in self._read_to_end(replicas):
                yield line
        else:
            last: dict[ReplicaId, deque[LogLine]] = {}
            async for line in self._read_to_end(replicas):
                last.setdefault(line.replica, deque(maxlen=tail)).append(line)
            for line in _merge_lines([list(lines) for lines in last.values()]):
                yield line
        quiet = 0
        while follow and quiet < _QUIET_READS:
            await anyio.sleep(interval)
            # Before the lines, so that those are read that were printed until then.
            finished, found = await is_finished(), False
            async for line in self._read_to_end(replicas):
                found = True
                yield line
            quiet = quiet + 1 if finished and not found else 0

    async def _read_to_end(self, replicas: Collection[ReplicaId]) -> AsyncGenerator[LogLine, None]:
        """Yield what is new in all streams, a page of each at a time."""
        await self._find_streams()
        selected = {
            name: stream
            for name, stream in self._streams.items()
            if not replicas or stream.replica in replicas
        }
        for stream in selected.values():
            stream.is_read = False
        while unread := {name: each for name, each in selected.items() if not each.is_read}:
            pages = [await self._read_page(name, stream) for name, stream in unread.items()]
            for line in _merge_lines(pages):
                yield line

    async def _find_streams(self) -> None:
        pattern = re.compile(rf"{re.escape(self._name)}/(algo-\d+)-\d+")
        found: list[tuple[int, str, str]] = []
        for stream in await list_log_streams(self._call, self._name):
            match = pattern.fullmatch(str(stream["logStreamName"]))
            if match and match[1] in self._hosts:
                created = int(stream.get("creationTime") or 0)
                found.append((created, match[0], match[1]))
        attempts: dict[str, int] = {}
        for _, name, host in sorted(found):
            attempt = attempts.get(host, 0)
            attempts[host] = attempt + 1
            self._streams.setdefault(name, _HostStream(self._hosts[host], attempt))

    async def _read_page(self, name: str, stream: _HostStream) -> Sequence[LogLine]:
        token = {"nextToken": stream.token} if stream.token else {}
        answer = await self._call(
            "get_log_events",
            logGroupName=LOG_GROUP,
            logStreamName=name,
            startFromHead=True,
            **token,
        )
        # At the end of a stream the token stays the same; a page may be empty before.
        following = str(answer.get("nextForwardToken") or "")
        stream.is_read = following == stream.token or not following
        stream.token = following or stream.token
        return [line for event in answer["events"] for line in self._split_event(stream, event)]

    def _split_event(self, stream: _HostStream, event: Mapping[str, Any]) -> Sequence[LogLine]:
        time = datetime.fromtimestamp(int(event["timestamp"]) / 1000, UTC)
        lines = []
        for text in str(event["message"]).removesuffix("\n").split("\n"):
            data = text.encode(errors="replace")
            for start in range(0, max(len(data), 1), MAX_LINE_BYTES):
                part, whole = (
                    data[start : start + MAX_LINE_BYTES],
                    start + MAX_LINE_BYTES >= len(data),
                )
                number = self._counts.get(stream.replica, 0)
                self._counts[stream.replica] = number + 1
                lines.append(LogLine(stream.replica, stream.attempt, number, time, part, whole))
        return lines


def _merge_lines(pages: Sequence[Sequence[LogLine]]) -> Sequence[LogLine]:
    """Merge by time, keeping the order of each page."""
    latest: dict[ReplicaId, datetime] = {}
    keyed = []
    for page in pages:
        for line in page:
            # A clock that went back must not change the order of a replica's lines.
            latest[line.replica] = max(line.time, latest.get(line.replica, line.time))
            keyed.append((latest[line.replica], line.replica, line.number, line))
    return [line for *_, line in sorted(keyed)]
