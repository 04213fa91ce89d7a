"""How to write a stranger's layer again from its tree, byte for byte.

Our own layers are functions of their trees. Those of others have headers, orders and padding of
their maker's: a recipe keeps everything of such a tar but the content of its files, so that the
tar, which alone has the diff id, can be written and verified without keeping it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from danlu.errors import StoreError
from danlu.oci.digest import DiffId
from danlu.oci.tar.places import Places, path_in, split
from danlu.oci.tar.summary import LayerSummary
from danlu.oci.text import printable
from danlu.util.space import is_full

__all__ = ["Recipe", "Recorder", "rewrite_layer"]

_CHUNK = 1 << 20
#: Before each record: bytes of its literal, bytes of its path, bytes of that file.
_HEAD = struct.Struct("<QIQ")
#: More content of files that a later entry replaced is not worth keeping.
_MAX_REPLACED = 64 << 20
#: Headers compress to some thirty bytes an entry.
_MAX_RECORDS = 64 << 20


class Recipe(msgspec.Struct, frozen=True):
    """``records`` (zstd) are literal bytes and paths in turn; ``replaced`` the content of files
    that the tree no longer has, by the number of their record; ``entries`` are those of the tar.
    """

    records: bytes
    entries: int
    replaced: Mapping[int, bytes] = {}

    def to_plain(self) -> dict[str, object]:
        """As plain JSON values."""
        replaced = {str(one): _text(data) for one, data in self.replaced.items()}
        return {"records": _text(self.records), "entries": self.entries, "replaced": replaced}

    @classmethod
    def from_plain(cls, value: Mapping[str, object]) -> Recipe:
        """From what :meth:`to_plain` gave; raises :class:`StoreError` for anything else."""
        records, replaced = value.get("records"), value.get("replaced")
        entries = value.get("entries")
        try:
            if not (isinstance(records, str) and isinstance(replaced, Mapping)):
                raise ValueError("fields are missing")
            return cls(
                base64.b64decode(records),
                entries if isinstance(entries, int) else 0,
                {int(one): base64.b64decode(data) for one, data in replaced.items()},
            )
        except (ValueError, TypeError) as error:
            raise StoreError(f"the recipe of a layer is damaged: {error}") from error


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Recorder:
    """Makes a recipe while a layer is extracted."""

    def __init__(self) -> None:
        import zstandard

        self._zstd = zstandard.ZstdCompressor(level=3).compressobj()
        self._records: list[bytes] = []
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._size = 0
        self._literals: list[bytes] = []
        self._gathered = 0
        self._count = 0
        self._replaced: dict[int, bytes] = {}
        self._replaced_bytes = 0

    def literal(self, piece: bytes) -> None:
        """Bytes that the tree does not tell."""
        self._literals.append(piece)
        self._gathered += len(piece)
        if self._gathered > _CHUNK:
            self._add(b"", 0)

    def file(self, parts: tuple[bytes, ...], size: int) -> None:
        """Now comes the content of the file ``parts``, ``size`` bytes."""
        self._add(b"/".join(parts), size)
        self._numbers[parts] = self._count - 1

    def replacing(self, parts: tuple[bytes, ...], parent: int) -> None:
        """The entry ``parts`` in the directory ``parent``, and all below it, is to be removed."""
        for one in [known for known in self._numbers if known[: len(parts)] == parts]:
            number = self._numbers.pop(one)
            path = path_in(parent, b"/".join(one[len(parts) - 1 :]))
            with open(path, "rb") as file:
                data = file.read(_MAX_REPLACED + 1)
            self._replaced_bytes += len(data)
            if self._replaced_bytes <= _MAX_REPLACED:
                self._replaced[number] = data

    def recipe(self, entries: int) -> Recipe | None:
        """The recipe of a tar of so many entries; None where it would be too big."""
        self._add(b"", 0)
        self._keep(self._zstd.flush())
        if self._replaced_bytes > _MAX_REPLACED or self._size > _MAX_RECORDS:
            return None
        return Recipe(b"".join(self._records), entries, self._replaced)

    def _add(self, path: bytes, size: int) -> None:
        literal = b"".join(self._literals)
        self._literals.clear()
        self._gathered = 0
        self._count += 1
        head = _HEAD.pack(len(literal), len(path), size)
        self._keep(self._zstd.compress(head + literal + path))

    def _keep(self, made: bytes) -> None:
        self._size += len(made)
        # Beyond that it will not be used: what a stranger sends must not fill our memory.
        if self._size <= _MAX_RECORDS:
            self._records.append(made)


def rewrite_layer(
    root: Path, write: Callable[[bytes], object] | None, recipe: Recipe
) -> LayerSummary:
    """Write again the tar that was extracted to ``root``; ``None`` computes its digest only.

    Where files of the tree have changed, the digest is another. Raises :class:`StoreError` where
    the tree lacks what the recipe needs.
    """
    digest = hashlib.sha256()
    size = 0

    def put(data: bytes) -> None:
        nonlocal size
        digest.update(data)
        size += len(data)
        if write is not None:
            write(data)

    try:
        with Places(os.fsencode(root)) as places:
            for number, (literal, path, length) in enumerate(_records(recipe)):
                put(literal)
                if number in recipe.replaced:
                    put(recipe.replaced[number])
                elif path:
                    for piece in _content(places, path, length):
                        put(piece)
    except OSError as error:
        if is_full(error):
            raise
        raise StoreError(f"cannot read the layer at {root}: {error}") from error
    return LayerSummary(DiffId("sha256:" + digest.hexdigest()), size, recipe.entries)


def _records(recipe: Recipe) -> Iterator[tuple[bytes, bytes, int]]:
    import zstandard

    try:
        stream = zstandard.ZstdDecompressor().stream_reader(recipe.records)
        while head := stream.read(_HEAD.size):
            literal, path, size = _HEAD.unpack(head)
            yield stream.read(literal), stream.read(path), size
    except (zstandard.ZstdError, struct.error) as error:
        raise StoreError(f"the recipe of a layer is damaged: {error}") from error


def _content(places: Places, path: bytes, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes of a file; a tree that changed is noticed by the digest."""
    parts = split(path)
    parent = places.find(parts[:-1])
    if parent is None:
        raise StoreError(f"the layer lacks the directory of /{printable(path)}")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(parts[-1], flags, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"the layer has no file /{printable(path)}")
        while size:
            piece = os.read(descriptor, min(size, _CHUNK))
            if not piece:
                raise StoreError(f"the layer's file /{printable(path)} is too short")
            size -= len(piece)
            yield piece
    finally:
        os.close(descriptor)
