"""Values that the store returns: layers, images, and the results of maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from danlu.oci.digest import DiffId, Digest


class Layer(msgspec.Struct, frozen=True):
    """A complete, unpacked layer.

    ``size`` is the size of its uncompressed tar in bytes, ``files`` the number of its entries,
    ``tree`` the directory with its content in overlayfs format. The tree is never modified.
    """

    diff_id: DiffId
    size: int
    files: int
    created_by: str
    tree: Path


class StoredImage(msgspec.Struct, frozen=True):
    """An image: its config exactly as received, its layers (lowest first), its names and metadata.

    ``digest`` is the digest of ``config`` and the image's identity; ``blobs`` are kept as long as
    the image; ``created`` and ``used`` are seconds since 1970.
    """

    digest: Digest
    config: bytes
    layers: tuple[DiffId, ...]
    names: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}
    blobs: tuple[Digest, ...] = ()
    created: float = 0.0
    used: float = 0.0

    @property
    def is_built_here(self) -> bool:
        """Whether a build file was built to it here, which earns it the trust of SECURITY.md.

        Only the store's own record counts: what an image says about itself is untrusted.
        """
        return "file" in self.metadata


class CompressedLayer(msgspec.Struct, frozen=True):
    """Digest and size in bytes of a compressed layer; the blob itself may be missing."""

    digest: Digest
    size: int


class GcResult(msgspec.Struct, frozen=True):
    """How many objects :meth:`Store.collect` removed, and how many bytes it freed and kept."""

    images: int = 0
    layers: int = 0
    blobs: int = 0
    records: int = 0
    freed: int = 0
    kept: int = 0


InconsistencyKind = Literal[
    "index-damaged",
    "layer-missing",
    "layer-damaged",
    "layer-unreadable",
    "tree-unknown",
    "blob-missing",
    "blob-damaged",
    "blob-unreadable",
    "blob-unknown",
    "image-damaged",
    "image-incomplete",
    "record-damaged",
    "leftover",
]


class StoreInconsistency(msgspec.Struct, frozen=True):
    """A problem found by :meth:`Store.check`; ``subject`` is a digest, a key or a path.

    ``denied`` is true if this account, or its user namespace, may not read the subject.
    """

    kind: InconsistencyKind
    subject: str
    detail: str = ""
    repaired: bool = False
    denied: bool = False

    @property
    def unreadable(self) -> bool:
        """Whether the subject could not be read, so that its state is unknown."""
        return self.kind in ("layer-unreadable", "blob-unreadable")

    @property
    def harmless(self) -> bool:
        """Whether this is only garbage, as left by a killed process."""
        return self.kind in ("tree-unknown", "blob-unknown", "leftover")


class StoreUsage(msgspec.Struct, frozen=True):
    """Bytes by kind: uncompressed tars for layers, rows for ``images`` and ``records``."""

    layers: int
    blobs: int
    images: int
    records: int
    index: int

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return self.layers + self.blobs + self.images + self.records + self.index
