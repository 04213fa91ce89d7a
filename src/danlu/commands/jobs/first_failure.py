"""Correct the first failure of a job by what its replicas printed.

A job's status names the replica that *ended* first. But if one replica's error closes its
connections, the others can fail and end before it does. Its log is better evidence: the replica
whose traceback began first failed first. A program may close its connections before Python prints
the traceback, so an error that reports a lost connection only counts if no other follows soon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from danlu.jobs.types import JobBackend, JobView, LogLine, ReplicaView
from danlu.training.types import FirstFailure, ReplicaId

#: Ends that are further apart do not cause each other.
_MAX_DELAY_SECONDS = 5.0

#: Tracebacks of one replica that are further apart are not of one failure: the earlier was handled.
_MAX_GAP_SECONDS = 10.0

_MAX_REPLICAS = 32
_MAX_LINES_SEARCHED = 1000
_MAX_MESSAGE_LINES = 5
_MAX_MESSAGE_LENGTH = 200

# PyTorch prefixes each line of an uncaught exception with [rank0]:
_PREFIX = re.compile(r"^\[rank\d+\]: ?")

_BEGIN = re.compile(
    r"Traceback \(most recent call last\):|^Fatal Python error: |^terminate called |^panic: "
)

_STOPPED_BY_SIGNAL = ("KeyboardInterrupt", "SystemExit")

_LOST_CONNECTION = re.compile(
    r"Connection\w*Error|BrokenPipeError|EOFError|IncompleteReadError|UnavailableError"
    r"|ncclRemoteError|connection (was |has been )?(likely )?(closed|reset|refused|aborted|lost)"
    r"|broken pipe|socket closed|remote (process|peer|server)",
    re.IGNORECASE,
)


Key = TypeVar("Key", str, ReplicaId)


class ReplicaFailure(msgspec.Struct, frozen=True):
    """A replica that failed at ``time``: when its traceback began, or else when it ended.

    ``message`` is the error's first line. ``lost_connection`` is whether the error reports
    a lost connection, so that another replica may be its cause.
    """

    replica: ReplicaView
    time: datetime
    message: str = ""
    lost_connection: bool = False


async def correct_first_failure(jobs: JobBackend, view: JobView) -> JobView:
    """Return the view of a job with the first failure that the logs of its replicas show."""
    first = view.status.first_failure
    if first is None or first.time is None or not view.finished:
        return view
    # A replica that was stopped because another failed may have failed by itself before.
    ended = {
        replica.id: replica
        for replica in view.replicas
        if replica.state in ("Failed", "Stopped")
        and replica.finished is not None
        and abs((replica.finished - first.time).total_seconds()) <= _MAX_DELAY_SECONDS
    }
    ended = dict(list(ended.items())[:_MAX_REPLICAS])
    # If the first failure was an earlier attempt, the last attempts are not its consequences.
    if len(ended) < 2 or first.replica not in ended or ended[first.replica].attempt > first.attempt:
        return view
    lines: dict[ReplicaId, list[LogLine]] = {id: [] for id in ended}
    async for line in jobs.logs(view.name, replicas=list(ended), tail=_MAX_LINES_SEARCHED):
        if line.replica in ended and line.attempt == ended[line.replica].attempt:
            lines[line.replica].append(line)
    failures = [read_failure(replica, lines[id]) for id, replica in ended.items()]
    found = _choose_first_failure(first, [failure for failure in failures if failure is not None])
    status = msgspec.structs.replace(view.status, first_failure=found)
    return msgspec.structs.replace(view, status=status)


def _choose_first_failure(first: FirstFailure, failures: Sequence[ReplicaFailure]) -> FirstFailure:
    by_id = {failure.replica.id: failure for failure in failures}
    if first.replica not in by_id:
        return first
    cause = by_id[
        find_cause(
            {id: (found.time.timestamp(), found.lost_connection) for id, found in by_id.items()}
        )
    ]
    if cause.replica.id == first.replica:
        return first
    found = FirstFailure(cause.replica.id, attempt=cause.replica.attempt, time=cause.time)
    if cause.replica.state == "Stopped":  # its exit code may be that of the stop signal
        return msgspec.structs.replace(found, message=cause.message or "it printed a traceback")
    return msgspec.structs.replace(
        found, exit_code=cause.replica.exit_code, reason=cause.replica.reason
    )


def find_cause(failures: Mapping[Key, tuple[float, bool]]) -> Key:
    """Return which of several failures caused the others.

    Each is a Unix time, and whether the error reports a lost connection. The earliest is the cause,
    unless it reports a lost connection and within seconds another failed for another reason.
    """
    earliest = min(time for time, _ in failures.values())
    soon = {
        key: time
        for key, (time, lost_connection) in failures.items()
        if not lost_connection and time - earliest <= _MAX_DELAY_SECONDS
    }
    times = soon or {key: time for key, (time, _) in failures.items()}
    return min(times, key=lambda key: (times[key], str(key)))


def is_lost_connection(message: str) -> bool:
    """Return whether an error (``ConnectionResetError: …``) reports a lost connection."""
    return _LOST_CONNECTION.search(message) is not None


def read_failure(replica: ReplicaView, lines: Sequence[LogLine]) -> ReplicaFailure | None:
    """Return how an attempt failed, by its log; None if it was stopped before it failed."""
    texts = [_PREFIX.sub("", line.data.decode(errors="replace")) for line in lines]
    begins = [index for index, text in enumerate(texts) if _BEGIN.search(text)]
    if not begins:
        stopped = replica.state == "Stopped" or replica.finished is None
        return None if stopped else ReplicaFailure(replica, replica.finished or lines[-1].time)
    begin = begins.pop()
    while begins and _seconds_between(lines[begins[-1]], lines[begin]) <= _MAX_GAP_SECONDS:
        begin = begins.pop()
    message = _error_lines(texts[begin:])
    if replica.state == "Stopped" and "".join(message[:1]).startswith(_STOPPED_BY_SIGNAL):
        return None
    return ReplicaFailure(
        replica,
        lines[begin].time,
        message[0][:_MAX_MESSAGE_LENGTH] if message else "",
        any(map(is_lost_connection, message)),
    )


def _seconds_between(earlier: LogLine, later: LogLine) -> float:
    return (later.time - earlier.time).total_seconds()


def _error_lines(texts: Sequence[str]) -> list[str]:
    """Return the first lines after a traceback's frames, which are indented."""
    for index, text in enumerate(texts[1:], 1):
        if text and not text[0].isspace():
            found = texts[index : index + _MAX_MESSAGE_LINES]
            blank = next((end for end, text in enumerate(found) if not text.strip()), len(found))
            return list(found[:blank])
    return [] if texts[0].startswith("Traceback") else list(texts[:1])
