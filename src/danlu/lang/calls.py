"""A call of a function of the table, as the interpreter saw it, before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

__all__ = ["Call", "Frame"]


class Frame(msgspec.Struct, frozen=True):
    """A place that a call came through: file as shown to the user, 1-based line.

    ``column`` (1-based) and ``end_column`` are 0 where the interpreter does not tell them.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0


class Call(msgspec.Struct, frozen=True):
    """A call: the function's full name, its arguments, and its frames, outermost first."""

    function: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    frames: tuple[Frame, ...]
    commit: str = ""
    """For ``include``: the commit that was read."""
