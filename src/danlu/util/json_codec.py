"""Structs in JSON files, with paths as strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def _to_json(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _from_json(type: type, value: Any) -> object:
    if type is Path:
        return Path(value)
    raise NotImplementedError(type.__name__)


def encode(value: object) -> bytes:
    """Encode a value as JSON; paths become strings."""
    return msgspec.json.encode(value, enc_hook=_to_json)


def decode(data: bytes, type: type[T]) -> T:
    """Decode a value encoded by :func:`encode`; raises :class:`msgspec.ValidationError`."""
    return msgspec.json.decode(data, type=type, dec_hook=_from_json)
