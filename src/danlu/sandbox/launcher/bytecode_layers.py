"""Bytecode of wheels: which layers of it an image can use when it starts.

Compiling it is :mod:`danlu.builder.embedded.bytecode_compiler`, which a start does not import.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from danlu.environment.image_layout import CONDA_PREFIX
from danlu.errors import MachineError
from danlu.oci.digest import DiffId
from danlu.oci.overlay import is_opaque
from danlu.store import Layer, Store, StoredImage
from danlu.util.files import have_same_content

#: Raised by one when the format of a bytecode layer changes.
_VERSION = 2


def add_bytecode_trees(
    store: Store, image: StoredImage, stack: Sequence[Layer], upper: Path | None = None
) -> tuple[Path, ...]:
    """Return the trees of an image, lowest first, with the bytecode that is ready for its wheels.

    ``upper`` is the writable directory that will lie over them, if it may have files already. The
    bytecode of a wheel lies directly over the wheel, so whatever hides a directory of the wheel
    hides its bytecode, too.
    """
    compiled = _find_image_bytecode(store, image, stack)
    if upper is not None:
        wheels = [layer for layer in stack if layer.diff_id in compiled]
        for prefix in list_prefixes(image):
            site = site_directory(image, prefix)
            # Anything else in its place hides it.
            if (upper / site).is_dir():
                trees = [*(str(layer.tree) for layer in wheels), str(upper)]
                for number in _find_replaced_trees(trees, site):
                    compiled.pop(wheels[number].diff_id, None)
    trees_of_image = []
    for layer in stack:
        trees_of_image.append(layer.tree)
        if layer.diff_id in compiled:
            # Once, even if the image has the layer twice.
            trees_of_image.append(compiled.pop(layer.diff_id).tree)
    return tuple(trees_of_image)


def record_bytecode(store: Store, image: StoredImage, compiled: Mapping[DiffId, Layer]) -> None:
    """Record the bytecode layers of an image, by the diff ID of their wheels: it is complete."""
    layers = [layer.diff_id for layer in compiled.values()]
    store.put_record(_image_key(image), {"wheels": [*compiled], "layers": layers}, layers=layers)


def _image_key(image: StoredImage) -> str:
    return f"bytecode-of:{_VERSION}:{image.digest}"


def _find_image_bytecode(
    store: Store, image: StoredImage, stack: Sequence[Layer]
) -> dict[DiffId, Layer]:
    record = store.record(_image_key(image))
    known = store.layers(record["layers"]) if record is not None else None
    if record is not None and known is not None:
        return dict(zip(record["wheels"], known, strict=True))
    wheels = find_wheel_layers(image, stack)
    if not wheels:
        return {}
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
    """Return the layers with packages in ``site`` all of whose Python files an image shows.

    A step that installs packages makes such a layer, too: what counts is what lies over it, not who
    made it.
    """
    replaced = _find_replaced_trees([str(layer.tree) for layer in stack], site)
    return [
        layer
        for number, layer in enumerate(stack)
        if number not in replaced and _has_packages(layer.tree / site)
    ]


def _has_packages(site: Path) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(site))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _find_replaced_trees(trees: Sequence[str], site: str) -> set[int]:
    """Return the positions of trees whose Python files a later tree changes, hides or removes.

    ``trees`` are in overlayfs's form, lowest first; only what they have in ``site`` counts. The
    same file in two trees (namespace packages have them) does not count.
    """
    replaced: set[int] = set()
    pending = [("", list(enumerate(trees)))]
    while pending:
        directory, merged = pending.pop()
        entries: dict[str, list[tuple[int, os.DirEntry[str]]]] = {}
        # The topmost first, as overlayfs looks them up.
        for number, tree in reversed(merged):
            for entry in os.scandir(f"{tree}/{directory}"):
                path = f"{directory}{entry.name}/"
                if path.startswith(f"{site}/") or f"{site}/".startswith(path):
                    entries.setdefault(entry.name, []).append((number, entry))
        for name, found in entries.items():
            if len(found) > 1:
                directories = _merge_entries(found, replaced)
                if len(directories) > 1:
                    below = [(number, trees[number]) for number in reversed(directories)]
                    pending.append((f"{directory}{name}/", below))
    return replaced


def _merge_entries(
    entries: Sequence[tuple[int, os.DirEntry[str]]], replaced: set[int]
) -> list[int]:
    """Return the trees whose directories merge at a path, topmost first; add to ``replaced``.

    ``entries`` are what the trees have there, topmost first.
    """
    directories: list[int] = []
    top = entries[0][1]
    is_hidden = False
    for number, entry in entries:
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_hidden or (directories and not is_directory):
            is_source = is_directory or entry.name.endswith(".py")
            if is_source and not _is_same_source(entry, top):
                replaced.add(number)
            is_hidden = True
        elif is_directory:
            directories.append(number)
            is_hidden = is_opaque(entry.path)
        else:
            is_hidden = True
    return directories


def _is_same_source(entry: os.DirEntry[str], top: os.DirEntry[str]) -> bool:
    if not (entry.is_file(follow_symlinks=False) and top.is_file(follow_symlinks=False)):
        return False
    # Bytecode refers to the time of its source.
    same_time = entry.stat().st_mtime_ns == top.stat().st_mtime_ns
    return same_time and have_same_content(entry.path, top.path)


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


def find_bytecode_layers(
    store: Store, layers: Iterable[Layer], interpreter: str
) -> dict[DiffId, Layer]:
    """Return the bytecode of ``layers`` that exists for an interpreter's key, by their diff IDs."""
    found = {}
    for layer in layers:
        record = store.record(bytecode_record_key(layer, interpreter))
        compiled = store.layer(DiffId(record["layer"])) if record and record["layer"] else None
        if compiled is not None:
            found[layer.diff_id] = compiled
    return found
