"""Git's hash of the files of an archive, and their content.

Julia's package servers name every archive by that hash (``git-tree-sha1``), which the registry has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import IO

import msgspec

from danlu.errors import OutsideError
from danlu.oci.compress import detect_compression, open_decompressor
from danlu.oci.tar.layer_paths import split_layer_path
from danlu.oci.tar.read import LayerError, TarReader, TypeFlag
from danlu.util.sanitize import escape_unprintable

#: Archives of source code expand to less than this, in bytes; Julia's General registry to 0.2 GB.
_MAX_SIZE = 4 << 30
_MAX_MEMBER = 64 << 20

#: A directory: names to directories, or to (mode, hash) of a file.
_Directory = dict[bytes, "_Directory | tuple[bytes, bytes]"]


class ArchiveTree(msgspec.Struct, frozen=True):
    """The files of an archive: the hash of their tree (hexadecimal), their paths, some contents."""

    sha1: str
    paths: frozenset[str]
    files: dict[str, bytes]


def read_archive_tree(
    file: IO[bytes], wants: Callable[[str], bool], *, name: str, limit: int = _MAX_SIZE
) -> ArchiveTree:
    """Return the tree of a tar, plain or compressed, with the contents of files that ``wants``.

    As in Git, empty directories do not count and modes are 644 or 755. Raises
    :class:`OutsideError`, with ``name``, for what Git does not store, and for archives that expand
    to more than ``limit`` bytes.
    """
    root: _Directory = {}
    files: dict[str, bytes] = {}
    paths: set[str] = set()
    try:
        start = file.read(6)
        file.seek(0)
        reader = TarReader(open_decompressor(detect_compression(start), file), limit=limit)
        for entry in reader:
            parts = split_layer_path(entry.name)
            if entry.kind == TypeFlag.DIRECTORY or not parts:
                continue
            path = b"/".join(parts).decode("utf-8", "surrogateescape")
            if entry.kind == TypeFlag.SYMLINK:
                mode, digest = b"120000", _hash_object(b"blob", entry.link)
            elif entry.kind in (TypeFlag.REGULAR, TypeFlag.OLD_REGULAR):
                mode = b"100755" if entry.mode & 0o100 else b"100644"
                keeps = wants(path) and entry.size <= _MAX_MEMBER
                digest, content = _hash_content(reader, entry.size, keeps=keeps)
                if keeps:
                    files[path] = content
            else:
                raise LayerError(f"the archive contains a special file: {path}")
            _add_file(root, parts, (mode, digest))
            paths.add(path)
    except LayerError as error:
        reason = error.message.replace("the layer", "the archive")
        raise OutsideError(
            f"cannot read {escape_unprintable(name)}: {reason}",
            hint="the file on the mirror is damaged or not the archive it is named after",
        ) from error
    return ArchiveTree(_hash_directory(root).hex(), frozenset(paths), files)


def _hash_content(reader: TarReader, size: int, *, keeps: bool) -> tuple[bytes, bytes]:
    """Return the hash of the current entry's content, and the content if it ``keeps`` it."""
    hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    kept: list[bytes] = []
    for piece in reader.content():
        hasher.update(piece)
        if keeps:
            kept.append(piece)
    return hasher.digest(), b"".join(kept)


def _add_file(root: _Directory, parts: tuple[bytes, ...], file: tuple[bytes, bytes]) -> None:
    directory = root
    for part in parts[:-1]:
        below = directory.setdefault(part, {})
        if not isinstance(below, dict):
            raise LayerError(f"the archive has two entries named {escape_unprintable(part)}")
        directory = below
    if parts[-1] in directory:
        raise LayerError(f"the archive has two entries named {escape_unprintable(parts[-1])}")
    directory[parts[-1]] = file


def _hash_directory(directory: _Directory) -> bytes:
    entries: list[tuple[bytes, bytes, bytes]] = []
    for name, value in directory.items():
        if isinstance(value, dict):
            entries.append((name, b"40000", _hash_directory(value)))
        else:
            entries.append((name, *value))
    # Git sorts a directory as if its name ended in a slash.
    entries.sort(key=lambda entry: entry[0] + (b"/" if entry[1] == b"40000" else b""))
    content = b"".join(mode + b" " + name + b"\0" + digest for name, mode, digest in entries)
    return _hash_object(b"tree", content)


def _hash_object(kind: bytes, content: bytes) -> bytes:
    header = kind + b" %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).digest()
