"""Everything danlu keeps on this machine: layers, blobs, cache records and images.

Any number of processes can use the store at once. A process killed at any moment leaves at most
garbage behind, never a corrupt object.
"""

from danlu.store.blobs import BlobWriter
from danlu.store.leases import StoreLease
from danlu.store.partials import PartialBlob
from danlu.store.store import Store
from danlu.store.types import (
    CompressedLayer,
    GcResult,
    InconsistencyKind,
    Layer,
    StoredImage,
    StoreInconsistency,
    StoreUsage,
)

__all__ = [
    "BlobWriter",
    "CompressedLayer",
    "GcResult",
    "InconsistencyKind",
    "Layer",
    "PartialBlob",
    "Store",
    "StoreInconsistency",
    "StoreLease",
    "StoreUsage",
    "StoredImage",
]
