"""``danlu image load``: images of archives and layouts, brought into the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.oci.compress import Compression
    from danlu.oci.image import Image
    from danlu.oci.tar.read import Readable
    from danlu.store import Store, StoredImage

__all__ = ["load"]

#: Called before each layer: its number from 1, and how many there are.
Progress = Callable[[int, int], None]


def load(
    store: Store, path: Path, *, names: Sequence[str] = (), progress: Progress | None = None
) -> tuple[StoredImage, ...]:
    """Put the images of ``path`` into the store: an OCI layout or an archive of ``docker save``.

    ``names`` are given to the image beside those it has (with several images, that is an error).
    Layers that are here already are not unpacked again. Raises :class:`UsageError` where there is
    nothing at ``path``, :class:`~danlu.errors.OutsideError` where it is damaged.
    """
    if not path.exists():
        raise UsageError(f"there is no {path}", hint="name an archive or an OCI layout")
    with store.lease():
        found = list(
            _from_layout(store, path, progress)
            if path.is_dir()
            else _from_archive(store, path, progress)
        )
        if names and len(found) > 1:
            raise UsageError(f"{path} holds {len(found)} images, so they cannot all be {names[0]}")
        return tuple(_keep(store, image, (*own, *names), path) for image, own in found)


def _keep(store: Store, image: Image, names: Sequence[str], path: Path) -> StoredImage:
    known = store.image(image.digest)
    metadata = dict(known.metadata) if known else {"loaded": path.name}
    unique = list(dict.fromkeys(names))
    return store.put_image(image.config, image.diff_ids, names=unique, metadata=metadata)


def _from_layout(
    store: Store, path: Path, progress: Progress | None
) -> Iterator[tuple[Image, tuple[str, ...]]]:
    from danlu.oci import layout
    from danlu.oci.compress import decompressed

    for one in layout.read(path):
        for number, (descriptor, file) in enumerate(one.layers):
            if progress is not None:
                progress(number + 1, len(one.layers))

            @contextmanager
            def opened(kind: str = descriptor.media_type, file: Path = file) -> Iterator[Readable]:
                with file.open("rb") as raw:
                    yield decompressed(_compression(kind), raw)

            _layer(store, one.image, number, opened)
        yield one.image, tuple(_familiar(name) for name in one.names)


def _compression(media_type: str) -> Compression:
    from danlu.oci.types import layer_compression

    kind = layer_compression(media_type)
    return "gzip" if kind == "gzip" else "zstd" if kind == "zstd" else "none"


def _from_archive(
    store: Store, path: Path, progress: Progress | None
) -> Iterator[tuple[Image, tuple[str, ...]]]:
    from danlu.oci import dockerarchive

    with dockerarchive.opened(path) as archive:
        for one in archive.images:
            for number, member in enumerate(one.members):
                if progress is not None:
                    progress(number + 1, len(one.members))

                @contextmanager
                def opened(member: str = member) -> Iterator[Readable]:
                    yield archive.layer(member)

                _layer(store, one.image, number, opened)
            yield one.image, tuple(_familiar(name) for name in one.names)


def _familiar(name: str) -> str:
    """A name as we list it; one that is no reference (a bare tag of a layout) is left out."""
    from danlu.oci.reference import Reference

    try:
        return Reference.parse(name).familiar
    except UsageError:
        return name


def _layer(
    store: Store,
    image: Image,
    number: int,
    opened: Callable[[], AbstractContextManager[Readable]],
) -> None:
    """Unpack one layer, unless it is here, and compare it with what the image says of it."""
    from danlu.sources.image import keep_layer

    diff_id = image.diff_ids[number]
    if store.layer(diff_id) is None:
        with opened() as stream:
            keep_layer(store, stream, diff_id, image.created_by[number])


def spooled(stream: BinaryIO, directory: Path) -> Path:
    """What comes on a pipe, as a file in ``directory``: archives are read at any place."""
    import shutil

    path = directory / "archive.tar"
    with path.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return path
