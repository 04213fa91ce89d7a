"""The log of one container, as its kubelet gives it through the API server, line by line."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import msgspec

from danlu.kube.resources import PODS
from danlu.kube.transport import Request, Transport

__all__ = ["LONGEST", "LogPiece", "read_log"]

LONGEST = 64 << 10
"""Bytes of a line that are given at once; a longer one comes in pieces."""

#: An hour, after which a log that is followed is asked for anew; idle ones end sooner elsewhere.
_FOLLOW_SECONDS = 3600.0
_SECONDS = 300.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 1_000_000_000
_TIME = re.compile(r"([-\d]+T[:\d]+)(?:\.(\d+))?(Z|[-+]\d\d:\d\d)")


class LogPiece(msgspec.Struct, frozen=True):
    """A line of a log without its newline, or a part of a long one.

    ``time`` is when the runtime read it, in nanoseconds since 1970; those of one container never
    go back. ``whole`` is False where the line goes on, or the log ended before its newline.
    """

    time: int
    data: bytes
    whole: bool = True

    @property
    def moment(self) -> datetime:
        """The time, to microseconds."""
        return _EPOCH + timedelta(microseconds=self.time // 1000)


async def read_log(
    transport: Transport,
    namespace: str,
    pod: str,
    *,
    container: str = "",
    follow: bool = False,
    previous: bool = False,
    since: int = 0,
) -> AsyncGenerator[LogPiece, None]:
    """Each line of the container's log; with ``follow`` those to come, until the container ends.

    ``previous`` is the log of the container before its last restart. Lines before the second of
    ``since`` (nanoseconds since 1970) are left out; servers cannot be asked more exactly. Raises
    :class:`~danlu.kube.failures.BadRequest` where the container has not started yet,
    :class:`NotFound` for no such pod, :class:`ConnectionLost` where the connection broke.
    """
    request = Request(
        method="GET",
        path=PODS.path(namespace=namespace, name=pod, subresource="log"),
        query={
            "container": container,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
            "sinceTime": _second(since) if since else "",
            "timestamps": "true",
        },
        what=f"read the log of {pod}",
        seconds=_FOLLOW_SECONDS if follow else _SECONDS,
    )
    async with transport.stream(request) as response:
        splitter = _Splitter()
        async for chunk in response.content.iter_any():
            for piece in splitter.fed(chunk):
                yield piece
        for piece in splitter.rest():
            yield piece


class _Splitter:
    """Makes pieces of bytes: each line begins with its time and a space."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._time = 0

    def fed(self, chunk: bytes) -> list[LogPiece]:
        """The pieces that are complete with ``chunk``."""
        self._pending += chunk
        *lines, rest = bytes(self._pending).split(b"\n")
        found = [self._line(one, whole=True) for one in lines]
        while len(rest) > LONGEST:
            found.append(self._line(rest[:LONGEST], whole=False))
            rest = rest[LONGEST:]
        self._pending = bytearray(rest)
        return found

    def rest(self) -> list[LogPiece]:
        """What came without a newline at the end."""
        return [self._line(bytes(self._pending), whole=False)] if self._pending else []

    def _line(self, line: bytes, *, whole: bool) -> LogPiece:
        if self._time:
            piece = LogPiece(self._time, line, whole)
        else:
            time, _, data = line.partition(b" ")
            piece = LogPiece(_nanoseconds(time.decode(errors="replace")), data, whole)
        self._time = 0 if whole else piece.time
        return piece


def _nanoseconds(text: str) -> int:
    """A time of a log (RFC 3339, with nanoseconds and any zone); 0 for what is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    whole = datetime.fromisoformat(match[1] + match[3])
    return int((whole - _EPOCH).total_seconds()) * _NANOS + int((match[2] or "").ljust(9, "0")[:9])


def _second(nanoseconds: int) -> str:
    return f"{_EPOCH + timedelta(seconds=nanoseconds // _NANOS):%Y-%m-%dT%H:%M:%SZ}"
