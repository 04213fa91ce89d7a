"""Explain the first failure of a job by what its replicas printed: which replica, and why.

A job's status names the replica that *ended* first. But if one replica's error closes its
connections, the others can fail and end before it does. Its log is better evidence: the replica
whose traceback began first failed first. A program may close its connections before Python prints
the traceback, so an error that reports a lost connection only counts if no other follows soon.

An exit code does not say why either: the exception with which the attempt ended, and the line of
the user's file, are the message of the first failure. Programs that print no traceback (shell
tools, argument parsers) mostly say why in their last line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from danlu.errors import DanluError
from danlu.jobs.types import JobBackend, JobView, LogLine, ReplicaView
from danlu.training.types import FirstFailure, ReplicaId
from danlu.util.sanitize import strip_control_sequences

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

# Python prints a syntax error of the program itself without "Traceback".
_BEGIN = re.compile(
    r"Traceback \(most recent call last\):|^Fatal Python error: |^terminate called |^panic: "
    r'|^  File "[^"]+", line \d+$'
)

#: The traceback that follows is of the same error. The last of a chain is what ended the program.
_CHAINED = re.compile(
    r"^(During handling of the above exception|The above exception was the direct cause)"
    r"|^Original Traceback "  # of a worker process of PyTorch's DataLoader
)

#: Tracebacks after which the program goes on.
_HARMLESS = re.compile(r"^(Exception ignored in|--- Logging error ---)")

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)')

#: Frames of libraries, and of code that is not in a file.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<")


#: Exit codes of programs that were not ended by a signal (a shell adds 128 to its number).
_PROGRAM_CODES = range(1, 128)

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

    ``message`` is the first line of the error with which it ended, and the line of the user's file
    that raised it. ``lost_connection`` is whether the error reports a lost connection, so that
    another replica may be its cause. ``line`` is where the traceback begins in the log.
    """

    replica: ReplicaView
    time: datetime
    message: str = ""
    lost_connection: bool = False
    line: LogLine | None = None


async def explain_first_failure(
    jobs: JobBackend, view: JobView, *, last_line: bool = False
) -> JobView:
    """Return the view of a job with the first failure, and its message, that the logs show.

    ``last_line`` is for callers that show no lines of the log themselves.
    """
    first = view.status.first_failure
    if first is None or first.time is None or not view.finished:
        return view
    attempts = _list_ended_attempts(view, first, first.time)
    lines: dict[ReplicaId, list[LogLine]] = {id: [] for id in attempts}
    try:
        async for line in jobs.logs(view.name, replicas=list(attempts), tail=_MAX_LINES_SEARCHED):
            if line.replica in attempts and line.attempt == attempts[line.replica].attempt:
                lines[line.replica].append(line)
    except DanluError:
        return view  # such as for a user who may read jobs of a cluster, but no logs
    failures = [read_failure(replica, lines[id]) for id, replica in attempts.items()]
    found = _choose_first_failure(first, [failure for failure in failures if failure is not None])
    if last_line and not found.message and found.replica in attempts:
        words = _find_last_line(attempts[found.replica], lines[found.replica])
        found = msgspec.structs.replace(found, message=words)
    status = msgspec.structs.replace(view.status, first_failure=found)
    return msgspec.structs.replace(view, status=status)


