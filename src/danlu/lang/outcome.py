"""What an interpreter reports: the calls it saw, and how it ended.  All of it is plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from danlu.lang.calls import Call, Frame
from danlu.lang.kinds import Foreign

__all__ = ["Channel", "Failure", "Outcome", "decode", "encode"]


class Channel(Protocol):
    """What an interpreter may ask of the outside, and nothing else."""

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None where there is none."""
        ...

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        ...


class Failure(msgspec.Struct, frozen=True):
    """Why the evaluation stopped: the interpreter's words, or our own with a ``hint``.

    ``kind`` is ``raw`` (the interpreter's), ``ours``, ``time``, ``memory``, ``died``, ``nofile``
    or ``missing`` (no such build function). ``frames`` end with the place itself.
    """

    kind: str
    message: str
    hint: str = ""
    frames: tuple[Frame, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """The calls in the order they were made, the failure if there was one, what was printed."""

    calls: tuple[Call, ...]
    failure: Failure | None = None
    printed: tuple[str, ...] = ()
    value: object = None
    """What the function returned, where it was asked for."""


def encode(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as values that JSON can hold."""
    failure = outcome.failure
    return {
        "calls": [
            [
                call.function,
                [_encode(value) for value in call.args],
                [[name, _encode(value)] for name, value in call.kwargs.items()],
                _encode_frames(call.frames),
                call.commit,
            ]
            for call in outcome.calls
        ],
        "failure": failure
        and [failure.kind, failure.message, failure.hint, _encode_frames(failure.frames)],
        "printed": list(outcome.printed),
        "value": _encode(outcome.value),
    }


def decode(data: Mapping[str, Any]) -> Outcome:
    """Return what :func:`encode` was given."""
    failure = data["failure"]
    return Outcome(
        tuple(
            Call(
                function,
                tuple(_decode(value) for value in args),
                {name: _decode(value) for name, value in kwargs},
                _decode_frames(frames),
                commit,
            )
            for function, args, kwargs, frames, commit in data["calls"]
        ),
        failure and Failure(failure[0], failure[1], failure[2], _decode_frames(failure[3])),
        tuple(data["printed"]),
        _decode(data["value"]),
    )


def _encode_frames(frames: tuple[Frame, ...]) -> list[list[Any]]:
    return [[frame.file, frame.line, frame.column, frame.end_column] for frame in frames]


def _decode_frames(frames: list[list[Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, column, end) for file, line, column, end in frames)


def _encode(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {"d": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, Foreign):
        return {"f": value.type}
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return {"n": repr(value)}
    return {"f": type(value).__name__}


def _decode(value: Any) -> object:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        if "d" in value:
            return {_key(_decode(key)): _decode(item) for key, item in value["d"]}
        return float(value["n"]) if "n" in value else Foreign(value["f"])
    return value


def _key(key: object) -> object:
    return tuple(key) if isinstance(key, list) else key
