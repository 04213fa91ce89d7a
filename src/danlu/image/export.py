"""Export images: OCI layouts, archives for ``docker load``, registries."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from danlu.errors import OutsideError, TemporaryError, UsageError
from danlu.graph.progress import Progress
from danlu.image import file_trees
from danlu.image.transfer_progress import TransferProgress, TransferSummary
from danlu.oci import docker_archive, layout
from danlu.oci.compress import Compression
from danlu.oci.image import parse_image
from danlu.sources.blob_locations import StoredBlobLocations
from danlu.sources.image import push
from danlu.store.store_layers import StoreLayers
from danlu.util.disk_full import translate_disk_full
from danlu.util.files import is_special_file

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.store import Store, StoredImage

_REPEAT_HINT = "layers that arrived are not sent again"
_OUTPUT_TYPES = ("oci", "dir", "docker", "tar", "dockerfile")
_FILE_TYPES = ("docker", "tar")
#: The types that hold images of several platforms.
_INDEX_TYPES = ("oci", "dir")
_COMPRESSIONS: dict[str, Compression] = {"zstd": "zstd", "gzip": "gzip", "none": "none"}


class ImageOutput(msgspec.Struct, frozen=True):
    """``type=TYPE,dest=PATH``.

    ``oci`` and ``dir`` are OCI layouts, ``docker`` is an archive for ``docker load``, ``tar`` the
    files of the image, ``dockerfile`` a directory with a Dockerfile that builds them.
    """

    kind: str
    dest: Path
    compression: Compression | None = None


def parse_output(text: str) -> ImageOutput:
    """Parse the value of ``--output``; raises :class:`UsageError` if it is invalid."""
    fields = {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
    kind, dest = fields.pop("type", "oci"), fields.pop("dest", "")
    compression = fields.pop("compression", "")
    if kind not in _OUTPUT_TYPES or not dest or fields or compression not in ("", *_COMPRESSIONS):
        raise UsageError(
            f"invalid output {text!r}",
            hint="use type=oci|dir|docker|tar|dockerfile,dest=PATH[,compression=zstd|gzip|none]",
        )
    output = ImageOutput(kind, Path(dest).expanduser(), _COMPRESSIONS.get(compression))
    _check_destination(output)
    return output


def _check_destination(output: ImageOutput) -> None:
    """Raise :class:`UsageError` for what cannot become a file or directory of an export."""
    dest = output.dest
    if str(dest) == "-" or is_special_file(dest):
        raise UsageError(
            f"cannot write an image to {dest}: it is not a regular file",
            hint="write to a file or directory",
        )
    if output.kind in _FILE_TYPES and dest.is_dir():
        raise UsageError(f"{dest} is a directory", hint="choose a file to write to")


def check_index_output(output: ImageOutput) -> None:
    """Raise :class:`UsageError` for an output that cannot hold images of several platforms."""
    if output.kind not in _INDEX_TYPES:
        raise UsageError(
            f"type={output.kind} holds one platform",
            hint=f"use type={_INDEX_TYPES[0]}, or name one platform: NAME@linux/arm64",
        )


def write_output(
    store: Store,
    image: StoredImage,
    text: str,
    *,
    names: Sequence[str] = (),
    compression: str = "zstd",
    others: Sequence[StoredImage] = (),
) -> tuple[str, str]:
    """Write the image to the output ``text``; return the manifest's digest, if any, and the path.

    With ``others``, the same image for other platforms, an index of all is written to a layout.
    A layout is written incrementally, an archive atomically. Raises :class:`OutsideError` if the
    destination cannot be written, :class:`UsageError` if the image has editable packages.
    """
    output = parse_output(text)
    if others:
        check_index_output(output)
    for exported in (image, *others):
        _refuse_editable(exported)
    source, parsed = StoreLayers(store), parse_image(image.config)
    try:
        if output.kind == "docker":
            write = partial(docker_archive.write_archive, parsed, source, names=names)
            _write_file(output.dest, write)
            return "", str(output.dest)
        if output.kind == "tar":
            _write_file(output.dest, partial(file_trees.write_rootfs, store, image))
            return "", str(output.dest)
        if output.kind == "dockerfile":
            file_trees.write_dockerfile(store, image, output.dest)
            return "", str(output.dest)
        kind = output.compression or _COMPRESSIONS[compression]
        if others:
            images = [parsed, *(parse_image(other.config) for other in others)]
            index = layout.write_layout_index(output.dest, images, source, kind=kind, names=names)
            return index.digest, str(output.dest)
        written = layout.write_layout(output.dest, parsed, source, kind=kind, names=names)
    except OSError as error:
        raise OutsideError(f"cannot write {output.dest}: {error.strerror}") from error
    return written.manifest.digest, str(output.dest)


def _refuse_editable(image: StoredImage) -> None:
    """Raise if the image lacks packages that are used from the mounted project."""
    if packages := image.metadata.get("editable"):
        raise UsageError(
            f"the image works only with its project: {packages} is installed with -e",
            hint="`danlu build` with --push or --output builds an image with a copy of it",
        )


def _write_file(dest: Path, write_content: Callable[[Callable[[bytes], object]], object]) -> None:
    """Write a file atomically with a function that takes the function to write with."""
    dest = Path(os.path.realpath(dest))
    dest.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{dest.name}.", dir=dest.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write_content(file.write)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, dest)
    except BaseException:
        os.unlink(temporary)
        raise


def push_names(
    store: Store,
    image: StoredImage,
    names: Sequence[str],
    *,
    settings: Settings,
    compression: str = "gzip",
    progress: Progress,
    others: Sequence[StoredImage] = (),
    create_repository: bool = False,
    on_pushed: Callable[[str, TransferSummary], None] | None = None,
) -> str:
    """Push the image under each of ``names``; return the manifest's digest.

    With ``others``, the same image for other platforms, an index of all is pushed.
    Blobs that the registry has are not sent, those of another repository are mounted.
    ``create_repository`` is as for :func:`~danlu.sources.image.push`.
    ``on_pushed`` is called with each name and what was sent. Raises :class:`OutsideError` if the
    registry refuses the push, :class:`~danlu.errors.TemporaryError` if it does not answer after
    several attempts, :class:`UsageError` if the image has editable packages.
    """
    for exported in (image, *others):
        _refuse_editable(exported)
    source, parsed = StoreLayers(store), parse_image(image.config)
    others_parsed = [parse_image(other.config) for other in others]

    async def push_name(name: str) -> str:
        transfer = TransferProgress(name, "push", progress, images=(parsed, *others_parsed))
        transfer.start()
        digest = await push(
            name,
            parsed,
            source,
            others=others_parsed,
            kind=_COMPRESSIONS[compression],
            config=settings.config,
            scratch=store.root / "tmp",
            locations=StoredBlobLocations(store),
            create_repository=create_repository,
            on_layer=transfer.report_layer,
            on_retry=transfer.report_retry,
        )
        summary = transfer.finish()
        if on_pushed is not None:
            on_pushed(name, summary)
        return digest

    async def push_all() -> str:
        return [await push_name(name) for name in names][-1]

    with translate_disk_full(f"the store ({store.root})"):
        try:
            return anyio.run(push_all)
        except TemporaryError as error:
            error.hint = f"{error.hint or 'check the network'}; {_REPEAT_HINT}"
            raise
