"""Garbage collection: what nobody named or holds goes, the longest unused first."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from danlu.store import leases, reserve
from danlu.store.core import Core, Kind
from danlu.store.images import forget
from danlu.store.staging import remove_trees, sweep
from danlu.store.types import Collected
from danlu.util.locks import file_lock

__all__ = ["collect", "delete_layers_and_blobs", "delete_records", "stray_blobs", "stray_trees"]


class _Item(msgspec.Struct, frozen=True, order=True):
    """Something that may go: when it was last used, what it is, how many bytes it holds."""

    used: float
    kind: Kind
    identity: str
    size: int


class _Gone(msgspec.Struct):
    """What is chosen to go, by kind."""

    chosen: dict[Kind, list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    bytes: int = 0


def collect(core: Core, keep_bytes: int) -> Collected:
    """Remove garbage, then what is longest unused; see :meth:`Store.collect`."""
    # A full disk leaves no room for the index to write down what is to go.
    reserve.release(core)
    try:
        with core.faults, file_lock(core.root / "collect.lock"):
            failures = sweep(core.staging)
            with core.collecting():
                core.flush_uses()
                result = _choose_and_delete(core, keep_bytes)
                trees = stray_trees(core)
                for name in stray_blobs(core):
                    (core.blobs / name).unlink(missing_ok=True)
            # Behind the gate again: a tree's name is used once, so nobody can want these.
            failures += remove_trees(core.layers / name for name in trees)
            if failures:
                raise failures[0]
            return result
    finally:
        reserve.take(core)


def _choose_and_delete(core: Core, keep_bytes: int) -> Collected:
    protected = _protected(core)
    items = _items(core)
    total = sum(item.size for item in items)
    gone = _choose(items, protected, max(0, total - keep_bytes))
    with core.transaction():
        delete_layers_and_blobs(core, gone.chosen["layers"], gone.chosen["blobs"])
        broken = _broken_images(core)
        forget(core, {*gone.chosen["images"], *broken})
        records = {*gone.chosen["records"], *_broken_records(core)}
        delete_records(core, records)
        core.connection.execute(
            "DELETE FROM compressed WHERE diff_id NOT IN (SELECT diff_id FROM layers)"
            " AND diff_id NOT IN (SELECT need FROM image_needs WHERE kind = 'layers')"
        )
    return Collected(
        images=len({*gone.chosen["images"], *broken}),
        layers=len(gone.chosen["layers"]),
        blobs=len(gone.chosen["blobs"]),
        records=len(records),
        freed=gone.bytes,
        kept=total - gone.bytes,
    )


def _choose(items: Iterable[_Item], protected: set[tuple[Kind, str]], excess: int) -> _Gone:
    gone = _Gone()
    for item in sorted(items):
        if gone.bytes >= excess:
            break
        if (item.kind, item.identity) not in protected:
            gone.chosen[item.kind].append(item.identity)
            gone.bytes += item.size
    return gone


def _items(core: Core) -> list[_Item]:
    """All that has a size: layers, blobs, images, and records that stand on nothing.

    A record that stands on layers or blobs goes with them: alone it is too small to matter.
    """
    queries: dict[Kind, str] = {
        # A build that knows its image does not look at each layer: they are used with it.
        "layers": "SELECT max(layers.used, coalesce(max(images.used), 0)), diff_id, size"
        " FROM layers LEFT JOIN image_needs ON kind = 'layers' AND need = diff_id"
        " LEFT JOIN images ON digest = image GROUP BY diff_id",
        "blobs": "SELECT used, digest, size FROM blobs",
        "images": "SELECT used, digest, length(config) + length(metadata) FROM images",
        "records": "SELECT used, key, length(key) + length(value) FROM records"
        " WHERE key NOT IN (SELECT key FROM record_needs)",
    }
    return [
        _Item(used, kind, identity, size)
        for kind, query in queries.items()
        for used, identity, size in core.rows(query)
    ]


def _protected(core: Core) -> set[tuple[Kind, str]]:
    """What named images and living leases keep, with all that those stand on."""
    kept = leases.living(core)
    named: list[tuple[Kind, str]] = [
        ("images", image) for (image,) in core.rows("SELECT image FROM names")
    ]
    kept.update(named)
    needs = {
        "images": "SELECT image, kind, need FROM image_needs",
        "records": "SELECT key, kind, need FROM record_needs",
    }
    for holder, query in needs.items():
        for identity, kind, need in core.rows(query):
            if (holder, identity) in kept:
                kept.add((kind, need))
    return kept


def _broken_images(core: Core) -> set[str]:
    """Nameless images that stand on something gone; a named one is for :meth:`Store.check`."""
    rows = core.rows(
        "SELECT DISTINCT image FROM image_needs WHERE image NOT IN (SELECT image FROM names) AND ("
        " kind = 'layers' AND need NOT IN (SELECT diff_id FROM layers)"
        " OR kind = 'blobs' AND need NOT IN (SELECT digest FROM blobs))"
    )
    return {image for (image,) in rows}


def _broken_records(core: Core) -> set[str]:
    rows = core.rows(
        "SELECT DISTINCT key FROM record_needs WHERE"
        " kind = 'layers' AND need NOT IN (SELECT diff_id FROM layers)"
        " OR kind = 'blobs' AND need NOT IN (SELECT digest FROM blobs)"
    )
    return {key for (key,) in rows}


def delete_layers_and_blobs(core: Core, layers: Iterable[str], blobs: Iterable[str]) -> None:
    """Delete rows, inside a transaction; their trees and files are strays then."""
    core.connection.executemany("DELETE FROM layers WHERE diff_id = ?", [(one,) for one in layers])
    core.connection.executemany("DELETE FROM blobs WHERE digest = ?", [(one,) for one in blobs])


def delete_records(core: Core, keys: Iterable[str]) -> None:
    """Delete records, inside a transaction."""
    arguments = [(key,) for key in keys]
    core.connection.executemany("DELETE FROM records WHERE key = ?", arguments)
    core.connection.executemany("DELETE FROM record_needs WHERE key = ?", arguments)


def stray_trees(core: Core) -> list[str]:
    """Directories of layers without a row. Only while collecting: a commit is between the two."""
    known = {tree for (tree,) in core.rows("SELECT tree FROM layers")}
    return sorted(set(os.listdir(core.layers)) - known)


def stray_blobs(core: Core) -> list[str]:
    """Files of blobs without a row. Only while collecting."""
    known = {digest.removeprefix("sha256:") for (digest,) in core.rows("SELECT digest FROM blobs")}
    return sorted(set(os.listdir(core.blobs)) - known)
