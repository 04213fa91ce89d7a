"""Is all that the index says on the disk, and as it was put in?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from danlu.errors import DanluError
from danlu.oci.digest import sha256
from danlu.store import blobs, layers
from danlu.store.collect import (
    delete_layers_and_blobs,
    delete_records,
    stray_blobs,
    stray_trees,
)
from danlu.store.core import Core
from danlu.store.images import forget
from danlu.store.staging import dead
from danlu.store.types import Finding, FindingKind
from danlu.util.files import remove_tree
from danlu.util.locks import file_lock

__all__ = ["check"]


def check(core: Core, *, repair: bool) -> list[Finding]:
    """Everything that is wrong, in the order it is found; see :meth:`Store.check`."""
    # Nobody collects meanwhile. A lease would do, but takes room that a full disk has not.
    with core.faults, file_lock(core.root / "collect.lock"):
        return [
            finding
            for look in (_layers, _blobs, _records, _images, _strays, _leftovers)
            for finding in look(core, repair)
        ]


def _layers(core: Core, repair: bool) -> Iterator[Finding]:
    with core.reading():
        rows = core.rows("SELECT diff_id FROM layers ORDER BY diff_id")
    for (diff_id,) in rows:
        with core.reading():
            row = core.row("SELECT tree, normalise FROM layers WHERE diff_id = ?", (diff_id,))
        if row is None:
            continue
        tree = core.layers / row[0]
        wrong = _wrong_tree(tree, row[1], diff_id)
        if wrong is None:
            continue
        if repair:
            with core.writing() as connection:
                # The tree is named too: another process may just have put a sound one in.
                connection.execute(
                    "DELETE FROM layers WHERE diff_id = ? AND tree = ?", (diff_id, row[0])
                )
        yield Finding(wrong[0], diff_id, wrong[1], repair)


def _wrong_tree(tree: Path, normalise: str, diff_id: str) -> tuple[FindingKind, str] | None:
    if not tree.is_dir():
        return "layer-missing", f"{tree} is gone"
    return _differs("layer-damaged", diff_id, lambda: layers.tree_digest(tree, normalise))


def _differs(
    kind: FindingKind, expected: str, compute: Callable[[], str]
) -> tuple[FindingKind, str] | None:
    """What is wrong where ``compute`` does not give ``expected``; a lack of permission is raised.

    Who may not read a tree must not find, and then remove, it as damaged.
    """
    try:
        digest = compute()
    except PermissionError:
        raise
    except (OSError, ValueError, TypeError, LookupError, DanluError) as error:
        return kind, str(error)
    return None if digest == expected else (kind, f"its content is now {digest}")


def _blobs(core: Core, repair: bool) -> Iterator[Finding]:
    with core.reading():
        rows = core.rows("SELECT digest FROM blobs ORDER BY digest")
    for (digest,) in rows:
        wrong = _wrong_blob(core, digest)
        if wrong is None:
            continue
        if repair:
            with core.writing():
                delete_layers_and_blobs(core, [], [digest])
        yield Finding(wrong[0], digest, wrong[1], repair)


def _wrong_blob(core: Core, digest: str) -> tuple[FindingKind, str] | None:
    try:
        path = blobs.path_of(core, digest)
    except ValueError as error:
        return "blob-damaged", str(error)
    if not path.is_file():
        return "blob-missing", f"{path} is gone"
    return _differs("blob-damaged", digest, lambda: blobs.file_digest(path))


def _absent(core: Core, kind: str, need: str) -> bool:
    table, identity = ("layers", "diff_id") if kind == "layers" else ("blobs", "digest")
    return core.row(f"SELECT 1 FROM {table} WHERE {identity} = ?", (need,)) is None


def _records(core: Core, repair: bool) -> Iterator[Finding]:
    with core.reading():
        rows = core.rows("SELECT key, value FROM records ORDER BY key")
    for key, value in rows:
        with core.reading():
            needs = core.rows("SELECT kind, need FROM record_needs WHERE key = ?", (key,))
            lacking = [need for kind, need in needs if _absent(core, kind, need)]
        detail = f"needs {lacking[0]}, which is gone" if lacking else _wrong_json(value)
        if not detail:
            continue
        if repair:
            with core.writing():
                delete_records(core, [key])
        yield Finding("record-damaged", key, detail, repair)


def _wrong_json(text: str) -> str:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        return str(error)
    return "" if isinstance(value, dict) else "not an object"


def _images(core: Core, repair: bool) -> Iterator[Finding]:
    with core.reading():
        rows = core.rows("SELECT digest, config, metadata FROM images ORDER BY digest")
    for digest, config, metadata in rows:
        wrong = _wrong_image(core, digest, config, metadata)
        if wrong is None:
            continue
        if repair:
            with core.writing():
                forget(core, [digest])
        yield Finding(wrong[0], digest, wrong[1], repair)
    yield from _names(core, repair)


def _wrong_image(
    core: Core, digest: str, config: object, metadata: str
) -> tuple[FindingKind, str] | None:
    if not isinstance(config, bytes) or sha256(config) != digest:
        return "image-damaged", "its config is not what its digest says"
    if detail := _wrong_json(metadata):
        return "image-damaged", detail
    with core.reading():
        names = core.rows("SELECT name FROM names WHERE image = ? ORDER BY name", (digest,))
        needs = core.rows("SELECT kind, need FROM image_needs WHERE image = ?", (digest,))
        lacking = [need for kind, need in needs if _absent(core, kind, need)]
    if not lacking:
        return None
    who = ", ".join(name for (name,) in names) or "an image without a name"
    return "image-incomplete", f"{who} needs {lacking[0]}, which is gone"


def _names(core: Core, repair: bool) -> Iterator[Finding]:
    with core.reading():
        rows = core.rows(
            "SELECT name, image FROM names WHERE image NOT IN (SELECT digest FROM images)"
        )
    for name, image in rows:
        if repair:
            with core.writing() as connection:
                connection.execute("DELETE FROM names WHERE name = ? AND image = ?", (name, image))
        yield Finding("image-incomplete", name, f"names {image}, which is gone", repair)


def _strays(core: Core, repair: bool) -> Iterator[Finding]:
    with core.collecting():
        trees, files = stray_trees(core), stray_blobs(core)
        if repair:
            for name in files:
                remove_tree(core.blobs / name)
    for name in trees:
        if repair:
            remove_tree(core.layers / name)
        yield Finding("tree-unknown", name, "no layer uses it", repair)
    for name in files:
        yield Finding("blob-unknown", name, "the index does not know it", repair)


def _leftovers(core: Core, repair: bool) -> Iterator[Finding]:
    for path in sorted(core.staging.iterdir()):
        with dead(path) as gone:
            if not gone:
                continue
            if repair:
                remove_tree(path)
        yield Finding("leftover", path.name, "of a danlu that was killed", repair)
