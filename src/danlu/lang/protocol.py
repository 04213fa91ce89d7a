"""The requests to an interpreter of build files and its reports, encoded as JSON.

Starlark is evaluated in a child process, so everything here can cross a pipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from danlu.lang.arg_types import ForeignValue, FunctionValue


class EvaluationLimits(msgspec.Struct, frozen=True):
    """The seconds (not counting waits for the loader) and bytes that an evaluation may use.

    A file that exceeds ``memory`` step by step is stopped with its line. A single step that asks
    for more than four times as much ends the interpreter, and the error has no line.
    """

    seconds: float = 10.0
    memory: int = 256 << 20


PYTHON_LIMITS = EvaluationLimits(seconds=60.0, memory=4 << 30)
"""For a ``build.py``: it is the user's own program and may import large libraries."""


class CallFrame(msgspec.Struct, frozen=True):
    """A frame of a call stack: the file as shown to the user, and the line, from 1.

    ``column`` (from 1) and ``end_column`` are 0 if the interpreter does not report them.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0


class FunctionCall(msgspec.Struct, frozen=True):
    """A call of a build function as the interpreter saw it, before anything is checked.

    ``frames`` are outermost first. ``commit`` is the one that an ``include`` was resolved to.
    """

    function: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    frames: tuple[CallFrame, ...]
    commit: str = ""


class SourceProvider(Protocol):
    """Everything that an interpreter may ask of the outside."""

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None if it does not exist."""
        ...

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        ...


class EvaluationFailure(msgspec.Struct, frozen=True):
    """Why the evaluation stopped.

    ``kind`` is ``raw`` (``message`` is the interpreter's), ``invalid`` (danlu's own, with a
    ``hint``), ``time``, ``memory``, ``died``, ``nofile`` or ``missing`` (no such build function).
    The last of ``frames`` is the location itself.
    """

    kind: str
    message: str
    hint: str = ""
    frames: tuple[CallFrame, ...] = ()


class SourceCalls(msgspec.Struct, frozen=True):
    """The calls of a build function whose result ``io.copy`` copies from.

    ``target`` is the function with its arguments, as in ``build(gpu=True)``.
    """

    function: str
    target: str
    calls: tuple[FunctionCall, ...]


class EvaluationResult(msgspec.Struct, frozen=True):
    """The calls in the order they were made, the failure if there was one, and what was printed.

    ``sources`` are the functions that it copies from, directly and indirectly.
    """

    calls: tuple[FunctionCall, ...]
    failure: EvaluationFailure | None = None
    printed: tuple[str, ...] = ()
    sources: tuple[SourceCalls, ...] = ()


def encode_result(result: EvaluationResult) -> dict[str, Any]:
    """Return the result as values that JSON can hold."""
    failure = result.failure
    return {
        "calls": _encode_calls(result.calls),
        "failure": failure
        and [failure.kind, failure.message, failure.hint, _encode_frames(failure.frames)],
        "printed": list(result.printed),
        "sources": [
            [source.function, source.target, _encode_calls(source.calls)]
            for source in result.sources
        ],
    }


def decode_result(data: Mapping[str, Any]) -> EvaluationResult:
    """Return the result that :func:`encode_result` encoded."""
    failure = data["failure"]
    return EvaluationResult(
        _decode_calls(data["calls"]),
        failure
        and EvaluationFailure(failure[0], failure[1], failure[2], _decode_frames(failure[3])),
        tuple(data["printed"]),
        tuple(
            SourceCalls(function, target, _decode_calls(calls))
            for function, target, calls in data["sources"]
        ),
    )


def _encode_calls(calls: tuple[FunctionCall, ...]) -> list[list[Any]]:
    return [
        [
            call.function,
            [_encode_value(value) for value in call.args],
            [[name, _encode_value(value)] for name, value in call.kwargs.items()],
            _encode_frames(call.frames),
            call.commit,
        ]
        for call in calls
    ]


def _decode_calls(data: list[list[Any]]) -> tuple[FunctionCall, ...]:
    return tuple(
        FunctionCall(
            function,
            tuple(_decode_value(value) for value in args),
            {name: _decode_value(value) for name, value in kwargs},
            _decode_frames(frames),
            commit,
        )
        for function, args, kwargs, frames, commit in data
    )


def _encode_frames(frames: tuple[CallFrame, ...]) -> list[list[Any]]:
    return [[frame.file, frame.line, frame.column, frame.end_column] for frame in frames]


def _decode_frames(frames: list[list[Any]]) -> tuple[CallFrame, ...]:
    return tuple(CallFrame(file, line, column, end) for file, line, column, end in frames)


def _encode_value(value: object) -> object:
    """Encode a Starlark value: ``d`` is a dictionary, ``n`` a float, ``b`` a build function, ``f``
    anything else.

    Dictionaries are lists of pairs, because their keys need not be texts; floats are texts, because
    JSON has no infinities.
    """
    if isinstance(value, (list, tuple)):
        return [_encode_value(item) for item in value]
    if isinstance(value, dict):
        return {"d": [[_encode_value(key), _encode_value(item)] for key, item in value.items()]}
    if isinstance(value, ForeignValue):
        return {"f": value.type}
    if isinstance(value, FunctionValue):
        return {"b": value.name}
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return {"n": repr(value)}
    return {"f": type(value).__name__}


def _decode_value(value: Any) -> object:
    if isinstance(value, list):
        return [_decode_value(item) for item in value]
    if isinstance(value, dict):
        if "d" in value:
            pairs = [(_decode_value(key), _decode_value(item)) for key, item in value["d"]]
            return {tuple(key) if isinstance(key, list) else key: item for key, item in pairs}
        if "b" in value:
            return FunctionValue(value["b"])
        return float(value["n"]) if "n" in value else ForeignValue(value["f"])
    return value
