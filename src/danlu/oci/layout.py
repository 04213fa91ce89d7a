"""OCI image layouts: an image in a directory, as ``skopeo``, ``podman`` and others read it.

OCI image spec v1.1, image-layout.md.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId, Digest
from danlu.oci.exporting import Blob, LayerSource, make_manifest, produce
from danlu.oci.image import Image, read_image
from danlu.oci.reference import Reference
from danlu.oci.types import (
    Descriptor,
    Document,
    Index,
    Manifest,
    MediaType,
    Platform,
    encode,
    parse_manifest,
)
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

__all__ = ["LayoutImage", "Written", "read", "write"]

_REF_NAME = "org.opencontainers.image.ref.name"
#: containerd's, and what BuildKit writes beside the above, which holds the tag only.
_FULL_NAME = "io.containerd.image.name"
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'


class Written(msgspec.Struct, frozen=True):
    """What was written: the manifest as the index names it, the layers, the bytes that were new."""

    manifest: Descriptor
    layers: tuple[Blob, ...]
    new_bytes: int


class LayoutImage(msgspec.Struct, frozen=True):
    """An image in a layout: the files of its layers with their descriptors, lowest first."""

    manifest: Document[Manifest]
    image: Image
    layers: tuple[tuple[Descriptor, Path], ...]
    names: tuple[str, ...]


def write(
    directory: Path,
    image: Image,
    source: LayerSource,
    *,
    kind: Compression = "zstd",
    names: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write ``image`` into the layout at ``directory``, which is made, or added to.

    Blobs that are there are neither made nor written again. ``progress`` is called with the number
    of layers done and of all. Other images of the layout stay; one of the same name loses it.
    Raises :class:`UsageError` where ``directory`` holds something else.
    """
    references = [Reference.parse(name) for name in names]
    _prepare(directory)
    blobs = _Blobs(directory)
    layers = []
    for number, diff_id in enumerate(image.diff_ids):
        layers.append(blobs.layer(source, diff_id, kind))
        if progress is not None:
            progress(number + 1, len(image.diff_ids))
    manifest = make_manifest(image, layers)
    blobs.put(image.config)
    blobs.put(manifest.raw)
    described = Descriptor(
        manifest.media_type,
        manifest.digest,
        len(manifest.raw),
        platform=Platform(image.parsed.architecture, image.parsed.os, image.parsed.variant or ""),
    )
    with file_lock(directory / "oci-layout"):
        _add(directory, described, references)
    return Written(described, tuple(layers), blobs.new_bytes)


