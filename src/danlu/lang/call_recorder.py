"""Record the calls of build functions while a ``build.py`` runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FrameType, FunctionType

from danlu.errors import UsageError
from danlu.lang.arg_types import FunctionValue
from danlu.lang.protocol import CallFrame, FunctionCall
from danlu.lang.source_files import CachingLoader, SourceFiles

_ACTIVE: ContextVar[CallRecorder | None] = ContextVar("danlu_recorder", default=None)


class CallRecorder:
    """The calls so far.

    ``files`` are the names under which the user's files were compiled, ``names`` are the global
    names of the build file.
    """

    def __init__(self, loader: CachingLoader, sources: SourceFiles) -> None:
        self.loader = loader
        self.sources = sources
        self.calls: list[FunctionCall] = []
        self.files: set[str] = set()
        self.names: Mapping[str, object] = {}

    def capture_frames(self) -> tuple[CallFrame, ...]:
        """Return the frames of the user's files on the current stack, outermost first."""
        frames = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename in self.files:
                frames.append(
                    locate_instruction(frame.f_code, frame.f_lasti, frame.f_lineno, self.sources)
                )
            frame = frame.f_back
        return tuple(reversed(frames))

    def record(
        self, function: str, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> FunctionCall:
        """Record a call with the stack that led to it."""
        given = {
            key: self._name_function(value) if isinstance(value, FunctionType) else value
            for key, value in kwargs.items()
        }
        call = FunctionCall(function, args, given, self.capture_frames())
        if not call.frames:
            raise UsageError(f"{function}() was not called from the build file")
        self.calls.append(call)
        return call

    def _name_function(self, function: FunctionType) -> FunctionValue:
        known = self.names.get(function.__name__) is function
        return FunctionValue(function.__name__ if known else "")

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Receive all calls made inside the context."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


def active_recorder(function: str) -> CallRecorder:
    """Return the active recorder. Raises :class:`UsageError` if there is none."""
    recorder = _ACTIVE.get()
    if recorder is None:
        raise UsageError(
            f"{function}() can only be called in a build function",
            hint="put the call into build.py and run `danlu build -f build.py`",
        )
    return recorder


def locate_instruction(
    code: CodeType, instruction: int, line: int | None, sources: SourceFiles
) -> CallFrame:
    """Return the frame of a bytecode instruction, with columns if the code has them."""
    file = code.co_filename
    start_line: int | None = line
    column = end = 0
    for index, position in enumerate(code.co_positions()):
        if index * 2 != instruction:
            continue
        first, last, start, stop = position
        if first is not None and start is not None:
            start_line = first
            column = _character_column(sources.line(file, first), start)
            if last == first and stop is not None:
                end = _character_column(sources.line(file, first), stop)
        break
    return CallFrame(file, start_line or 1, column, end)


def _character_column(text: str, offset: int) -> int:
    return len(text.encode()[:offset].decode(errors="ignore")) + 1
