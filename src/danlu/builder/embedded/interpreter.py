"""The Python of an image, and the byte code that there is for it: what a start has to find.

Making it is :mod:`danlu.builder.embedded.ops.bytecode`, which a start does not import.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.oci.digest import DiffId
from danlu.store import Layer, Store

__all__ = ["Interpreter", "find_interpreter", "known_layers", "note_of"]

#: Raised by one when the form of a layer of byte code changes.
_VERSION = 1


class Interpreter(msgspec.Struct, frozen=True):
    """A Python of an image: its absolute path there, and what names this very build of it."""

    path: str
    key: str


def find_interpreter(store: Store, stack: Sequence[Layer], path: str) -> Interpreter:
    """The interpreter at ``path`` of the image made of ``stack``, lowest layer first.

    Its key is the hash of the program and of a shared libpython; computed once for a layer.
    Raises :class:`MachineError` where there is none.
    """
    layer, name = _locate(stack, path)
    note = f"interpreter:{_VERSION}:{layer.diff_id}:{name}"
    known = store.record(note)
    if known is None:
        known = {"key": _program_key(layer.tree, name)}
        store.put_record(note, known, layers=[layer.diff_id])
    return Interpreter(path, str(known["key"]))


def _locate(stack: Sequence[Layer], path: str) -> tuple[Layer, str]:
    """The layer that has the file ``path`` ends at, and its name there; links are followed."""
    name = os.path.normpath("/" + path).lstrip("/")
    for _ in range(40):
        for layer in reversed(stack):
            found = _entry(layer.tree, name)
            if found is None:
                continue
            if found == name and not (layer.tree / name).is_symlink():
                return layer, name
            link = os.readlink(layer.tree / found)
            rest = name[len(found) :]
            name = os.path.normpath(os.path.join("/", os.path.dirname(found), link)) + rest
            name = name.lstrip("/")
            break
        else:
            break
    raise MachineError(f"the image has no Python at {path}")


def _entry(tree: Path, name: str) -> str | None:
    """The longest part of ``name`` that a layer decides: a link on the way, or the file itself."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        part = "/".join(parts[:count])
        if (tree / part).is_symlink():
            return part
    return name if (tree / name).is_file() else None


def _program_key(tree: Path, name: str) -> str:
    digest = hashlib.sha256()
    program = tree / name
    libraries = sorted((program.parent.parent / "lib").glob("**/libpython3*.so*"))
    for file in (program, *libraries):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def note_of(layer: Layer, interpreter: str) -> str:
    """Under what the byte code of a wheel's layer is recorded, for the interpreter of that key."""
    return f"bytecode:{_VERSION}:{layer.diff_id}:{interpreter}"


def known_layers(store: Store, layers: Iterable[Layer], interpreter: str) -> list[Layer]:
    """The byte code that is there for ``layers`` and the interpreter of that key; for a start."""
    found = []
    for layer in layers:
        record = store.record(note_of(layer, interpreter))
        compiled = store.layer(DiffId(record["layer"])) if record and record["layer"] else None
        if compiled is not None:
            found.append(compiled)
    return found
