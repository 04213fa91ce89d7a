"""Handing images out: OCI layouts, archives that ``docker load`` reads, registries."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.commands.layersource import StoreLayers
from danlu.errors import OutsideError, UsageError
from danlu.graph import Progress, Transfer
from danlu.oci.compress import Compression
from danlu.oci.image import read_image
from danlu.util.space import told

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.oci.image import Image
    from danlu.store import Store, StoredImage

__all__ = ["Output", "parse_output", "push_names", "write_output"]

_TYPES = ("oci", "dir", "docker")
_KINDS: dict[str, Compression] = {"zstd": "zstd", "gzip": "gzip", "none": "none"}


class Output(msgspec.Struct, frozen=True):
    """``type=TYPE,dest=PATH``: ``oci`` and ``dir`` are OCI layouts, ``docker`` a docker archive."""

    kind: str
    dest: Path
    compression: Compression | None = None


def parse_output(text: str) -> Output:
    """``-o``'s value; raises :class:`UsageError` for what it cannot mean."""
    fields = {name: value for name, _, value in (one.partition("=") for one in text.split(","))}
    kind, dest = fields.pop("type", "oci"), fields.pop("dest", "")
    compression = fields.pop("compression", "")
    if kind not in _TYPES or not dest or fields or compression not in ("", *_KINDS):
        raise UsageError(
            f"cannot write an image to {text!r}",
            hint="say type=oci|dir|docker,dest=PATH[,compression=zstd|gzip|none]",
        )
    return Output(kind, Path(dest).expanduser(), _KINDS.get(compression))


def write_output(
    store: Store,
    image: StoredImage,
    text: str,
    *,
    names: Sequence[str] = (),
    compression: str = "zstd",
) -> tuple[str, str]:
    """Write the image as ``text`` says; gives the manifest's digest (if there is one) and place.

    What is already at the destination is not written again. Raises :class:`OutsideError` where it
    cannot be written, and leaves no half archive then.
    """
    output = parse_output(text)
    source, parsed = StoreLayers(store), read_image(image.config)
    try:
        if output.kind == "docker":
            _write_archive(output.dest, parsed, source, names)
            return "", str(output.dest)
        from danlu.oci import layout

        kind = output.compression or _KINDS[compression]
        written = layout.write(output.dest, parsed, source, kind=kind, names=names)
    except OSError as error:
        raise OutsideError(f"cannot write {output.dest}: {error.strerror}") from error
    return written.manifest.digest, str(output.dest)


def _write_archive(dest: Path, image: Image, source: StoreLayers, names: Sequence[str]) -> None:
    from danlu.oci import dockerarchive

    dest.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{dest.name}.", dir=dest.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            dockerarchive.write(image, source, file.write, names=names)
            os.fchmod(file.fileno(), 0o644)
        os.replace(partial, dest)
    except BaseException:
        os.unlink(partial)
        raise


def push_names(
    store: Store,
    image: StoredImage,
    names: Sequence[str],
    *,
    settings: Settings,
    compression: str = "gzip",
    progress: Progress,
) -> str:
    """Push the image under each of ``names``; gives the manifest's digest.

    Only blobs that the registry lacks travel. Raises :class:`OutsideError` for a registry that
    refuses, :class:`~danlu.errors.TemporaryError` for one that does not answer after some tries.
    """
    import anyio

    from danlu.sources.image import push

    began = time.monotonic()
    source, parsed = StoreLayers(store), read_image(image.config)

    def meter(name: str) -> Callable[[int, int], None]:
        def moved(current: int, total: int) -> None:
            progress(Transfer(name, name, current, total, time.monotonic() - began))

        return moved

    async def all_of_them() -> str:
        digest = ""
        for name in names:
            digest = await push(
                name,
                parsed,
                source,
                kind=_KINDS[compression],
                config=settings.config,
                scratch=store.root / "tmp",
                transfer=meter(name),
            )
        return digest

    with told(f"the store ({store.root})"):
        return anyio.run(all_of_them)