def _prepare(directory: Path) -> None:
    marker = directory / "oci-layout"
    if not marker.exists() and directory.exists():
        if not directory.is_dir():
            raise UsageError(f"{directory} is a file", hint="name a directory to write to")
        if any(directory.iterdir()):
            raise UsageError(
                f"{directory} holds something that is no OCI layout",
                hint="name an empty directory, or one that danlu has written",
            )
    (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not marker.exists():
        write_atomic(marker, _LAYOUT, sync=False)


class _Blobs:
    def __init__(self, directory: Path) -> None:
        self._place = directory / "blobs" / "sha256"
        self.new_bytes = 0

    def put(self, data: bytes) -> None:
        path = self._place / hashlib.sha256(data).hexdigest()
        if not _has(path, len(data)):
            write_atomic(path, data, sync=False)
            self.new_bytes += len(data)

    def layer(self, source: LayerSource, diff_id: DiffId, kind: Compression) -> Blob:
        """The blob of a layer, which is in the layout afterwards."""
        known = source.known(diff_id, kind)
        if known is not None and _has(self._path(known.digest), known.size):
            return known
        if known is not None and known.path is not None:
            _copy(known, self._path(known.digest))
            self.new_bytes += known.size
            return known
        with tempfile.TemporaryDirectory(prefix=".making.", dir=self._place) as place:
            blob = produce(source, diff_id, kind, Path(place, "blob"))
            os.replace(Path(place, "blob"), self._path(blob.digest))
        self.new_bytes += blob.size
        return blob

    def _path(self, digest: Digest) -> Path:
        return self._place / digest.removeprefix("sha256:")


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _copy(blob: Blob, path: Path) -> None:
    """A copy, not a link: what others do in the layout must not reach our store."""
    assert blob.path is not None
    with _new_file(path) as name:
        shutil.copyfile(blob.path, name)
        _verify(name, blob.digest, blob.size)
        name.chmod(0o644)


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=".making.", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _add(directory: Path, manifest: Descriptor, references: Sequence[Reference]) -> None:
    """Put the manifest into ``index.json``, once a name, or once where it has none."""
    taken = {str(one) for one in references}
    kept = [one for one in _index(directory).manifests if _full_name(one) not in taken]
    if not references:
        kept = [one for one in kept if one.digest != manifest.digest or _full_name(one)]
        kept.append(manifest)
    for one in references:
        annotations = {_FULL_NAME: str(one), _REF_NAME: one.tag or one.target}
        kept.append(msgspec.structs.replace(manifest, annotations=annotations))
    kept.sort(key=lambda one: (_full_name(one), one.digest))
    index = Index(manifests=tuple(kept), media_type=MediaType.INDEX)
    write_atomic(directory / "index.json", encode(index), sync=False)


def _index(directory: Path) -> Index:
    path = directory / "index.json"
    if not path.exists():
        return Index(manifests=())
    document = parse_manifest(path.read_bytes(), MediaType.INDEX)
    if not isinstance(document.value, Index):
        raise OutsideError(f"{path} is no image index")
    return document.value


def _full_name(descriptor: Descriptor) -> str:
    return (descriptor.annotations or {}).get(_FULL_NAME, "")


def read(directory: Path) -> tuple[LayoutImage, ...]:
    """The images of a layout, each once, every blob verified against its digest.

    Raises :class:`ChecksumError` for a damaged blob, :class:`OutsideError` where one is missing or
    ``directory`` is no layout.
    """
    if not (directory / "oci-layout").is_file():
        raise OutsideError(f"{directory} is no OCI layout: it has no file oci-layout")
    names: dict[Digest, list[str]] = {}
    found: dict[Digest, Document[Manifest]] = {}
    for descriptor in _index(directory).manifests:
        for manifest in _manifests(directory, descriptor, depth=0):
            found[manifest.digest] = manifest
            name = _full_name(descriptor) or (descriptor.annotations or {}).get(_REF_NAME, "")
            names.setdefault(manifest.digest, []).extend([name] if name else [])
    return tuple(_load(directory, one, tuple(names[digest])) for digest, one in found.items())


def _manifests(
    directory: Path, descriptor: Descriptor, *, depth: int
) -> Iterator[Document[Manifest]]:
    if depth > 4:
        raise OutsideError(f"{directory}: indexes within indexes, too deep")
    document = parse_manifest(_blob(directory, descriptor).read_bytes(), descriptor.media_type)
    if isinstance(document.value, Manifest):
        yield Document(document.raw, document.media_type, document.value)
        return
    for one in document.value.manifests:
        yield from _manifests(directory, one, depth=depth + 1)


def _load(directory: Path, manifest: Document[Manifest], names: tuple[str, ...]) -> LayoutImage:
    image = read_image(_blob(directory, manifest.value.config).read_bytes())
    if len(image.diff_ids) != len(manifest.value.layers):
        raise OutsideError(f"{directory}: the image's manifest and config name different layers")
    layers = tuple((one, _blob(directory, one)) for one in manifest.value.layers)
    return LayoutImage(manifest, image, layers, names)


def _blob(directory: Path, descriptor: Descriptor) -> Path:
    path = directory / "blobs" / "sha256" / descriptor.digest.removeprefix("sha256:")
    # A stranger's layout must not make us read other files of this machine.
    if path.is_symlink() or not path.is_file():
        raise OutsideError(f"{directory} lacks the blob {descriptor.digest}")
    _verify(path, descriptor.digest, descriptor.size)
    return path


def _verify(path: Path, digest: Digest, size: int) -> None:
    actual = path.stat().st_size
    if actual != size:
        raise ChecksumError(f"{path} has {actual} bytes, not the {size} of {digest}")
    with path.open("rb") as file:
        found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        raise ChecksumError(f"{path} is damaged: it has the digest {found}")
