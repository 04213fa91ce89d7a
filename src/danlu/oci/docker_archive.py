"""Image archives of ``docker save``, which ``docker load`` and ``podman load`` read.

Format: moby, image/spec/spec.md, "Combined Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import ChecksumError, OutsideError
from danlu.oci.blob_export import LayerSource, write_verified_tar
from danlu.oci.compress import detect_compression, open_decompressor
from danlu.oci.digest import DiffId
from danlu.oci.image import Image, parse_image
from danlu.oci.reference import Reference
from danlu.oci.tar.read import LayerError, Readable, TypeFlag
from danlu.oci.tar.write import END_OF_ARCHIVE, block_padding, encode_header
from danlu.oci.types import MAX_DOCUMENT_SIZE
from danlu.util.decoding import decode_json
from danlu.util.sanitize import escape_unprintable

_MAX_MEMBERS = 100_000


class _ManifestEntry(msgspec.Struct, rename="pascal"):
    """One image in ``manifest.json``."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


def write_archive(
    image: Image,
    source: LayerSource,
    sink: Callable[[bytes], object],
    *,
    names: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    omit: Container[DiffId] = (),
) -> int:
    """Write ``image`` as a tar to ``sink``, chunk by chunk, and return its size.

    Layers are not compressed, because whatever loads the archive is usually on this machine. Equal
    images and names give equal bytes. ``progress`` is called with the number of layers written and
    the total. Layers in ``omit`` are listed but not written: Docker reads only those that it does
    not have on the same lower layers (moby, image/tarexport/load.go).
    """
    written = 0

    def put(data: bytes) -> None:
        nonlocal written
        written += len(data)
        sink(data)

    config = f"{_digest_hex(image.digest)}.json"
    # Full names, because podman would read a short one as localhost/NAME.
    tags = tuple(str(Reference.parse(name)) for name in names)
    layers = tuple(f"{_digest_hex(diff_id)}.tar" for diff_id in image.diff_ids)
    listed = msgspec.json.encode([_ManifestEntry(config=config, repo_tags=tags, layers=layers)])
    _write_member(put, "manifest.json", listed)
    _write_member(put, config, image.config)
    for number, diff_id in enumerate(image.diff_ids):
        if diff_id not in image.diff_ids[:number] and diff_id not in omit:
            _write_layer(put, source, diff_id)
        if progress is not None:
            progress(number + 1, len(image.diff_ids))
    put(END_OF_ARCHIVE)
    return written


def _digest_hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _write_member(put: Callable[[bytes], None], name: str, data: bytes) -> None:
    put(
        encode_header(name.encode(), TypeFlag.REGULAR, mode=0o644, size=len(data))
        + data
        + block_padding(len(data))
    )


def _write_layer(put: Callable[[bytes], None], source: LayerSource, diff_id: DiffId) -> None:
    size = source.size(diff_id)
    put(
        encode_header(
            f"{_digest_hex(diff_id)}.tar".encode(), TypeFlag.REGULAR, mode=0o644, size=size
        )
    )
    write_verified_tar(source, diff_id, put)
    put(block_padding(size))


class ArchiveImage(msgspec.Struct, frozen=True):
    """An image in an archive; ``members`` are the names of its layers there, lowest first."""

    image: Image
    names: tuple[str, ...]
    members: tuple[str, ...]


class DockerArchive:
    """An archive that is open for reading."""

    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar = tar
        self._name = name
        self._members = self._index_members()
        self.images = tuple(self._parse_images())

    def open_layer(self, member: str) -> Readable:
        """Return the uncompressed tar of a layer. The caller must compare its digest."""
        start = self._open_member(member).read(4)
        return open_decompressor(detect_compression(start), self._open_member(member))

    def _index_members(self) -> dict[str, tarfile.TarInfo]:
        members = {}
        for info in self._tar:
            members[posixpath.normpath(info.name)] = info
            if len(members) > _MAX_MEMBERS:
                raise OutsideError(f"{self._name} has more than {_MAX_MEMBERS} members")
        return members

    def _open_member(self, name: str) -> Readable:
        info = self._members.get(posixpath.normpath(name))
        # Bounded, because links could form a loop.
        for _ in range(4):
            if info is None or not info.issym():
                break
            # Old versions of Docker store a repeated layer as a link to the first one.
            target = posixpath.join(posixpath.dirname(info.name), info.linkname)
            info = self._members.get(posixpath.normpath(target))
        file = self._tar.extractfile(info) if info is not None and info.isreg() else None
        if file is None:
            raise OutsideError(f"{self._name} has no member {escape_unprintable(name)!r}")
        return file

    def _read_document(self, name: str) -> bytes:
        data = self._open_member(name).read(MAX_DOCUMENT_SIZE + 1)
        if len(data) > MAX_DOCUMENT_SIZE:
            raise OutsideError(f"{self._name}: {name} exceeds {MAX_DOCUMENT_SIZE} bytes")
        return data

    def _parse_images(self) -> Iterator[ArchiveImage]:
        try:
            entries = decode_json(self._read_document("manifest.json"), list[_ManifestEntry])
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise OutsideError(
                f"{self._name}: invalid manifest.json: {escape_unprintable(str(error))}"
            ) from error
        for entry in entries:
            image = parse_image(self._read_document(entry.config))
            # Since Docker 1.10 a config is named after its digest.
            name = posixpath.basename(entry.config).removesuffix(".json")
            if len(name) == 64 and name != _digest_hex(image.digest):
                raise ChecksumError(f"{self._name}: the config {name} has digest {image.digest}")
            if len(entry.layers) != len(image.diff_ids):
                raise OutsideError(f"{self._name}: manifest.json and config list different layers")
            yield ArchiveImage(image, entry.repo_tags or (), entry.layers)


@contextmanager
def open_archive(path: Path) -> Iterator[DockerArchive]:
    """Open the archive at ``path``, a seekable file that may be compressed.

    Raises :class:`OutsideError` if it is not such an archive, and :class:`ChecksumError` if a
    config does not match its name.
    """
    try:
        with tarfile.open(path) as tar:
            yield DockerArchive(tar, path.name)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        # What tarfile says about each compression in turn explains nothing.
        text = str(error)
        is_unknown = isinstance(error, tarfile.ReadError) and "- method " in text
        reason = "it is not a tar archive" if is_unknown else escape_unprintable(text)
        raise LayerError(f"{path.name} is not an image archive, or is damaged: {reason}") from error
