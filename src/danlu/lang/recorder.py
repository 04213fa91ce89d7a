"""Who listens to the functions of the language while a ``build.py`` runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType

from danlu.errors import UsageError
from danlu.lang.calls import Call, Frame
from danlu.lang.desk import Desk
from danlu.lang.sources import Sources

__all__ = ["Recorder", "active", "place"]

_ACTIVE: ContextVar[Recorder | None] = ContextVar("danlu_recorder", default=None)


class Recorder:
    """The calls made so far; ``files`` are the names under which the user's files were compiled."""

    def __init__(self, desk: Desk, sources: Sources) -> None:
        self.desk = desk
        self.sources = sources
        self.calls: list[Call] = []
        self.files: set[str] = set()

    def frames(self) -> tuple[Frame, ...]:
        """Return the present stack of the user's own frames, outermost first."""
        found = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename in self.files:
                found.append(place(frame.f_code, frame.f_lasti, frame.f_lineno, self.sources))
            frame = frame.f_back
        return tuple(reversed(found))

    def record(self, function: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call:
        """Note a call where it stands."""
        call = Call(function, args, dict(kwargs), self.frames())
        if not call.frames:
            raise UsageError(f"{function}() was not called from the build file")
        self.calls.append(call)
        return call

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Be the one who is told of calls."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


def active(function: str) -> Recorder:
    """Return the recorder that listens; ``function`` is named in the error without one."""
    recorder = _ACTIVE.get()
    if recorder is None:
        raise UsageError(
            f"{function}() describes an environment, and none is being described",
            hint="call it in a build function: `danlu build -f build.py` runs it",
        )
    return recorder


def place(code: CodeType, instruction: int, line: int | None, sources: Sources) -> Frame:
    """Return the place of an instruction, with columns where the code has them."""
    file = code.co_filename
    start_line: int | None = line
    column = end = 0
    for index, position in enumerate(code.co_positions()):
        if index * 2 != instruction:
            continue
        first, last, start, stop = position
        if first is not None and start is not None:
            start_line = first
            column = _character(sources.line(file, first), start)
            if last == first and stop is not None:
                end = _character(sources.line(file, first), stop)
        break
    return Frame(file, start_line or 1, column, end)


def _character(text: str, offset: int) -> int:
    return len(text.encode()[:offset].decode(errors="ignore")) + 1
