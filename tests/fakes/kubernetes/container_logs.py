"""Logs that containers have written, read the way a kubelet serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

__all__ = ["ContainerLogs", "ContainerRun", "LogQuery", "LogUnavailable", "read_log"]

#: How often a followed log checks whether its container still runs.
_POLL_SECONDS = 0.02
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogUnavailable(Exception):
    """No log to read, with the kubelet's message; answered as a bad request."""


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """The latest run of a container; ``run`` counts its starts from 0."""

    uid: str
    run: int = 0
    state: Literal["waiting", "running", "ended"] = "waiting"
    why: str = "ContainerCreating"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The query of a log request (core/v1 PodLogOptions).

    ``since`` is in whole seconds of the time of day, as the API server passes it on.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None
    limit: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> LogQuery:
        """Parse the query of a request; raises :class:`ValueError` for invalid values."""
        since = None
        if text := query.get("sinceTime"):
            # Only seconds reach the kubelet (kubernetes, pkg/registry/core/pod/strategy.go).
            since = datetime.fromisoformat(text).replace(microsecond=0)
        elif text := query.get("sinceSeconds"):
            since = now - timedelta(seconds=int(text))
        tail, limit = query.get("tailLines"), query.get("limitBytes")
        return cls(
            follow=query.get("follow") in ("true", "1"),
            previous=query.get("previous") in ("true", "1"),
            timestamps=query.get("timestamps") in ("true", "1"),
            since=since,
            tail=int(tail) if tail else None,
            limit=int(limit) if limit else None,
        )


@dataclass(slots=True)
class _LoggedRun:
    """One run of a container: its lines, the last maybe partial, and their times in ns."""

    lines: list[tuple[int, bytearray]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ContainerLogs:
    """The logs of all containers, by the pod's uid, the container's name and the run."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str, int], _LoggedRun] = {}

    def write(self, uid: str, container: str, data: bytes, *, run: int, now: datetime) -> None:
        """Append ``data`` to a run; a partial last line is continued."""
        result = self.of(uid, container, run)
        since = now - _EPOCH
        time = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
        for part in _split_lines(data):
            if result.lines and not result.lines[-1][1].endswith(b"\n"):
                result.lines[-1][1].extend(part)
                continue
            # A container runtime never writes the same time twice for one container.
            last = result.lines[-1][0] if result.lines else 0
            result.lines.append((max(time, last + 1), bytearray(part)))
        result.changed.set()
        result.changed = asyncio.Event()

    def of(self, uid: str, container: str, run: int) -> _LoggedRun:
        """Return a run; empty if nothing was written."""
        return self._runs.setdefault((uid, container, run), _LoggedRun())


def _split_lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


async def read_log(
    logs: ContainerLogs,
    container: str,
    query: LogQuery,
    find_run: Callable[[], ContainerRun | None],
) -> AsyncIterator[bytes]:
    """Yield the log of a container in chunks; with ``follow`` until its run has ended.

    ``find_run`` returns the current run of the container, None if its pod is gone.

    Raises :class:`LogUnavailable` before the first chunk if there is no log.
    """
    current = find_run()
    number = _select_run(current, container, query)
    assert current is not None
    run = logs.of(current.uid, container, number)
    reader = _LogReader(run, query)
    while not reader.full:
        # Get the state first: if the run has ended by then, its whole output can be read.
        is_running = query.follow and _is_still_running(find_run(), current, number)
        changed = run.changed
        for piece in reader.pieces():
            yield piece
        if not is_running:
            return
        await _wait_for_change(changed)


class _LogReader:
    """The position of a reader in a run: a line, and an offset ``inside`` a partial one."""

    def __init__(self, run: _LoggedRun, query: LogQuery) -> None:
        self._run = run
        self._stamps = query.timestamps
        self._left = query.limit
        self._at = _first_line(run, query)
        self._inside = 0

    @property
    def full(self) -> bool:
        """Whether the byte limit of the query is reached."""
        return self._left is not None and self._left <= 0

    def pieces(self) -> Iterator[bytes]:
        """Yield the output since the last call."""
        lines = self._run.lines
        while self._at < len(lines) and not self.full:
            time, line = lines[self._at]
            piece = bytes(line[self._inside :])
            if piece and not self._inside and self._stamps:
                piece = _format_stamp(time) + piece
            if self._left is not None:
                piece = piece[: self._left]
                self._left -= len(piece)
            if piece:
                yield piece
            if not line.endswith(b"\n"):
                self._inside = len(line)
                return
            self._at, self._inside = self._at + 1, 0


async def _wait_for_change(changed: asyncio.Event) -> None:
    """Wait for more lines, or until it is time to check whether the container still runs."""
    try:
        async with asyncio.timeout(_POLL_SECONDS):
            await changed.wait()
    except TimeoutError:
        return


def _select_run(current: ContainerRun | None, container: str, query: LogQuery) -> int:
    """Return the requested run (kubelet, validateContainerLogStatus)."""
    if current is None:
        raise LogUnavailable("no such pod")
    if query.previous:
        if current.run == 0:
            raise LogUnavailable(f'previous terminated container "{container}" not found')
        return current.run - 1
    if current.state == "waiting":
        raise LogUnavailable(f'container "{container}" is waiting to start: {current.why}')
    return current.run


def _first_line(run: _LoggedRun, query: LogQuery) -> int:
    """Return the index of the first of the last ``tail`` lines that is recent enough."""
    begin = max(0, len(run.lines) - query.tail) if query.tail is not None else 0
    if query.since is None:
        return begin
    oldest = int((query.since - _EPOCH).total_seconds()) * 10**9
    fresh = (at for at in range(begin, len(run.lines)) if run.lines[at][0] >= oldest)
    return next(fresh, len(run.lines))


def _is_still_running(now: ContainerRun | None, then: ContainerRun, number: int) -> bool:
    return now is not None and (now.uid, now.run) == (then.uid, number) and now.state == "running"


def _format_stamp(time: int) -> bytes:
    seconds, nanoseconds = divmod(time, 10**9)
    moment = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{nanoseconds:09d}Z ".encode()
