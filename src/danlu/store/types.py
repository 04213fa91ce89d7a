"""What the store hands out: layers, images, and the results of its upkeep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from danlu.oci.digest import DiffId, Digest

__all__ = ["Collected", "Compressed", "Finding", "FindingKind", "Layer", "StoredImage", "Usage"]


class Layer(msgspec.Struct, frozen=True):
    """One layer that is whole and unpacked.

    ``size`` is that of its uncompressed tar in bytes, ``files`` its number of entries, ``tree``
    the directory that holds it in overlayfs's form. The tree is never changed in place.
    """

    diff_id: DiffId
    size: int
    files: int
    created_by: str
    tree: Path


class StoredImage(msgspec.Struct, frozen=True):
    """An image: its config as received, its layers lowest first, its names, what danlu notes.

    ``digest`` is the digest of ``config`` (the image's identity); ``blobs`` are kept with it;
    ``created`` and ``used`` are seconds since 1970.
    """

    digest: Digest
    config: bytes
    layers: tuple[DiffId, ...]
    names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    blobs: tuple[Digest, ...] = ()
    created: float = 0.0
    used: float = 0.0


class Compressed(msgspec.Struct, frozen=True):
    """A layer's compressed form: digest and size in bytes; the blob itself may be absent."""

    digest: Digest
    size: int


class Collected(msgspec.Struct, frozen=True):
    """What :meth:`Store.collect` removed, in numbers, and how many bytes went and stayed."""

    images: int = 0
    layers: int = 0
    blobs: int = 0
    records: int = 0
    freed: int = 0
    kept: int = 0


FindingKind = Literal[
    "index-damaged",
    "layer-missing",
    "layer-damaged",
    "tree-unknown",
    "blob-missing",
    "blob-damaged",
    "blob-unknown",
    "image-damaged",
    "image-incomplete",
    "record-damaged",
    "leftover",
]


class Finding(msgspec.Struct, frozen=True):
    """One thing :meth:`Store.check` found wrong; ``subject`` is a digest, a key or a path."""

    kind: FindingKind
    subject: str
    detail: str = ""
    repaired: bool = False

    @property
    def harmless(self) -> bool:
        """Whether it only takes room, as a kill leaves it; nothing that is used is damaged."""
        return self.kind in ("tree-unknown", "blob-unknown", "leftover")


class Usage(msgspec.Struct, frozen=True):
    """Bytes by kind; layers count as their uncompressed tars, ``images`` and ``records`` rows."""

    layers: int
    blobs: int
    images: int
    records: int
    index: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.layers + self.blobs + self.images + self.records + self.index
