"""Verify that everything in the index exists on disk and is intact, and repair what is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from danlu.oci.digest import sha256
from danlu.store import blobs, layers
from danlu.store.gc import (
    delete_layers_and_blobs,
    delete_records,
    list_stray_blobs,
    list_stray_trees,
)
from danlu.store.images import delete_images
from danlu.store.index import StoreIndex, release_space, reserve_space
from danlu.store.staging import lock_if_orphan
from danlu.store.types import InconsistencyKind, StoreInconsistency
from danlu.util.files import remove_tree
from danlu.util.locks import file_lock


@dataclass
class _RepairableFinding:
    """A damaged layer or blob, and a function that deletes its row."""

    finding: StoreInconsistency
    remove: Callable[[], None]


def check(index: StoreIndex, *, repair: bool) -> list[StoreInconsistency]:
    """Check an open store; see :meth:`Store.check`.

    Nothing is removed before all layers and blobs have been read, and nothing at all if any of them
    could not be read: whatever prevents reading one may make others look damaged.
    """
    if repair:
        # On a full disk SQLite could not even write the transaction that deletes rows.
        release_space(index)
    try:
        # Exclude garbage collection. A lease would do as well, but needs space on a full disk.
        with index.translated_errors, file_lock(index.root / "collect.lock"):
            damages = [*_check_layers(index), *_check_blobs(index)]
            removing = repair and not any(damage.finding.unreadable for damage in damages)
            if removing:
                for damage in damages:
                    damage.remove()
                _restore_rows(index)
            findings = [replace(damage.finding, repaired=removing) for damage in damages]
            for check_objects in (_check_records, _check_images, _check_strays, _check_leftovers):
                findings += check_objects(index, removing)
            return findings
    finally:
        if repair:
            reserve_space(index)


def _check_layers(index: StoreIndex) -> Iterator[_RepairableFinding]:
    with index.reading():
        rows = index.query("SELECT diff_id FROM layers ORDER BY diff_id")
    for (diff_id,) in rows:
        with index.reading():
            row = index.query_row(
                "SELECT tree, normalise FROM layers WHERE diff_id = ?", (diff_id,)
            )
        if row is None:
            continue
        finding = _examine_layer(index, diff_id, *row)
        if finding is not None:
            yield _RepairableFinding(finding, partial(_remove_layer, index, diff_id, row[0]))


def _examine_layer(
    index: StoreIndex, diff_id: str, name: str, normalise: str
) -> StoreInconsistency | None:
    tree = index.layers / name
    try:
        if not tree.is_dir():
            return StoreInconsistency("layer-missing", diff_id, f"{tree} not found")
        detail = layers.find_difference(index, tree, normalise, diff_id)
    except OSError as error:
        return _unreadable_finding("layer-unreadable", diff_id, error)
    return StoreInconsistency("layer-damaged", diff_id, detail) if detail else None


def _remove_layer(index: StoreIndex, diff_id: str, tree: str) -> None:
    with index.writing() as connection:
        # Match the tree, too: another process may just have committed an intact one.
        connection.execute("DELETE FROM layers WHERE diff_id = ? AND tree = ?", (diff_id, tree))


def _unreadable_finding(
    kind: InconsistencyKind, subject: str, error: OSError
) -> StoreInconsistency:
    return StoreInconsistency(kind, subject, str(error), denied=isinstance(error, PermissionError))


def _check_blobs(index: StoreIndex) -> Iterator[_RepairableFinding]:
    with index.reading():
        rows = index.query("SELECT digest FROM blobs ORDER BY digest")
    for (digest,) in rows:
        finding = _examine_blob(index, digest)
        if finding is not None:
            yield _RepairableFinding(finding, partial(_remove_blob, index, digest))


def _examine_blob(index: StoreIndex, digest: str) -> StoreInconsistency | None:
    try:
        path = blobs.blob_path(index, digest)
        if not path.is_file():
            return StoreInconsistency("blob-missing", digest, f"{path} not found")
        actual = blobs.file_digest(path)
    except OSError as error:
        return _unreadable_finding("blob-unreadable", digest, error)
    # In a damaged index a digest can be any text.
    except ValueError as error:
        return StoreInconsistency("blob-damaged", digest, str(error))
    if actual == digest:
        return None
    return StoreInconsistency("blob-damaged", digest, f"content changed to {actual}")


def _remove_blob(index: StoreIndex, digest: str) -> None:
    with index.writing():
        delete_layers_and_blobs(index, [], [digest])


def _is_missing(index: StoreIndex, kind: str, need: str) -> bool:
    table, identity = ("layers", "diff_id") if kind == "layers" else ("blobs", "digest")
    return index.query_row(f"SELECT 1 FROM {table} WHERE {identity} = ?", (need,)) is None


def _restore_rows(index: StoreIndex) -> None:
    """Add the rows of layers and blobs that something needs and whose files are intact.

    A damaged index has lost them; without them, images that no build recreates would be removed.
    """
    with index.reading():
        needs = index.query(
            "SELECT kind, need FROM image_needs UNION SELECT kind, need FROM record_needs"
        )
        missing = [(kind, need) for kind, need in needs if _is_missing(index, kind, need)]
    for kind, need in missing:
        if kind == "layers":
            layers.restore(index, need)
        elif _examine_blob(index, need) is None:
            blobs.restore(index, need)


def _check_records(index: StoreIndex, repair: bool) -> Iterator[StoreInconsistency]:
    with index.reading():
        rows = index.query("SELECT key, value FROM records ORDER BY key")
    for key, value in rows:
        with index.reading():
            needs = index.query("SELECT kind, need FROM record_needs WHERE key = ?", (key,))
            lacking = [need for kind, need in needs if _is_missing(index, kind, need)]
        detail = f"needs {lacking[0]}, which is missing" if lacking else _json_error(value)
        if not detail:
            continue
        if repair:
            with index.writing():
                delete_records(index, [key])
        yield StoreInconsistency("record-damaged", key, detail, repair)


def _json_error(text: str) -> str:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        return str(error)
    return "" if isinstance(value, dict) else "not an object"


def _check_images(index: StoreIndex, repair: bool) -> Iterator[StoreInconsistency]:
    with index.reading():
        rows = index.query("SELECT digest, config, metadata FROM images ORDER BY digest")
    for digest, config, metadata in rows:
        wrong = _image_problem(index, digest, config, metadata)
        if wrong is None:
            continue
        if repair:
            with index.writing():
                delete_images(index, [digest])
        yield StoreInconsistency(wrong[0], digest, wrong[1], repair)
    yield from _check_image_names(index, repair)


def _image_problem(
    index: StoreIndex, digest: str, config: object, metadata: str
) -> tuple[InconsistencyKind, str] | None:
    if not isinstance(config, bytes) or sha256(config) != digest:
        return "image-damaged", "its config does not match its digest"
    if detail := _json_error(metadata):
        return "image-damaged", detail
    with index.reading():
        names = index.query("SELECT name FROM names WHERE image = ? ORDER BY name", (digest,))
        needs = index.query("SELECT kind, need FROM image_needs WHERE image = ?", (digest,))
        lacking = [need for kind, need in needs if _is_missing(index, kind, need)]
    if not lacking:
        return None
    title = ", ".join(name for (name,) in names) or "an untagged image"
    return "image-incomplete", f"{title} needs {lacking[0]}, which is missing"


def _check_image_names(index: StoreIndex, repair: bool) -> Iterator[StoreInconsistency]:
    with index.reading():
        rows = index.query(
            "SELECT name, image FROM names WHERE image NOT IN (SELECT digest FROM images)"
        )
    for name, image in rows:
        if repair:
            with index.writing() as connection:
                connection.execute("DELETE FROM names WHERE name = ? AND image = ?", (name, image))
        yield StoreInconsistency(
            "image-incomplete", name, f"refers to {image}, which is missing", repair
        )


def _check_strays(index: StoreIndex, repair: bool) -> Iterator[StoreInconsistency]:
    with index.collecting():
        trees, files = list_stray_trees(index), list_stray_blobs(index)
        if repair:
            for name in files:
                remove_tree(index.blobs / name)
    for name in trees:
        if repair:
            remove_tree(index.layers / name)
        yield StoreInconsistency("tree-unknown", name, "not used by any layer", repair)
    for name in files:
        yield StoreInconsistency("blob-unknown", name, "not in the index", repair)


def _check_leftovers(index: StoreIndex, repair: bool) -> Iterator[StoreInconsistency]:
    for path in sorted(index.staging.iterdir()):
        with lock_if_orphan(path) as orphan:
            if not orphan:
                continue
            if repair:
                remove_tree(path)
        yield StoreInconsistency("leftover", path.name, "left by a killed danlu process", repair)
