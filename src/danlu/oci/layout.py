"""OCI image layouts: images in a directory, as ``skopeo``, ``podman`` and others read them.

OCI image spec v1.1, image-layout.md.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.oci.blob_export import (
    LayerBlob,
    LayerSource,
    compress_layer,
    describe_manifest,
    make_index,
    make_manifest,
)
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId, Digest
from danlu.oci.image import Image, parse_image
from danlu.oci.reference import Reference
from danlu.oci.types import (
    Descriptor,
    Index,
    Manifest,
    MediaType,
    ParsedDocument,
    encode_json,
    parse_manifest,
)
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

_REF_NAME = "org.opencontainers.image.ref.name"
#: containerd's annotation for the full name, which BuildKit writes too: ref.name has the tag only.
_FULL_NAME = "io.containerd.image.name"
_LAYOUT_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class LayoutWriteResult(msgspec.Struct, frozen=True):
    """The manifest's descriptor in the index, the layers, and the number of bytes written."""

    manifest: Descriptor
    layers: tuple[LayerBlob, ...]
    new_bytes: int


class LayoutImage(msgspec.Struct, frozen=True):
    """An image in a layout; ``layers`` are descriptors and files of the blobs, lowest first."""

    manifest: ParsedDocument[Manifest]
    image: Image
    layers: tuple[tuple[Descriptor, Path], ...]
    names: tuple[str, ...]


def write_layout(
    directory: Path,
    image: Image,
    source: LayerSource,
    *,
    kind: Compression = "zstd",
    names: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    omit: Container[DiffId] = (),
) -> LayoutWriteResult:
    """Write ``image`` into the layout at ``directory``, creating it if necessary.

    Blobs that exist are neither compressed nor written again, and layers in ``omit`` are not
    written if the digest of their blob is known. ``progress`` is called with the number of layers
    written and the total. Other images in the layout stay; one with the same name loses it. Raises
    :class:`UsageError` if ``directory`` contains something else.
    """
    references = [Reference.parse(name) for name in names]
    _prepare_directory(directory)
    blobs = _BlobDirectory(directory)
    described, layers = blobs.write_image(image, source, kind, progress=progress, omit=omit)
    # Concurrent writers of a layout must not lose each other's entries.
    with file_lock(directory / "oci-layout"):
        _add_to_index(directory, described, references)
    return LayoutWriteResult(described, layers, blobs.new_bytes)


def write_layout_index(
    directory: Path,
    images: Sequence[Image],
    source: LayerSource,
    *,
    kind: Compression = "zstd",
    names: Sequence[str] = (),
) -> Descriptor:
    """Write an index of ``images``, one for each platform, as :func:`write_layout` does an image.

    Returns the descriptor of the index.
    """
    references = [Reference.parse(name) for name in names]
    _prepare_directory(directory)
    blobs = _BlobDirectory(directory)
    index = make_index([blobs.write_image(image, source, kind)[0] for image in images])
    blobs.write_blob(index.raw)
    with file_lock(directory / "oci-layout"):
        _add_to_index(directory, index.descriptor, references)
    return index.descriptor


