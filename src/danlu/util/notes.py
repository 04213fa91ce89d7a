"""Answers noted on disk by the question that they answer, for as long as they stay right."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from danlu.util.files import write_atomic

__all__ = ["note", "noted"]

T = TypeVar("T")


def noted(
    directory: Path, question: object, kind: type[T], *, seconds: float = float("inf")
) -> T | None:
    """What was noted in ``directory`` for ``question`` not longer than ``seconds`` ago."""
    path = _place(directory, question)
    try:
        age = time.time() - path.stat().st_mtime
        # A note from the future says that the clock was wrong, then or now.
        if not -1 <= age <= seconds:
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def note(
    directory: Path, question: object, answer: object, *, seconds: float = float("inf")
) -> None:
    """Note ``answer``, and forget what was noted there longer than ``seconds`` ago.

    Questions and answers are what :mod:`msgspec` encodes as JSON.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for other in directory.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - other.stat().st_mtime > seconds:
                other.unlink()
    write_atomic(_place(directory, question), msgspec.json.encode(answer), sync=False)


def _place(directory: Path, question: object) -> Path:
    text = msgspec.json.encode(question, order="sorted")
    return directory / f"{hashlib.sha256(text).hexdigest()}.json"
