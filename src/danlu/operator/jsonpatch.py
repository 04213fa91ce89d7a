"""Changes to a document as others write them: JSON Patch (RFC 6902) with JSON Pointers (RFC 6901).

Pure: what is changed is a copy, all operations or none.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from danlu.kube.types import Document

__all__ = ["Operation", "PatchError", "patched"]

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class PatchError(ValueError):
    """A patch that cannot be applied; says which operation, not what is in the document."""


class Operation(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """One operation; ``path`` and ``source`` are pointers (``/spec/containers/0``)."""

    op: Literal["add", "remove", "replace", "move", "copy", "test"]
    path: str
    value: Any = msgspec.UNSET
    source: str | None = None


def patched(document: Document, operations: Sequence[Operation]) -> Document:
    """``document`` after all ``operations``; raises :class:`PatchError`."""
    holder: Document = {"": copy.deepcopy(document)}
    for number, operation in enumerate(operations):
        try:
            _apply(holder, operation)
        except PatchError as error:
            raise PatchError(f"operation {number} ({operation.op}): {error}") from error
    found = holder.get("")
    if not isinstance(found, dict):
        raise PatchError("nothing is left of the document")
    return found


def _apply(holder: Document, operation: Operation) -> None:
    path = _steps(operation.path)
    match operation.op:
        case "add":
            _add(holder, path, _value(operation))
        case "remove":
            _remove(holder, path)
        case "replace":
            _remove(holder, path)
            _add(holder, path, _value(operation))
        case "move":
            source = _source(operation)
            if path[: len(source)] == source and path != source:
                raise PatchError("a value cannot be moved into itself")
            _add(holder, path, _remove(holder, source))
        case "copy":
            _add(holder, path, copy.deepcopy(_get(holder, _source(operation))))
        case "test":
            if not _same(_get(holder, path), _value(operation)):
                raise PatchError(f"{operation.path} is something else")


def _steps(pointer: str) -> list[str]:
    """The names from the holder of the document down."""
    if pointer and not pointer.startswith("/"):
        raise PatchError("a path begins with '/'")
    return [one.replace("~1", "/").replace("~0", "~") for one in pointer.split("/")]


def _value(operation: Operation) -> Any:
    if operation.value is msgspec.UNSET:
        raise PatchError("value is missing")
    return copy.deepcopy(operation.value)


def _source(operation: Operation) -> list[str]:
    if operation.source is None:
        raise PatchError("from is missing")
    return _steps(operation.source)


def _get(holder: Document, steps: Sequence[str]) -> Any:
    found: Any = holder
    for step in steps:
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and _INDEX.fullmatch(step) and int(step) < len(found):
            found = found[int(step)]
        else:
            raise PatchError(f"there is no {'/'.join(steps)}")
    return found


def _add(holder: Document, steps: Sequence[str], value: Any) -> None:
    parent, last = _get(holder, steps[:-1]), steps[-1]
    if isinstance(parent, dict):
        parent[last] = value
        return
    end = len(parent) if isinstance(parent, list) else -1
    index = end if last == "-" else int(last) if _INDEX.fullmatch(last) else end + 1
    if not isinstance(parent, list) or index > end:
        raise PatchError(f"nothing can be added at {'/'.join(steps)}")
    parent.insert(index, value)


def _remove(holder: Document, steps: Sequence[str]) -> Any:
    found = _get(holder, steps)
    parent, last = _get(holder, steps[:-1]), steps[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return found


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON: true is not 1."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