def _prepare_directory(directory: Path) -> None:
    marker = directory / "oci-layout"
    if not marker.exists() and directory.exists():
        if not directory.is_dir():
            raise UsageError(f"{directory} is a file", hint="choose a directory to write to")
        if any(directory.iterdir()):
            raise UsageError(
                f"{directory} is not empty and not an OCI layout",
                hint="choose an empty directory, or one that danlu has written before",
            )
    (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not marker.exists():
        write_atomic(marker, _LAYOUT_MARKER, sync=False)


class _BlobDirectory:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "blobs" / "sha256"
        self.new_bytes = 0

    def write_blob(self, data: bytes) -> None:
        path = self._directory / hashlib.sha256(data).hexdigest()
        if not _has_file(path, len(data)):
            write_atomic(path, data, sync=False)
            self.new_bytes += len(data)

    def write_image(
        self,
        image: Image,
        source: LayerSource,
        kind: Compression,
        *,
        progress: Callable[[int, int], None] | None = None,
        omit: Container[DiffId] = (),
    ) -> tuple[Descriptor, tuple[LayerBlob, ...]]:
        """Write the blobs of an image; return its manifest's descriptor and its layers."""
        layers = []
        for number, diff_id in enumerate(image.diff_ids):
            blob = source.find_blob(diff_id, kind) if diff_id in omit else None
            layers.append(blob or self.ensure_layer(source, diff_id, kind))
            if progress is not None:
                progress(number + 1, len(image.diff_ids))
        manifest = make_manifest(image, layers)
        self.write_blob(image.config)
        self.write_blob(manifest.raw)
        return describe_manifest(manifest, image), tuple(layers)

    def ensure_layer(self, source: LayerSource, diff_id: DiffId, kind: Compression) -> LayerBlob:
        """Return the blob of a layer, writing it to the layout if it is not there."""
        known = source.find_blob(diff_id, kind)
        if known is not None and _has_file(self._blob_path(known.digest), known.size):
            return known
        if known is not None and known.path is not None:
            _copy_blob(known, self._blob_path(known.digest))
            self.new_bytes += known.size
            return known
        with tempfile.TemporaryDirectory(prefix=".making.", dir=self._directory) as scratch:
            blob = compress_layer(source, diff_id, kind, Path(scratch, "blob"))
            os.replace(Path(scratch, "blob"), self._blob_path(blob.digest))
        self.new_bytes += blob.size
        return blob

    def _blob_path(self, digest: Digest) -> Path:
        return self._directory / digest.removeprefix("sha256:")


def _has_file(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _copy_blob(blob: LayerBlob, path: Path) -> None:
    """Copy a blob; a hard link would let changes to the layout reach our store."""
    assert blob.path is not None
    with _atomic_file(path) as name:
        shutil.copyfile(blob.path, name)
        _verify_blob(name, blob.digest, blob.size)
        name.chmod(0o644)


@contextmanager
def _atomic_file(path: Path) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(prefix=".making.", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _add_to_index(directory: Path, manifest: Descriptor, references: Sequence[Reference]) -> None:
    """Add the manifest to ``index.json``: once per name, or once if it has none."""
    replaced_names = {str(reference) for reference in references}
    kept = [
        descriptor
        for descriptor in _read_index(directory).manifests
        if _full_name(descriptor) not in replaced_names
    ]
    if not references:
        kept = [
            descriptor
            for descriptor in kept
            if descriptor.digest != manifest.digest or _full_name(descriptor)
        ]
        kept.append(manifest)
    for reference in references:
        annotations = {_FULL_NAME: str(reference), _REF_NAME: reference.tag or reference.target}
        kept.append(msgspec.structs.replace(manifest, annotations=annotations))
    kept.sort(key=lambda descriptor: (_full_name(descriptor), descriptor.digest))
    index = Index(manifests=tuple(kept), media_type=MediaType.INDEX)
    write_atomic(directory / "index.json", encode_json(index), sync=False)


def _read_index(directory: Path) -> Index:
    path = directory / "index.json"
    if not path.exists():
        return Index(manifests=())
    document = parse_manifest(path.read_bytes(), MediaType.INDEX)
    if not isinstance(document.value, Index):
        raise OutsideError(f"{path} is not an image index")
    return document.value


def _full_name(descriptor: Descriptor) -> str:
    return (descriptor.annotations or {}).get(_FULL_NAME, "")


def read_layout(directory: Path) -> tuple[LayoutImage, ...]:
    """Return the images of a layout, each once, with every blob verified against its digest.

    Raises :class:`ChecksumError` for a damaged blob, and :class:`OutsideError` if a blob is missing
    or ``directory`` is not a layout.
    """
    if not (directory / "oci-layout").is_file():
        raise OutsideError(f"{directory} is not an OCI layout: it has no oci-layout file")
    names: dict[Digest, list[str]] = {}
    manifests: dict[Digest, ParsedDocument[Manifest]] = {}
    for descriptor in _read_index(directory).manifests:
        for manifest in _walk_manifests(directory, descriptor, depth=0):
            manifests[manifest.digest] = manifest
            name = _full_name(descriptor) or (descriptor.annotations or {}).get(_REF_NAME, "")
            names.setdefault(manifest.digest, []).extend([name] if name else [])
    return tuple(
        _load_image(directory, document, tuple(names[digest]))
        for digest, document in manifests.items()
    )


def _walk_manifests(
    directory: Path, descriptor: Descriptor, *, depth: int
) -> Iterator[ParsedDocument[Manifest]]:
    if depth > 4:
        raise OutsideError(f"{directory}: indexes are nested too deeply")
    document = parse_manifest(_find_blob(directory, descriptor).read_bytes(), descriptor.media_type)
    if isinstance(document.value, Manifest):
        yield ParsedDocument(document.raw, document.media_type, document.value)
        return
    for child in document.value.manifests:
        yield from _walk_manifests(directory, child, depth=depth + 1)


def _load_image(
    directory: Path, manifest: ParsedDocument[Manifest], names: tuple[str, ...]
) -> LayoutImage:
    image = parse_image(_find_blob(directory, manifest.value.config).read_bytes())
    if len(image.diff_ids) != len(manifest.value.layers):
        raise OutsideError(f"{directory}: the image's manifest and config list different layers")
    layers = tuple((layer, _find_blob(directory, layer)) for layer in manifest.value.layers)
    return LayoutImage(manifest, image, layers, names)


def _find_blob(directory: Path, descriptor: Descriptor) -> Path:
    path = directory / "blobs" / "sha256" / descriptor.digest.removeprefix("sha256:")
    # An untrusted layout must not make us read other files of this machine through a link.
    if path.is_symlink() or not path.is_file():
        raise OutsideError(f"{directory} has no blob {descriptor.digest}")
    _verify_blob(path, descriptor.digest, descriptor.size)
    return path


def _verify_blob(path: Path, digest: Digest, size: int) -> None:
    actual = path.stat().st_size
    if actual != size:
        raise ChecksumError(f"{path} has {actual} bytes, but {digest} has {size}")
    with path.open("rb") as file:
        actual_digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    if actual_digest != digest:
        raise ChecksumError(f"{path} is damaged: its digest is {actual_digest}")
