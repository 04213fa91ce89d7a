"""The log of one container, line by line, as its kubelet returns it through the API server."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import msgspec

from danlu.kube.resources import PODS
from danlu.kube.transport import ApiRequest, Transport

MAX_LINE_BYTES = 64 << 10
"""A longer line is returned in several parts."""

#: A log that is followed is requested again after an hour; proxies end idle streams sooner anyway.
_FOLLOW_TIMEOUT = 3600.0
_READ_TIMEOUT = 300.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 1_000_000_000
_TIMESTAMP = re.compile(r"([-\d]+T[:\d]+)(?:\.(\d+))?(Z|[-+]\d\d:\d\d)")


class PodLogLine(msgspec.Struct, frozen=True):
    """A line of a log without its newline, or a part of a long line.

    Attributes:
        time: When the container runtime read the line, in nanoseconds since 1970. The times of one
            container never decrease.
        whole: False if the line continues, or the log ended before its newline.
    """

    time: int
    data: bytes
    whole: bool = True

    @property
    def timestamp(self) -> datetime:
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
    tail: int | None = None,
) -> AsyncGenerator[PodLogLine, None]:
    """Yield the lines of a container's log.

    Args:
        follow: Also yield new lines until the container ends.
        previous: Read the log of the container before its last restart.
        since: Skip lines before the second of this time (nanoseconds since 1970). The API has no
            finer resolution.
        tail: Skip all but the last lines.

    Raises:
        BadRequest: The container has not started yet.
        NotFound: The pod does not exist.
        ConnectionLost: The connection broke.
    """
    request = ApiRequest(
        method="GET",
        path=PODS.path(namespace=namespace, name=pod, subresource="log"),
        query={
            "container": container,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
            "sinceTime": _format_second(since) if since else "",
            "tailLines": "" if tail is None else str(tail),
            "timestamps": "true",
        },
        what=f"read the log of {pod}",
        seconds=_FOLLOW_TIMEOUT if follow else _READ_TIMEOUT,
    )
    async with transport.stream(request) as response:
        splitter = _LineSplitter()
        async for chunk in response.content.iter_any():
            for line in splitter.feed(chunk):
                yield line
        for line in splitter.flush():
            yield line


class _LineSplitter:
    """Splits bytes into log lines, each of which begins with a timestamp and a space."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._time = 0

    def feed(self, chunk: bytes) -> list[PodLogLine]:
        """Return the lines that ``chunk`` completes."""
        self._pending += chunk
        *lines, rest = bytes(self._pending).split(b"\n")
        result = [self._parse_line(line, whole=True) for line in lines]
        while len(rest) > (size := MAX_LINE_BYTES + self._stamp_length(rest)):
            result.append(self._parse_line(rest[:size], whole=False))
            rest = rest[size:]
        self._pending = bytearray(rest)
        return result

    def flush(self) -> list[PodLogLine]:
        """Return the bytes after the last newline."""
        return [self._parse_line(bytes(self._pending), whole=False)] if self._pending else []

    def _stamp_length(self, data: bytes) -> int:
        """Return the length of the timestamp and the space before the text of a line."""
        return 0 if self._time else data.find(b" ") + 1

    def _parse_line(self, data: bytes, *, whole: bool) -> PodLogLine:
        if self._time:
            # The rest of a long line, which has no timestamp.
            line = PodLogLine(self._time, data, whole)
        else:
            time, _, text = data.partition(b" ")
            line = PodLogLine(_parse_nanoseconds(time.decode(errors="replace")), text, whole)
        self._time = 0 if whole else line.time
        return line


def _parse_nanoseconds(text: str) -> int:
    """Parse an RFC 3339 time with nanoseconds and any time zone; return 0 if it is invalid."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return 0
    second = datetime.fromisoformat(match[1] + match[3])
    nanoseconds = int((match[2] or "").ljust(9, "0")[:9])
    return int((second - _EPOCH).total_seconds()) * _NANOS + nanoseconds


def _format_second(nanoseconds: int) -> str:
    return f"{_EPOCH + timedelta(seconds=nanoseconds // _NANOS):%Y-%m-%dT%H:%M:%SZ}"
