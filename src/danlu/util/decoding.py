"""Decode JSON and convert values to structs, also from several threads at once.

msgspec reads the annotations of a struct when it is used for the first time, and crashes Python if
two threads do that at the same time. So it is done here, by one thread after another. A decoder
that a module makes when it is imported needs none of this.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_prepared: set[Any] = set()


def decode_json(data: bytes | str, type: type[T]) -> T:
    """Decode JSON; raises :class:`msgspec.DecodeError` or :class:`msgspec.ValidationError`."""
    prepare_type(type)
    return msgspec.json.decode(data, type=type)


def convert_value(value: object, type: type[T], *, strict: bool = True) -> T:
    """Convert plain values to ``type``; raises :class:`msgspec.ValidationError`."""
    prepare_type(type)
    return msgspec.convert(value, type, strict=strict)


def prepare_type(type: Any) -> None:
    """Make msgspec read the annotations of ``type``, once."""
    if type in _prepared:
        return
    with _lock:
        if type not in _prepared:
            msgspec.json.Decoder(type)
            _prepared.add(type)
