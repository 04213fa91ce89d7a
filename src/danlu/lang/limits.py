"""How much an evaluation of a build file may take."""

from __future__ import annotations

import msgspec

__all__ = ["PYTHON_LIMITS", "Limits"]


class Limits(msgspec.Struct, frozen=True):
    """Seconds of an evaluation (not counting what it waits for) and bytes it may hold.

    A file is stopped at ``memory``, with its line, where it grows step by step; one step that
    asks for more than four times as much ends the interpreter, and names the function only.
    """

    seconds: float = 10.0
    memory: int = 256 << 20


PYTHON_LIMITS = Limits(seconds=60.0, memory=4 << 30)
"""For a ``build.py``: the user's own program, which may import what takes its time."""
