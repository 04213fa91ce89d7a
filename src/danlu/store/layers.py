"""Layers in the store: a directory below ``layers/`` and a row that says it is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.errors import DanluError, StoreError
from danlu.oci.digest import DiffId
from danlu.store.core import SETTLED, Core
from danlu.store.types import Layer
from danlu.util.files import remove_tree

if TYPE_CHECKING:
    from danlu.oci.tar import LayerSummary, Normalise, Recipe

__all__ = ["commit", "get", "intact", "normalise_text", "tree_digest", "write_tar"]

_COLUMNS = "diff_id, size, files, created_by, tree, normalise, boot, used"


def normalise_text(normalise: Normalise | Recipe | None) -> str:
    """How a layer's tar is made of its tree, as it stands in its row."""
    from danlu.oci.tar import Recipe

    if isinstance(normalise, Recipe):
        return json.dumps({"recipe": normalise.to_plain()})
    names = ("clamp", "mtime", "uid", "gid")
    values = {} if normalise is None else {name: getattr(normalise, name) for name in names}
    return json.dumps({name: value for name, value in values.items() if value is not None})


def _write(tree: Path, normalise: str, write: Callable[[bytes], object] | None) -> LayerSummary:
    from danlu.oci.tar import Normalise, Recipe, rewrite_layer, write_layer

    how = json.loads(normalise)
    if "recipe" in how:
        return rewrite_layer(tree, write, Recipe.from_plain(how["recipe"]))
    return write_layer(tree, write, normalise=Normalise(**how))


def tree_digest(tree: Path, normalise: str) -> str:
    """The diff id that ``tree`` has now.

    Raises :class:`PermissionError` where this account may not read it: that is no damage.
    """
    try:
        return _write(tree, normalise, None).diff_id
    except DanluError as error:
        if isinstance(error.__cause__, PermissionError):
            raise error.__cause__ from error
        raise


def write_tar(core: Core, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
    """Write the tar of a layer; see :meth:`Store.write_tar`."""
    layer = get(core, diff_id)
    with core.reading():
        row = core.row("SELECT normalise FROM layers WHERE diff_id = ?", (diff_id,))
    if layer is None or row is None:
        raise StoreError(
            f"the layer {diff_id} is gone from the store", hint="build again, it is made anew"
        )
    return _write(layer.tree, row[0], write)


def commit(
    core: Core,
    staged: Path,
    summary: LayerSummary,
    *,
    created_by: str,
    normalise: Normalise | Recipe | None,
) -> Layer:
    """Make ``staged`` the tree of a layer; see :meth:`Store.commit_layer`."""
    if not staged.is_dir() or staged.is_symlink():
        raise StoreError(f"not a directory to make a layer of: {staged}")
    # A name of its own for each commit: two processes that commit one layer at once never meet,
    # and what a crash leaves between rename and row is never taken for a layer.
    name = f"{summary.diff_id[7:15]}-{os.urandom(4).hex()}"
    values = (summary.diff_id, summary.size, summary.files, created_by, name)
    try:
        with core.writing() as connection:
            core.pin("layers", [summary.diff_id])
            present = _usable(core, summary.diff_id)
            if present is None:
                os.rename(staged, core.layers / name)
                connection.execute(
                    f"INSERT OR REPLACE INTO layers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, normalise_text(normalise), core.boot, core.clock()),
                )
    except BaseException:
        # Without its row (a full disk) the tree would only take room; back it goes, to be
        # removed with the staging directory.
        with suppress(OSError):
            os.rename(core.layers / name, staged)
        raise
    if present is None:
        return _layer(core, values)
    with core.faults:
        remove_tree(staged)
    return _layer(core, present)


def _usable(core: Core, diff_id: str) -> tuple[Any, ...] | None:
    row = core.row(f"SELECT {_COLUMNS} FROM layers WHERE diff_id = ?", (diff_id,))
    if row is None or not _trusted(core, row) or not _is_there(core, row[4]):
        return None
    return row


def get(core: Core, diff_id: DiffId) -> Layer | None:
    """The layer, or None where it is absent or damaged beyond use."""
    found = intact(core, [diff_id])
    return None if found is None else found[0]


def intact(core: Core, diff_ids: Iterable[DiffId]) -> list[Layer] | None:
    """These layers, or None where one of them is absent."""
    with core.reading():
        wanted = list(diff_ids)
        core.pin("layers", wanted)
        rows = []
        for diff_id in wanted:
            row = core.row(f"SELECT {_COLUMNS} FROM layers WHERE diff_id = ?", (diff_id,))
            if row is None or not _is_there(core, row[4]):
                return None
            core.used("layers", diff_id, row[7])
            rows.append(row)
    if not all(_trusted(core, row) or _verify(core, row) for row in rows):
        return None
    return [_layer(core, row) for row in rows]


def _layer(core: Core, row: tuple[Any, ...]) -> Layer:
    diff_id, size, files, created_by, tree = row[:5]
    return Layer(DiffId(diff_id), size, files, created_by, core.layers / tree)


def _is_there(core: Core, tree: str) -> bool:
    return os.path.isdir(core.layers / tree)


def _trusted(core: Core, row: tuple[Any, ...]) -> bool:
    return row[6] in (core.boot, SETTLED)


def _verify(core: Core, row: tuple[Any, ...]) -> bool:
    """Whether a layer that an earlier boot wrote reached the disk whole."""
    diff_id, tree = row[0], row[4]
    with core.faults:
        try:
            same = bool(tree_digest(core.layers / tree, row[5]) == diff_id)
        except PermissionError:
            # Outside the user namespace of a rootless build: who cannot read it cannot use it.
            return True
        except DanluError:
            same = False
    with core.writing() as connection:
        if same:
            connection.execute(
                "UPDATE layers SET boot = ? WHERE diff_id = ? AND tree = ?",
                (SETTLED, diff_id, tree),
            )
        else:
            connection.execute("DELETE FROM layers WHERE diff_id = ? AND tree = ?", (diff_id, tree))
    return same
