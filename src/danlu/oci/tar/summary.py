"""What writing or extracting a layer tells of it."""

from __future__ import annotations

import msgspec

from danlu.oci.digest import DiffId

__all__ = ["LayerSummary"]


class LayerSummary(msgspec.Struct, frozen=True):
    """A layer's diff id, the bytes of its uncompressed tar, and the number of its entries."""

    diff_id: DiffId
    size: int
    files: int
