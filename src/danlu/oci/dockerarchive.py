"""What ``docker save`` writes and ``docker load`` and ``podman load`` read: an image in one tar.

moby, image/spec/spec.md, "Combined Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import ChecksumError, OutsideError
from danlu.oci.compress import decompressed, detect
from danlu.oci.digest import DiffId
from danlu.oci.exporting import LayerSource, checked_tar
from danlu.oci.image import Image, read_image
from danlu.oci.reference import Reference
from danlu.oci.tar.header import END, header, padding
from danlu.oci.tar.read import LayerError, Readable
from danlu.oci.text import printable
from danlu.oci.types import MAX_DOCUMENT

__all__ = ["Archive", "ArchiveImage", "opened", "write"]

_MAX_MEMBERS = 100_000


class _Entry(msgspec.Struct, rename="pascal"):
    """One image in ``manifest.json``."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


def write(
    image: Image,
    source: LayerSource,
    sink: Callable[[bytes], object],
    *,
    names: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write ``image`` as a tar to ``sink``, piece by piece; gives its bytes.

    Layers are not compressed: what reads the archive is on this machine. Equal images and names
    give equal bytes. ``progress`` is called with the number of layers done and of all.
    """
    written = 0

    def put(data: bytes) -> None:
        nonlocal written
        written += len(data)
        sink(data)

    config = f"{_hex(image.digest)}.json"
    # In full: podman takes a short name for one of its own, localhost/NAME.
    tags = tuple(str(Reference.parse(name)) for name in names)
    layers = tuple(f"{_hex(diff_id)}.tar" for diff_id in image.diff_ids)
    listed = msgspec.json.encode([_Entry(config=config, repo_tags=tags, layers=layers)])
    _member(put, "manifest.json", listed)
    _member(put, config, image.config)
    for number, diff_id in enumerate(image.diff_ids):
        if diff_id not in image.diff_ids[:number]:
            _layer(put, source, diff_id)
        if progress is not None:
            progress(number + 1, len(image.diff_ids))
    put(END)
    return written


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _member(put: Callable[[bytes], None], name: str, data: bytes) -> None:
    put(header(name.encode(), b"0", mode=0o644, size=len(data)) + data + padding(len(data)))


def _layer(put: Callable[[bytes], None], source: LayerSource, diff_id: DiffId) -> None:
    size = source.size(diff_id)
    put(header(f"{_hex(diff_id)}.tar".encode(), b"0", mode=0o644, size=size))
    checked_tar(source, diff_id, put)
    put(padding(size))


class ArchiveImage(msgspec.Struct, frozen=True):
    """An image in an archive: ``members`` are its layers' names there, lowest first."""

    image: Image
    names: tuple[str, ...]
    members: tuple[str, ...]


class Archive:
    """An archive, open for reading."""

    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar = tar
        self._name = name
        self._members = self._list()
        self.images = tuple(self._images())

    def layer(self, member: str) -> Readable:
        """The uncompressed tar of a layer; its digest is the caller's to compare."""
        start = self._file(member).read(4)
        return decompressed(detect(start), self._file(member))

    def _list(self) -> dict[str, tarfile.TarInfo]:
        found = {}
        for info in self._tar:
            found[posixpath.normpath(info.name)] = info
            if len(found) > _MAX_MEMBERS:
                raise OutsideError(f"{self._name} has too many members for an image")
        return found

    def _file(self, name: str) -> Readable:
        info = self._members.get(posixpath.normpath(name))
        for _ in range(4):
            if info is None or not info.issym():
                break
            # Old versions of Docker write equal layers as links to the first.
            target = posixpath.join(posixpath.dirname(info.name), info.linkname)
            info = self._members.get(posixpath.normpath(target))
        file = self._tar.extractfile(info) if info is not None and info.isreg() else None
        if file is None:
            raise OutsideError(f"{self._name} lacks {printable(name)!r}")
        return file

    def _document(self, name: str) -> bytes:
        data = self._file(name).read(MAX_DOCUMENT + 1)
        if len(data) > MAX_DOCUMENT:
            raise OutsideError(f"{self._name}: {name} is bigger than any should be")
        return data

    def _images(self) -> Iterator[ArchiveImage]:
        try:
            entries = msgspec.json.decode(self._document("manifest.json"), type=list[_Entry])
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise OutsideError(
                f"{self._name}: manifest.json cannot be read: {printable(str(error))}"
            ) from error
        for entry in entries:
            image = read_image(self._document(entry.config))
            # The config's name is its digest, in all versions since Docker 1.10.
            name = posixpath.basename(entry.config).removesuffix(".json")
            if len(name) == 64 and name != _hex(image.digest):
                raise ChecksumError(f"{self._name}: the config {name} is {image.digest}")
            if len(entry.layers) != len(image.diff_ids):
                raise OutsideError(f"{self._name}: list and config name different layers")
            yield ArchiveImage(image, entry.repo_tags or (), entry.layers)


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """The archive at ``path``, a file that can be read at any place; it may be compressed.

    Raises :class:`OutsideError` for what is no such archive, :class:`ChecksumError` for a config
    that is not what its name says.
    """
    try:
        with tarfile.open(path) as tar:
            yield Archive(tar, path.name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        reason = printable(str(error))
        raise LayerError(f"{path.name} is no image archive, or damaged: {reason}") from error
