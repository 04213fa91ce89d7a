"""Load images from archives and OCI layouts into the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from danlu.errors import UsageError
from danlu.oci import docker_archive, layout
from danlu.oci.compress import Compression, open_decompressor
from danlu.oci.image import Image
from danlu.oci.reference import Reference
from danlu.oci.tar.read import Readable
from danlu.oci.types import layer_compression
from danlu.sources.layer_download import store_layer

if TYPE_CHECKING:
    from danlu.store import Store, StoredImage

#: Called before each layer with its number, from 1, and the number of layers.
LayerProgress = Callable[[int, int], None]

_OpenLayer = Callable[[], AbstractContextManager[Readable]]


def load_images(
    store: Store,
    path: Path,
    *,
    names: Sequence[str] = (),
    progress: LayerProgress = lambda number, count: None,
) -> tuple[StoredImage, ...]:
    """Load the images of an OCI layout (a directory) or a ``docker save`` archive (a file).

    ``names`` are added to those that the image has; that is an error for several images. Layers
    that the store has are not unpacked again. Raises :class:`UsageError` if ``path`` does not
    exist, :class:`~danlu.errors.OutsideError` if it is damaged.
    """
    if not path.exists():
        raise UsageError(f"{path} not found", hint="pass an archive or an OCI layout")
    with store.lease():
        read = _load_layout if path.is_dir() else _load_archive
        loaded = list(read(store, path, progress))
        if names and len(loaded) > 1:
            raise UsageError(
                f"{path} contains {len(loaded)} images, which cannot all be named {names[0]}"
            )
        return tuple(_store_image(store, image, (*own, *names), path) for image, own in loaded)


def _store_image(store: Store, image: Image, names: Sequence[str], path: Path) -> StoredImage:
    existing = store.image(image.digest)
    metadata = dict(existing.metadata) if existing else {"loaded": path.name}
    unique = list(dict.fromkeys(names))
    return store.put_image(image.config, image.diff_ids, names=unique, metadata=metadata)


def _load_layout(
    store: Store, path: Path, progress: LayerProgress
) -> Iterator[tuple[Image, tuple[str, ...]]]:
    for entry in layout.read_layout(path):
        for index, (descriptor, file) in enumerate(entry.layers):
            progress(index + 1, len(entry.layers))

            @contextmanager
            def open_layer(
                media_type: str = descriptor.media_type, file: Path = file
            ) -> Iterator[Readable]:
                with file.open("rb") as raw:
                    yield open_decompressor(_layer_compression(media_type), raw)

            _load_layer(store, entry.image, index, open_layer)
        yield entry.image, tuple(map(_familiar_name, entry.names))


def _layer_compression(media_type: str) -> Compression:
    kind = layer_compression(media_type)
    return "gzip" if kind == "gzip" else "zstd" if kind == "zstd" else "none"


def _load_archive(
    store: Store, path: Path, progress: LayerProgress
) -> Iterator[tuple[Image, tuple[str, ...]]]:
    with docker_archive.open_archive(path) as archive:
        for entry in archive.images:
            for index, member in enumerate(entry.members):
                progress(index + 1, len(entry.members))

                @contextmanager
                def open_layer(member: str = member) -> Iterator[Readable]:
                    yield archive.open_layer(member)

                _load_layer(store, entry.image, index, open_layer)
            yield entry.image, tuple(map(_familiar_name, entry.names))


def _familiar_name(name: str) -> str:
    """Return a name as images are listed; a layout's bare tag (not a reference) is kept."""
    try:
        return Reference.parse(name).familiar_name
    except UsageError:
        return name


def _load_layer(store: Store, image: Image, index: int, open_layer: _OpenLayer) -> None:
    """Unpack a layer unless the store has it, and verify it against the image's diff ID."""
    diff_id = image.diff_ids[index]
    if store.layer(diff_id) is None:
        with open_layer() as stream:
            store_layer(store, stream, diff_id, image.created_by[index])


def spool_stream(stream: BinaryIO, directory: Path) -> Path:
    """Copy a pipe to a file in ``directory``, because archives are read in any order."""
    path = directory / "archive.tar"
    with path.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return path
