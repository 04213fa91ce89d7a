"""Bytecode of wheels: which layers of it an image can use when it starts.

Compiling it is :mod:`danlu.builder.embedded.ops.bytecode`, which a start does not import.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from danlu.environment.image_layout import CONDA_PREFIX
from danlu.errors import MachineError
from danlu.oci.digest import DiffId
from danlu.store import Layer, Store, StoredImage

#: Raised by one when the format of a bytecode layer changes.
_VERSION = 1


#: How the layer that gives the directories of packages to a user is made, and its directories.
OWNED_DIRECTORIES = "danlu: give directories to"


def add_bytecode_trees(
    store: Store, image: StoredImage, stack: Sequence[Layer]
) -> tuple[Path, ...]:
    """Return the trees of an image, lowest first, with the bytecode that is ready for its wheels.

    The bytecode is laid over all layers but the one that gives its directories to a user.
    """
    record = store.record(bytecode_key(image))
    known = store.layers(record["layers"]) if record is not None else None
    if known is None:
        known = _find_known_layers(store, image, stack)
    count = len(stack) - 1 if find_owner(stack) else len(stack)
    return tuple(layer.tree for layer in (*stack[:count], *known, *stack[count:]))


def find_owner(stack: Sequence[Layer]) -> tuple[int, int] | None:
    """Return the user and group that own the directories of an image's packages, if not root."""
    if not stack or not stack[-1].created_by.startswith(f"{OWNED_DIRECTORIES} "):
        return None
    uid, _, gid = stack[-1].created_by.rpartition(" ")[2].partition(":")
    return (int(uid), int(gid)) if uid.isdecimal() and gid.isdecimal() else None


def bytecode_key(image: StoredImage) -> str:
    """Return the key under which all bytecode of an image is recorded once it is compiled."""
    return f"bytecode-of:{image.digest}"


def _find_known_layers(store: Store, image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
    wheels = find_wheel_layers(image, stack)
    if not wheels:
        return []
    interpreter = find_interpreter(store, stack, str(image.metadata["python"]))
    return find_bytecode_layers(store, wheels, interpreter.key)


def find_wheel_layers(image: StoredImage, stack: Sequence[Layer]) -> list[Layer]:
    """Return the layers of an image that are unmodified packages of the image's Python."""
    return [
        layer
        for prefix in list_prefixes(image)
        for layer in find_unmodified_wheels(stack, site_directory(image, prefix))
    ]


def list_prefixes(image: StoredImage) -> tuple[str, ...]:
    """Return where an image has Python packages: its virtual environment, and conda's if any."""
    if not all(name in image.metadata for name in ("prefix", "site_packages", "python")):
        return ()
    prefix = str(image.metadata["prefix"])
    has_conda = str(image.metadata["python"]).startswith(f"{CONDA_PREFIX}/")
    return (prefix, CONDA_PREFIX) if has_conda else (prefix,)


def site_directory(image: StoredImage, prefix: str) -> str:
    """Return the directory of Python packages below ``prefix``, relative to the root."""
    return f"{prefix.strip('/')}/{image.metadata['site_packages']}"


def find_unmodified_wheels(stack: Sequence[Layer], site: str) -> list[Layer]:
    """Return the layers of wheels that no later layer touches; ``site`` is their directory.

    Unchecked bytecode would hide a source that a step changed. If a later layer has an entry with
    the name of one of a wheel's, Python compiles the wheel itself, on import.
    """
    if find_owner(stack):
        stack = stack[:-1]  # directories only
    names = [_list_names(layer.tree / site) for layer in stack]
    found = []
    later: set[str] = set()
    for layer, own in zip(reversed(stack), reversed(names), strict=True):
        if own and any(name.endswith(".dist-info") for name in own) and not own & later:
            found.append(layer)
        elif own:
            later |= own
    return found[::-1]


def _list_names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()


class ImageInterpreter(msgspec.Struct, frozen=True):
    """A Python of an image: its absolute path there, and a key for this exact build of it."""

    path: str
    key: str


def find_interpreter(store: Store, stack: Sequence[Layer], path: str) -> ImageInterpreter:
    """Return the interpreter at ``path`` of the image made of ``stack``, lowest layer first.

    Its key is the hash of the program and of a shared libpython, computed once per layer.
    Raises :class:`MachineError` if there is no such file.
    """
    layer, name = _locate_file(stack, path)
    note = f"interpreter:{_VERSION}:{layer.diff_id}:{name}"
    known = store.record(note)
    if known is None:
        known = {"key": _program_key(layer.tree, name)}
        store.put_record(note, known, layers=[layer.diff_id])
    return ImageInterpreter(path, str(known["key"]))


def _locate_file(stack: Sequence[Layer], path: str) -> tuple[Layer, str]:
    """Return the layer with the file that ``path`` leads to, and its name there; follows links."""
    name = os.path.normpath("/" + path).lstrip("/")
    for _ in range(40):
        for layer in reversed(stack):
            found = _find_entry(layer.tree, name)
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


def _find_entry(tree: Path, name: str) -> str | None:
    """Return the part of ``name`` that a layer decides: a link on the way, or the file itself."""
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


def bytecode_record_key(layer: Layer, interpreter: str) -> str:
    """Return the key of the record of a wheel layer's bytecode for an interpreter."""
    return f"bytecode:{_VERSION}:{layer.diff_id}:{interpreter}"


def find_bytecode_layers(store: Store, layers: Iterable[Layer], interpreter: str) -> list[Layer]:
    """Return the bytecode layers that exist for ``layers`` and an interpreter's key."""
    found = []
    for layer in layers:
        record = store.record(bytecode_record_key(layer, interpreter))
        compiled = store.layer(DiffId(record["layer"])) if record and record["layer"] else None
        if compiled is not None:
            found.append(compiled)
    return found
