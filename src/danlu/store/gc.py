"""Garbage collection: evict what no tagged image or lease needs, least recently used first."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from danlu.store import leases
from danlu.store.images import delete_images
from danlu.store.index import Kind, StoreIndex, release_space, reserve_space
from danlu.store.partials import remove_partials
from danlu.store.staging import remove_orphans, remove_trees
from danlu.store.types import GcResult
from danlu.util.locks import file_lock


class _GcCandidate(msgspec.Struct, frozen=True, order=True):
    """An object that may be evicted: time of last use, kind, identity, size in bytes."""

    used: float
    kind: Kind
    identity: str
    size: int


class _GcSelection(msgspec.Struct):
    """The objects selected for eviction, by kind."""

    chosen: dict[Kind, list[str]] = msgspec.field(default_factory=lambda: defaultdict(list))
    bytes: int = 0


def collect(index: StoreIndex, keep_bytes: int) -> GcResult:
    """Remove garbage, then evict down to ``keep_bytes``; see :meth:`Store.collect`."""
    # On a full disk SQLite could not even write the transaction that deletes rows.
    release_space(index)
    try:
        with index.translated_errors, file_lock(index.root / "collect.lock"):
            failures = remove_orphans(index.staging)
            partial_bytes = remove_partials(index.root / "partial")
            with index.collecting():
                index.flush_uses()
                result = _choose_and_delete(index, keep_bytes)
                trees = list_stray_trees(index)
                for name in list_stray_blobs(index):
                    (index.blobs / name).unlink(missing_ok=True)
            # The gate is open again: names of trees are never reused, so nobody can need these.
            failures += remove_trees(index.layers / name for name in trees)
            if failures:
                raise failures[0]
            return msgspec.structs.replace(result, freed=result.freed + partial_bytes)
    finally:
        reserve_space(index)


def plan_collection(index: StoreIndex, keep_bytes: int) -> GcResult:
    """Return what :func:`collect` would evict now; leftovers of killed processes do not count."""
    with index.collecting():
        selection, total = _select_excess(index, keep_bytes)
    return _count_selection(selection, total)


def _choose_and_delete(index: StoreIndex, keep_bytes: int) -> GcResult:
    selection, total = _select_excess(index, keep_bytes)
    chosen = selection.chosen
    with index.transaction():
        delete_layers_and_blobs(index, chosen["layers"], chosen["blobs"])
        broken = _find_broken_images(index) - set(chosen["images"])
        chosen["images"] += sorted(broken)
        delete_images(index, chosen["images"])
        chosen["records"] += sorted(_find_broken_records(index) - set(chosen["records"]))
        delete_records(index, chosen["records"])
        index.connection.execute(
            "DELETE FROM compressed WHERE diff_id NOT IN (SELECT diff_id FROM layers)"
            " AND diff_id NOT IN (SELECT need FROM image_needs WHERE kind = 'layers')"
        )
    return _count_selection(selection, total)


def _select_excess(index: StoreIndex, keep_bytes: int) -> tuple[_GcSelection, int]:
    """Return what to evict, and the size of all that could be."""
    protected = _collect_pins(index)
    items = _list_candidates(index)
    total = sum(item.size for item in items)
    return _choose_excess(items, protected, max(0, total - keep_bytes)), total


def _count_selection(selection: _GcSelection, total: int) -> GcResult:
    return GcResult(
        **{kind: len(identities) for kind, identities in selection.chosen.items()},
        freed=selection.bytes,
        kept=total - selection.bytes,
    )


def _choose_excess(
    items: Iterable[_GcCandidate], protected: set[tuple[Kind, str]], excess: int
) -> _GcSelection:
    selection = _GcSelection()
    for item in sorted(items):
        if selection.bytes >= excess:
            break
        if (item.kind, item.identity) not in protected:
            selection.chosen[item.kind].append(item.identity)
            selection.bytes += item.size
    return selection


def _list_candidates(index: StoreIndex) -> list[_GcCandidate]:
    """List everything that has a size: layers, blobs, images, and records without dependencies.

    A record with dependencies is removed together with them: alone it is too small to matter.
    """
    queries: dict[Kind, str] = {
        # A no-op build looks at the image only, so its layers count as used with it.
        "layers": "SELECT max(layers.used, coalesce(max(images.used), 0)), diff_id, size"
        " FROM layers LEFT JOIN image_needs ON kind = 'layers' AND need = diff_id"
        " LEFT JOIN images ON digest = image GROUP BY diff_id",
        "blobs": "SELECT used, digest, size FROM blobs",
        "images": "SELECT used, digest, length(config) + length(metadata) FROM images",
        "records": "SELECT used, key, length(key) + length(value) FROM records"
        " WHERE key NOT IN (SELECT key FROM record_needs)",
    }
    return [
        _GcCandidate(used, kind, identity, size)
        for kind, query in queries.items()
        for used, identity, size in index.query(query)
    ]


def _collect_pins(index: StoreIndex) -> set[tuple[Kind, str]]:
    """Return what tagged images and live leases protect, with everything those need."""
    pins = leases.read_live_pins(index)
    named: list[tuple[Kind, str]] = [
        ("images", image) for (image,) in index.query("SELECT image FROM names")
    ]
    pins.update(named)
    needs = {
        "images": "SELECT image, kind, need FROM image_needs",
        "records": "SELECT key, kind, need FROM record_needs",
    }
    for holder, query in needs.items():
        for identity, kind, need in index.query(query):
            if (holder, identity) in pins:
                pins.add((kind, need))
    return pins


def _find_broken_images(index: StoreIndex) -> set[str]:
    """Find untagged images with missing objects; :meth:`Store.check` reports tagged ones."""
    rows = index.query(
        "SELECT DISTINCT image FROM image_needs WHERE image NOT IN (SELECT image FROM names) AND ("
        " kind = 'layers' AND need NOT IN (SELECT diff_id FROM layers)"
        " OR kind = 'blobs' AND need NOT IN (SELECT digest FROM blobs))"
    )
    return {image for (image,) in rows}


def _find_broken_records(index: StoreIndex) -> set[str]:
    rows = index.query(
        "SELECT DISTINCT key FROM record_needs WHERE"
        " kind = 'layers' AND need NOT IN (SELECT diff_id FROM layers)"
        " OR kind = 'blobs' AND need NOT IN (SELECT digest FROM blobs)"
    )
    return {key for (key,) in rows}


def delete_layers_and_blobs(index: StoreIndex, layers: Iterable[str], blobs: Iterable[str]) -> None:
    """Delete rows, inside a transaction; the trees and files become strays."""
    index.connection.executemany(
        "DELETE FROM layers WHERE diff_id = ?", [(layer,) for layer in layers]
    )
    index.connection.executemany("DELETE FROM blobs WHERE digest = ?", [(blob,) for blob in blobs])


def delete_records(index: StoreIndex, keys: Iterable[str]) -> None:
    """Delete records, inside a transaction."""
    arguments = [(key,) for key in keys]
    index.connection.executemany("DELETE FROM records WHERE key = ?", arguments)
    index.connection.executemany("DELETE FROM record_needs WHERE key = ?", arguments)


def list_stray_trees(index: StoreIndex) -> list[str]:
    """List layer directories without a row; only under the exclusive lock."""
    known = {tree for (tree,) in index.query("SELECT tree FROM layers")}
    return sorted(set(os.listdir(index.layers)) - known)


def list_stray_blobs(index: StoreIndex) -> list[str]:
    """List blob files without a row; only while ``gate`` is locked."""
    known = {
        digest.removeprefix("sha256:") for (digest,) in index.query("SELECT digest FROM blobs")
    }
    return sorted(set(os.listdir(index.blobs)) - known)
