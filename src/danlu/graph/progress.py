"""Progress events of a build."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

#: The branch of layers that are pushed or pulled, which are parts of another vertex.
LAYER_BRANCH = "layers"


class Started(msgspec.Struct, frozen=True):
    """A vertex started. ``time`` is in seconds since the start of the build, as in every event."""

    vertex: str
    name: str
    branch: str
    time: float


class Finished(msgspec.Struct, frozen=True):
    """A vertex ended. ``error`` is empty on success; ``size`` is that of its layers in bytes."""

    vertex: str
    name: str
    branch: str
    time: float
    seconds: float
    cached: bool
    size: int = 0
    error: str = ""


class Log(msgspec.Struct, frozen=True):
    """A line that the program of a vertex printed, without its line end."""

    vertex: str
    name: str
    line: str
    time: float


class Transfer(msgspec.Struct, frozen=True):
    """Bytes transferred for a vertex so far, or ``unit`` instead (``configured``).

    ``total`` is 0 if unknown.
    """

    vertex: str
    name: str
    current: int
    total: int
    time: float
    unit: str = ""


class Message(msgspec.Struct, frozen=True):
    """A line for the user that belongs to no vertex (``locked numpy 2.4.0``)."""

    text: str
    time: float


class Ended(msgspec.Struct, frozen=True):
    """The end of the progress output: the user's program gets the terminal next.

    A live display must be off the screen when the call returns.
    """

    time: float


Event = Started | Finished | Log | Transfer | Message | Ended

#: Called with each event from the thread that builds. Must not block.
Progress = Callable[[Event], None]
