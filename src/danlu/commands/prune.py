"""``danlu image prune``: one budget for the store and for what is kept of downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from danlu.store import Store
    from danlu.util.paths import Paths

__all__ = ["PruneReport", "prune"]

#: Where the store alone would fill the budget, this part of it is for downloads.
_SHARE = 4


class PruneReport(msgspec.Struct, frozen=True):
    """What went, in numbers, and how many bytes went and stayed, downloads included.

    ``busy`` says that downloads had to stay because a build is using them.
    """

    images: int
    layers: int
    blobs: int
    records: int
    downloads: int
    freed: int
    kept: int
    busy: bool = False


def prune(store: Store, paths: Paths, keep_bytes: int) -> PruneReport:
    """Remove what is broken or left over, then what is longest unused, until ``keep_bytes`` stay.

    Downloads give way to layers, but for a quarter of the budget. What named images and running
    builds need stays, whatever the budget says.
    """
    from danlu.sources import downloads

    reserved = min(downloads.size(paths.cache), keep_bytes // _SHARE)
    store_part = store.collect(keep_bytes - reserved)
    # Measured anew: what shared its inodes with a layer may stand alone now.
    rest = downloads.prune(paths.cache, max(reserved, keep_bytes - store_part.kept))
    return PruneReport(
        images=store_part.images,
        layers=store_part.layers,
        blobs=store_part.blobs,
        records=store_part.records,
        downloads=rest.count,
        freed=store_part.freed + rest.freed,
        kept=store_part.kept + rest.kept,
        busy=rest.busy,
    )
