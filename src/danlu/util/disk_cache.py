"""Cache JSON answers on disk, by their question, until they expire."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from danlu.util.decoding import decode_json
from danlu.util.files import write_atomic

T = TypeVar("T")


def read_cache(
    directory: Path, question: object, kind: type[T], *, seconds: float = float("inf")
) -> T | None:
    """Return what was cached in ``directory`` for ``question`` at most ``seconds`` ago, or None."""
    path = _entry_path(directory, question)
    try:
        age = time.time() - path.stat().st_mtime
        # An entry from the future means that the clock was wrong, then or now.
        if not -1 <= age <= seconds:
            return None
        return decode_json(path.read_bytes(), kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_cache(
    directory: Path, question: object, answer: object, *, seconds: float = float("inf")
) -> None:
    """Cache ``answer`` for ``question``, and remove entries older than ``seconds``.

    Questions and answers must be encodable as JSON by :mod:`msgspec`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for other in directory.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - other.stat().st_mtime > seconds:
                other.unlink()
    write_atomic(_entry_path(directory, question), msgspec.json.encode(answer), sync=False)


def _entry_path(directory: Path, question: object) -> Path:
    text = msgspec.json.encode(question, order="sorted")
    return directory / f"{hashlib.sha256(text).hexdigest()}.json"
