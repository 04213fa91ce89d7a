"""The little of HTTP/1.1 that a server of small posts needs, with a limit on everything.

One request a connection (RFC 9112): a request line, headers, a body of a stated length. What it
cannot read it refuses and closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from danlu.training.progress import LIMIT

__all__ = ["HEADER_LIMIT", "Reply", "Request", "answer"]

HEADER_LIMIT = 16 << 10
"""The ``limit`` of the stream: bytes of a request line and its headers at most."""
_SECONDS = 10.0
"""For a whole request, as the original's read timeout."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked; names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def bearer(self) -> str:
        """The token of the Authorization header (RFC 6750), empty where there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: a status code and a JSON body."""

    code: int
    body: bytes = b""


class _Refused(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


async def answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Callable[[Request], Reply],
) -> None:
    """Read one request within 10 s, answer it with what ``handle`` says, and close.

    A client that goes away, or is too slow to say what it wants, gets nothing.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            try:
                reply = handle(await _read(reader, writer))
            except _Refused as refused:
                reply = Reply(refused.code)
            writer.write(_written(reply))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        pass


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _Refused(431) from error
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(400)
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    size = _size(headers)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(words[0], words[1], headers, await reader.readexactly(size))


def _size(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise _Refused(411)
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise _Refused(400)
    # Digits first: int() of a text of any length would take its time.
    if len(text) > 9 or int(text) > LIMIT:
        raise _Refused(413)
    return int(text)


def _written(reply: Reply) -> bytes:
    head = (
        f"HTTP/1.1 {reply.code} {HTTPStatus(reply.code).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(reply.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + reply.body
