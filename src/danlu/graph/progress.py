"""Progress events: what a builder tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

__all__ = ["Ended", "Event", "Finished", "Log", "Message", "Progress", "Started", "Transfer"]


class Started(msgspec.Struct, frozen=True):
    """A vertex began. ``time`` is seconds since the build began, as in every event."""

    vertex: str
    name: str
    branch: str
    time: float


class Finished(msgspec.Struct, frozen=True):
    """A vertex ended; ``error`` is empty when it went well, ``size`` the bytes its layer holds."""

    vertex: str
    name: str
    branch: str
    time: float
    seconds: float
    cached: bool
    size: int = 0
    error: str = ""


class Log(msgspec.Struct, frozen=True):
    """A line (without its end) that a vertex's program printed."""

    vertex: str
    name: str
    line: str
    time: float


class Transfer(msgspec.Struct, frozen=True):
    """Bytes that moved for a vertex so far; ``total`` is 0 where it is unknown."""

    vertex: str
    name: str
    current: int
    total: int
    time: float


class Message(msgspec.Struct, frozen=True):
    """Something worth a line that belongs to no vertex (``locked numpy 2.4.0``)."""

    text: str
    time: float


class Ended(msgspec.Struct, frozen=True):
    """Nothing more is to be shown: what follows (a user's program) has the terminal to itself.

    Whoever draws has taken its drawing off the screen when the call returns.
    """

    time: float


Event = Started | Finished | Log | Transfer | Message | Ended

#: Called with each event, from the thread that builds; must not block.
Progress = Callable[[Event], None]
