"""What danlu keeps on this machine: layers, blobs, cache records and images.

Any number of processes use it at once, and a kill at any moment leaves at most garbage.
"""

from danlu.store.blobs import BlobWriter
from danlu.store.leases import Lease
from danlu.store.rescue import check_store
from danlu.store.store import Store
from danlu.store.types import Collected, Compressed, Finding, FindingKind, Layer, StoredImage, Usage

__all__ = [
    "BlobWriter",
    "Collected",
    "Compressed",
    "Finding",
    "FindingKind",
    "Layer",
    "Lease",
    "Store",
    "StoredImage",
    "Usage",
    "check_store",
]
