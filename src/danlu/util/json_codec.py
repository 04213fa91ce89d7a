"""Structs in JSON files, with paths as strings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from danlu.errors import UsageError
from danlu.util.decoding import prepare_type

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
    """Encode a value as JSON; paths become strings.

    Raises :class:`UsageError` for text that is not UTF-8: arguments and paths may be any bytes.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_to_json)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"not valid UTF-8 in an argument, a variable or a path: {error.object!r}",
            hint="rename it: container runtimes only accept UTF-8",
        ) from error


def decode(data: bytes, type: type[T]) -> T:
    """Decode a value encoded by :func:`encode`; raises :class:`msgspec.ValidationError`."""
    prepare_type(type)
    return msgspec.json.decode(data, type=type, dec_hook=_from_json)
