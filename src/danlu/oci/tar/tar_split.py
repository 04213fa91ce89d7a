"""Record how to write an extracted layer's tar again, byte for byte (the idea of vbatts/tar-split).

Our own layers are functions of their trees. Others' layers have headers, an order and padding of
their own: a tar split keeps everything of such a tar except the content of its files, so that the
tar, which alone has the diff ID, can be written and verified again without being kept.
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
from danlu.oci.tar.layer_paths import LayerDirectories, LayerSummary, proc_fd_path, split_layer_path
from danlu.util.disk_full import is_disk_full
from danlu.util.sanitize import escape_unprintable

_CHUNK_SIZE = 1 << 20
#: Precedes each record: sizes of its literal, of its path, and of that file.
_RECORD_HEADER = struct.Struct("<QIQ")
#: Maximum content to keep of files that a later entry of the same layer replaced.
_MAX_REPLACED = 64 << 20
#: Headers compress to about thirty bytes per entry.
_MAX_RECORDS = 64 << 20


class TarSplit(msgspec.Struct, frozen=True):
    """Everything of a tar except the files' content.

    ``records`` (zstd) alternate between literal bytes and paths of files; ``replaced`` is the
    content of files that the tree no longer has, by the number of their record; ``entries`` is the
    number of the tar's entries.
    """

    records: bytes
    entries: int
    replaced: Mapping[int, bytes] = {}

    def to_builtins(self) -> dict[str, object]:
        """Return plain JSON values."""
        replaced = {str(number): _encode_base64(data) for number, data in self.replaced.items()}
        return {
            "records": _encode_base64(self.records),
            "entries": self.entries,
            "replaced": replaced,
        }

    @classmethod
    def from_builtins(cls, value: Mapping[str, object]) -> TarSplit:
        """Parse what :meth:`to_builtins` returned. Raises :class:`StoreError` for anything else."""
        records, replaced = value.get("records"), value.get("replaced")
        entries = value.get("entries")
        try:
            if not (isinstance(records, str) and isinstance(replaced, Mapping)):
                raise ValueError("fields are missing")
            return cls(
                base64.b64decode(records),
                entries if isinstance(entries, int) else 0,
                {int(number): base64.b64decode(data) for number, data in replaced.items()},
            )
        except (ValueError, TypeError) as error:
            raise StoreError(f"a layer's tar split is damaged: {error}") from error


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TarSplitRecorder:
    """Record a tar split while a layer is extracted."""

    def __init__(self) -> None:
        import zstandard  # slow to import, and only pulled layers need it

        self._zstd = zstandard.ZstdCompressor(level=3).compressobj()
        self._records: list[bytes] = []
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._size = 0
        self._literals: list[bytes] = []
        self._gathered = 0
        self._count = 0
        self._replaced: dict[int, bytes] = {}
        self._replaced_bytes = 0

    def add_literal(self, piece: bytes) -> None:
        """Record bytes that cannot be derived from the tree."""
        self._literals.append(piece)
        self._gathered += len(piece)
        if self._gathered > _CHUNK_SIZE:
            self._add_record(b"", 0)

    def add_file(self, parts: tuple[bytes, ...], size: int) -> None:
        """Record that the content of the file ``parts`` follows, ``size`` bytes."""
        self._add_record(b"/".join(parts), size)
        self._numbers[parts] = self._count - 1

    def save_replaced_content(self, parts: tuple[bytes, ...], parent: int) -> None:
        """Save the content of ``parts`` in ``parent``, and of files below, before removal."""
        for replaced in [known for known in self._numbers if known[: len(parts)] == parts]:
            number = self._numbers.pop(replaced)
            path = proc_fd_path(parent, b"/".join(replaced[len(parts) - 1 :]))
            with open(path, "rb") as file:
                data = file.read(_MAX_REPLACED + 1)
            self._replaced_bytes += len(data)
            if self._replaced_bytes <= _MAX_REPLACED:
                self._replaced[number] = data

    def finish(self, entries: int) -> TarSplit | None:
        """Return the tar split of ``entries`` entries, or None if it would be too large."""
        self._add_record(b"", 0)
        self._append_compressed_chunk(self._zstd.flush())
        if self._replaced_bytes > _MAX_REPLACED or self._size > _MAX_RECORDS:
            return None
        return TarSplit(b"".join(self._records), entries, self._replaced)

    def _add_record(self, path: bytes, size: int) -> None:
        literal = b"".join(self._literals)
        self._literals.clear()
        self._gathered = 0
        self._count += 1
        head = _RECORD_HEADER.pack(len(literal), len(path), size)
        self._append_compressed_chunk(self._zstd.compress(head + literal + path))

    def _append_compressed_chunk(self, made: bytes) -> None:
        self._size += len(made)
        # Larger records will not be used, and untrusted input must not fill our memory.
        if self._size <= _MAX_RECORDS:
            self._records.append(made)


def rewrite_layer(
    root: Path, write: Callable[[bytes], object] | None, recipe: TarSplit
) -> LayerSummary:
    """Write the tar that was extracted to ``root``; without ``write``, only compute its digest.

    If files of the tree have changed, the digest differs. Raises :class:`StoreError` if the tree
    lacks something that the tar split refers to.
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
        with LayerDirectories(os.fsencode(root)) as places:
            for number, (literal, path, length) in enumerate(_read_records(recipe)):
                put(literal)
                if number in recipe.replaced:
                    put(recipe.replaced[number])
                elif path:
                    for piece in _read_file_content(places, path, length):
                        put(piece)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise StoreError(f"cannot read the layer at {root}: {error}") from error
    return LayerSummary(DiffId("sha256:" + digest.hexdigest()), size, recipe.entries)


def _read_records(recipe: TarSplit) -> Iterator[tuple[bytes, bytes, int]]:
    import zstandard  # slow to import, and only pulled layers need it

    try:
        stream = zstandard.ZstdDecompressor().stream_reader(recipe.records)
        while head := stream.read(_RECORD_HEADER.size):
            literal, path, size = _RECORD_HEADER.unpack(head)
            yield stream.read(literal), stream.read(path), size
    except (zstandard.ZstdError, struct.error) as error:
        raise StoreError(f"a layer's tar split is damaged: {error}") from error


def _read_file_content(places: LayerDirectories, path: bytes, size: int) -> Iterator[bytes]:
    """Yield exactly ``size`` bytes of a file. Changed content is noticed later, by the digest."""
    parts = split_layer_path(path)
    parent = places.open_directory(parts[:-1])
    if parent is None:
        raise StoreError(f"the layer has no directory for /{escape_unprintable(path)}")
    # If a pipe has taken the file's place, open(2) must not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(parts[-1], flags, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(f"the layer has no file /{escape_unprintable(path)}")
        while size:
            piece = os.read(descriptor, min(size, _CHUNK_SIZE))
            if not piece:
                raise StoreError(f"the layer's file /{escape_unprintable(path)} is too short")
            size -= len(piece)
            yield piece
    finally:
        os.close(descriptor)
