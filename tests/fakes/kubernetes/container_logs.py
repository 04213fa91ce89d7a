"""What containers have written, and reading it as a kubelet lets one read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

__all__ = ["ContainerLogs", "ContainerRun", "LogQuery", "LogUnavailable", "read_log"]

#: How often a log that is followed looks whether its container still runs.
_POLL_SECONDS = 0.02
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogUnavailable(Exception):
    """There is nothing to read, in a kubelet's words; answered as a bad request."""


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """How a container stands: ``run`` counts its starts from 0, and is that of the last one."""

    uid: str
    run: int = 0
    state: Literal["waiting", "running", "ended"] = "waiting"
    why: str = "ContainerCreating"


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What is asked for (core/v1 PodLogOptions).

    ``since`` is in whole seconds of the day's time, as the server hands it on.
    """

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None
    limit: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> LogQuery:
        """That of a request; raises :class:`ValueError` for values that are none."""
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
    """One run of a container: times in nanoseconds, and lines, the last of which may go on."""

    lines: list[tuple[int, bytearray]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class ContainerLogs:
    """The logs of all containers, by the pod's uid and the container's name, each run apart."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str, int], _LoggedRun] = {}

    def write(self, uid: str, container: str, data: bytes, *, run: int, now: datetime) -> None:
        """Add ``data`` to a run; a line that has no end yet goes on with the next data."""
        found = self.of(uid, container, run)
        since = now - _EPOCH
        time = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
        for part in _split_lines(data):
            if found.lines and not found.lines[-1][1].endswith(b"\n"):
                found.lines[-1][1].extend(part)
                continue
            # A runtime's times of one container never repeat.
            last = found.lines[-1][0] if found.lines else 0
            found.lines.append((max(time, last + 1), bytearray(part)))
        found.changed.set()
        found.changed = asyncio.Event()

    def of(self, uid: str, container: str, run: int) -> _LoggedRun:
        """One run, empty where nothing was written."""
        return self._runs.setdefault((uid, container, run), _LoggedRun())


def _split_lines(data: bytes) -> list[bytes]:
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


async def read_log(
    logs: ContainerLogs,
    container: str,
    query: LogQuery,
    standing: Callable[[], ContainerRun | None],
) -> AsyncIterator[bytes]:
    """The log of a container in pieces; with ``follow`` until its run has ended.

    ``standing`` tells how it stands now, None where its pod is gone. Raises
    :class:`LogUnavailable`, before the first piece.
    """
    stands = standing()
    number = _select_run(stands, container, query)
    assert stands is not None
    run = logs.of(stands.uid, container, number)
    reader = _LogReader(run, query)
    while not reader.full:
        # Asked for first: what a container wrote before its end is there when it has ended.
        goes_on = query.follow and _is_still_running(standing(), stands, number)
        changed = run.changed
        for piece in reader.pieces():
            yield piece
        if not goes_on:
            return
        await _wait_for_change(changed)


class _LogReader:
    """Where one who reads a run is: at a line, and ``inside`` it where that had no end yet."""

    def __init__(self, run: _LoggedRun, query: LogQuery) -> None:
        self._run = run
        self._stamps = query.timestamps
        self._left = query.limit
        self._at = _first_line(run, query)
        self._inside = 0

    @property
    def full(self) -> bool:
        """Whether all bytes were given that were asked for."""
        return self._left is not None and self._left <= 0

    def pieces(self) -> Iterator[bytes]:
        """What is there and was not given yet."""
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
    """Wait for more to read, or for when it is time to see whether the container still runs."""
    try:
        async with asyncio.timeout(_POLL_SECONDS):
            await changed.wait()
    except TimeoutError:
        return


def _select_run(stands: ContainerRun | None, container: str, query: LogQuery) -> int:
    """Which run is asked for (kubelet, validateContainerLogStatus)."""
    if stands is None:
        raise LogUnavailable("no such pod")
    if query.previous:
        if stands.run == 0:
            raise LogUnavailable(f'previous terminated container "{container}" not found')
        return stands.run - 1
    if stands.state == "waiting":
        raise LogUnavailable(f'container "{container}" is waiting to start: {stands.why}')
    return stands.run


def _first_line(run: _LoggedRun, query: LogQuery) -> int:
    """Where to begin: among the last ``tail`` lines, at the first that is not too old."""
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