def _list_ended_attempts(
    view: JobView, first: FirstFailure, time: datetime
) -> dict[ReplicaId, ReplicaView]:
    """Return the attempts that ended at about the time of the first failure, with this one."""
    # A replica that was stopped because another failed may have failed by itself before.
    ended = [
        replica
        for replica in view.replicas
        if replica.state in ("Failed", "Stopped")
        and replica.finished is not None
        and abs((replica.finished - time).total_seconds()) <= _MAX_DELAY_SECONDS
    ]
    attempts = {replica.id: replica for replica in ended[:_MAX_REPLICAS]}
    last = attempts.get(first.replica)
    # If the first failure was an earlier attempt, the last attempts are not its consequences.
    if last is None or last.attempt > first.attempt:
        last = ReplicaView(
            first.replica,
            "Failed",
            attempt=first.attempt,
            exit_code=first.exit_code,
            reason=first.reason,
            finished=time,
        )
        return {last.id: last}
    return attempts


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
        return msgspec.structs.replace(first, message=cause.message or first.message)
    found = FirstFailure(
        cause.replica.id, attempt=cause.replica.attempt, message=cause.message, time=cause.time
    )
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
    begins = [
        index
        for index, text in enumerate(texts)
        if _BEGIN.search(text) and not (index and _HARMLESS.search(texts[index - 1]))
    ]
    if not begins:
        stopped = replica.state == "Stopped" or replica.finished is None
        return None if stopped else ReplicaFailure(replica, replica.finished or lines[-1].time)
    begin = last = begins.pop()
    while begins and _seconds_between(lines[begins[-1]], lines[begin]) <= _MAX_GAP_SECONDS:
        begin = begins.pop()
    message = _error_lines(texts[begin:])
    if replica.state == "Stopped" and "".join(message[:1]).startswith(_STOPPED_BY_SIGNAL):
        return None
    ended = replica.finished or lines[-1].time
    late = (ended - lines[last].time).total_seconds() > _MAX_GAP_SECONDS  # it went on after it
    return ReplicaFailure(
        replica,
        lines[begin].time,
        "" if late else _describe_error(texts[begin:]),
        any(map(is_lost_connection, message)),
        lines[begin],
    )


async def find_failure_line(jobs: JobBackend, view: JobView) -> LogLine | None:
    """Return the line of the log that explains the first failure, None if no replica failed.

    That is where the traceback of the replica that failed first begins, or else its last line.
    """
    first = (await explain_first_failure(jobs, view)).status.first_failure
    if first is None:
        return None
    lines = [
        line
        async for line in jobs.logs(view.name, replicas=[first.replica], tail=_MAX_LINES_SEARCHED)
        if line.attempt == first.attempt
    ]
    if not lines:
        return None
    ended = ReplicaView(
        first.replica, "Failed", attempt=first.attempt, finished=first.time or lines[-1].time
    )
    failure = read_failure(ended, lines)
    return failure.line or lines[-1] if failure is not None else lines[-1]


def _seconds_between(earlier: LogLine, later: LogLine) -> float:
    return (later.time - earlier.time).total_seconds()


def _find_last_line(replica: ReplicaView, lines: Sequence[LogLine]) -> str:
    """Say what a program printed last, if it chose its exit code itself."""
    if replica.exit_code not in _PROGRAM_CODES:
        return ""
    texts = (
        strip_control_sequences(line.data.decode(errors="replace")).strip()
        for line in reversed(lines)
    )
    last = next(filter(None, texts), "")[:_MAX_MESSAGE_LENGTH]
    return f"it last printed: {last}" if last else ""


def _describe_error(texts: Sequence[str]) -> str:
    """Return ``ValueError: no (line 12 of train.py)`` for the error that ``texts`` begin with.

    Of chained exceptions it is the last one, which ended the program.
    """
    start, chained = 0, False
    for index, text in enumerate(texts[1:], 1):
        if _CHAINED.search(text):
            chained = True
        if _BEGIN.search(text):
            if not chained:
                break
            start, chained = index, False
    error = _error_lines(texts[start:])
    if not error:
        return ""
    message = strip_control_sequences(error[0].strip())[:_MAX_MESSAGE_LENGTH]
    frames = [
        frame.groups()
        for text in texts[start : texts.index(error[0], start)]
        if (frame := _FRAME.search(text)) is not None
    ]
    own = [(file, line) for file, line in frames if not _LIBRARY.search(file)]
    if not own:
        return message
    file, line = own[-1]
    return f"{message} (line {line} of {strip_control_sequences(file).rpartition('/')[2]})"


def _error_lines(texts: Sequence[str]) -> list[str]:
    """Return the first lines after a traceback's frames, which are indented."""
    for index, text in enumerate(texts[1:], 1):
        if text and not text[0].isspace():
            found = texts[index : index + _MAX_MESSAGE_LINES]
            blank = next((end for end, text in enumerate(found) if not text.strip()), len(found))
            return list(found[:blank])
    return [] if texts[0].startswith(("Traceback", " ")) else list(texts[:1])
