"""Layers: directories in ``layers/``, each with a row that says it is complete."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from danlu.errors import DanluError, StoreError
from danlu.oci.digest import DiffId
from danlu.store.index import SYNCED, StoreIndex
from danlu.store.types import Layer
from danlu.util.files import remove_tree
from danlu.util.id_maps import UNMAPPED_ID, load_recorded_id_maps, read_id_maps

if TYPE_CHECKING:
    from danlu.oci.tar import LayerSummary, NormalizeOptions, TarSplit

#: Errors that mean that the content of a tree has changed, as opposed to being unreadable.
_CONTENT_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class LayerRow(NamedTuple):
    """A row of the table ``layers``: its columns, in this order."""

    diff_id: str
    size: int
    files: int
    created_by: str
    tree: str
    normalise: str
    boot: str
    used: float

    def to_layer(self, index: StoreIndex) -> Layer:
        """Return the layer that the row is of."""
        tree = index.layers / self.tree
        return Layer(DiffId(self.diff_id), self.size, self.files, self.created_by, tree)


_COLUMNS = ", ".join(LayerRow._fields)


def encode_normalise(normalise: NormalizeOptions | TarSplit | None) -> str:
    """Return, as JSON for the layer's row, how its tar is created from its tree."""
    from danlu.oci.tar import TarSplit

    if isinstance(normalise, TarSplit):
        return json.dumps({"recipe": normalise.to_builtins()})
    names = ("clamp", "mtime", "uid", "gid")
    values = {} if normalise is None else {name: getattr(normalise, name) for name in names}
    return json.dumps({name: value for name, value in values.items() if value is not None})


def _write_layer_tar(
    tree: Path, normalise: str, write: Callable[[bytes], object] | None
) -> LayerSummary:
    from danlu.oci.tar import NormalizeOptions, TarSplit, rewrite_layer, write_layer

    options = json.loads(normalise)
    if "recipe" in options:
        return rewrite_layer(tree, write, TarSplit.from_builtins(options["recipe"]))
    return write_layer(tree, write, normalise=NormalizeOptions(**options))


def find_difference(index: StoreIndex, tree: Path, normalise: str, diff_id: str) -> str:
    """Describe how ``tree`` differs from the layer ``diff_id``; return an empty text if it doesn't.

    Raises :class:`OSError` if the tree cannot be compared, which is not damage: it is unreadable
    (:class:`PermissionError` if this account lacks the permission), or its owners are IDs of a user
    namespace that this process is not in.
    """
    try:
        digest = _write_layer_tar(tree, normalise, None).diff_id
    except DanluError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _CONTENT_ERRNOS:
            raise cause from error
        return str(error)
    except OSError as error:
        if error.errno not in _CONTENT_ERRNOS:
            raise
        return str(error)
    except (ValueError, TypeError, LookupError) as error:
        return str(error)
    if digest == diff_id:
        return ""
    if not _sees_owners(index, tree):
        raise PermissionError(
            errno.EACCES, "owners are not mapped in this user namespace", str(tree)
        )
    return f"content changed to {digest}"


def _sees_owners(index: StoreIndex, tree: Path) -> bool:
    """Return whether the owners in ``tree`` have the same IDs here as when it was created."""
    maps = read_id_maps()
    made_under = load_recorded_id_maps(index.root)
    if made_under is not None:
        return maps.covers(made_under)
    # Not recorded (an older store): owners without an ID here read as the overflow ID, "nobody".
    return maps.has_nobody or not any(
        UNMAPPED_ID in (status.st_uid, status.st_gid)
        for directory, _, names in os.walk(tree)
        for status in (os.lstat(os.path.join(directory, name)) for name in ("", *names))
    )


def write_tar(index: StoreIndex, diff_id: DiffId, write: Callable[[bytes], object]) -> LayerSummary:
    """Write the tar of a layer; see :meth:`Store.write_tar`."""
    layer = get(index, diff_id)
    with index.reading():
        row = index.query_row("SELECT normalise FROM layers WHERE diff_id = ?", (diff_id,))
    if layer is None or row is None:
        raise StoreError(
            f"layer {diff_id} is no longer in the store", hint="build again to recreate it"
        )
    return _write_layer_tar(layer.tree, row[0], write)


def commit(
    index: StoreIndex,
    staged: Path,
    summary: LayerSummary,
    *,
    created_by: str,
    normalise: NormalizeOptions | TarSplit | None,
) -> Layer:
    """Make ``staged`` the tree of a layer; see :meth:`Store.commit_layer`."""
    if not staged.is_dir() or staged.is_symlink():
        raise StoreError(f"cannot create a layer: {staged} is not a directory")
    # A unique name for every commit: two processes that commit the same layer never collide, and
    # a tree that a crash left between rename and insert is never taken for a layer.
    name = f"{summary.diff_id[7:15]}-{os.urandom(4).hex()}"
    _drop_if_damaged(index, summary.diff_id)
    row = LayerRow(
        summary.diff_id,
        summary.size,
        summary.files,
        created_by,
        name,
        encode_normalise(normalise),
        index.boot,
        index.clock(),
    )
    try:
        with index.adding() as connection:
            index.pin("layers", [summary.diff_id])
            present = _find_usable_row(index, summary.diff_id)
            if present is None:
                os.rename(staged, index.layers / name)
                connection.execute(
                    f"INSERT OR REPLACE INTO layers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
    except BaseException:
        # The row could not be written (full disk): move the tree back, so that it is removed with
        # the staging directory.
        with suppress(OSError):
            os.rename(index.layers / name, staged)
        raise
    if present is None:
        return row.to_layer(index)
    with index.translated_errors:
        remove_tree(staged)
    return present.to_layer(index)


def restore(index: StoreIndex, diff_id: str) -> None:
    """Add the row of a layer that lost it, if there is a tree with its content."""
    with index.reading():
        known = {tree for (tree,) in index.query("SELECT tree FROM layers")}
        # How its tar is written was in the row; that of `danlu commit` has no options.
        options = index.query("SELECT normalise FROM layers WHERE normalise NOT LIKE '%recipe%'")
        ways = dict.fromkeys(("{}", *(normalise for (normalise,) in options)))
    for name in sorted(set(os.listdir(index.layers)) - known):
        if not name.startswith(f"{diff_id[7:15]}-"):
            continue
        for normalise in ways:
            try:
                summary = _write_layer_tar(index.layers / name, normalise, None)
            except (DanluError, OSError, ValueError, TypeError, LookupError):
                break
            if summary.diff_id == diff_id:
                _restore_row(index, summary, name, normalise)
                return


def _restore_row(index: StoreIndex, summary: LayerSummary, name: str, normalise: str) -> None:
    size, files = summary.size, summary.files
    row = LayerRow(
        summary.diff_id, size, files, "restored", name, normalise, index.boot, index.clock()
    )
    with index.writing() as connection:
        connection.execute(
            f"INSERT OR IGNORE INTO layers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
        )


def _drop_if_damaged(index: StoreIndex, diff_id: str) -> None:
    """Verify an existing layer first: an intact tree must not be replaced by a damaged one."""
    with index.reading():
        row = _query_row(index, diff_id)
        present = row is not None and _can_trust(index, row) and _tree_exists(index, row.tree)
    if row is not None and present:
        _verify_layer(index, row)


def _query_row(index: StoreIndex, diff_id: str) -> LayerRow | None:
    row = index.query_row(f"SELECT {_COLUMNS} FROM layers WHERE diff_id = ?", (diff_id,))
    return None if row is None else LayerRow(*row)


def _find_usable_row(index: StoreIndex, diff_id: str) -> LayerRow | None:
    row = _query_row(index, diff_id)
    if row is None or not _can_trust(index, row) or not _tree_exists(index, row.tree):
        return None
    return row


def get(index: StoreIndex, diff_id: DiffId) -> Layer | None:
    """Return the layer, or None if it is missing or damaged."""
    layers = get_all(index, [diff_id])
    return None if layers is None else layers[0]


def get_all(index: StoreIndex, diff_ids: Iterable[DiffId]) -> list[Layer] | None:
    """Return all these layers, or None if any of them is missing or damaged."""
    with index.reading():
        wanted = list(diff_ids)
        index.pin("layers", wanted)
        rows = []
        for diff_id in wanted:
            row = _query_row(index, diff_id)
            if row is None or not _tree_exists(index, row.tree):
                return None
            index.record_use("layers", diff_id, row.used)
            rows.append(row)
    if not all(_can_trust(index, row) or _verify_layer(index, row) for row in rows):
        return None
    return [row.to_layer(index) for row in rows]


def get_by_tree(index: StoreIndex, tree: Path) -> Layer | None:
    """Return the layer that has this tree; None if it is missing or damaged."""
    if tree.parent != index.layers:
        return None
    with index.reading():
        row = index.query_row("SELECT diff_id FROM layers WHERE tree = ?", (tree.name,))
    return get(index, DiffId(row[0])) if row is not None else None


def _tree_exists(index: StoreIndex, tree: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(index.layers / tree).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _can_trust(index: StoreIndex, row: LayerRow) -> bool:
    return row.boot in (index.boot, SYNCED)


def _verify_layer(index: StoreIndex, row: LayerRow) -> bool:
    """Return whether a layer is still as it was committed; delete its row if not."""
    diff_id, tree, boot = row.diff_id, row.tree, row.boot
    with index.translated_errors:
        try:
            intact = not find_difference(index, index.layers / tree, row.normalise, diff_id)
        except PermissionError:
            # Outside the user namespace of a rootless build, where `danlu plan` runs: a process
            # that cannot read the tree cannot use it either.
            return True
    if intact and boot == index.boot:
        return True  # read from the page cache: it may not have reached the disk yet
    with index.writing() as connection:
        if intact:
            connection.execute(
                "UPDATE layers SET boot = ? WHERE diff_id = ? AND tree = ?",
                (SYNCED, diff_id, tree),
            )
        else:
            connection.execute("DELETE FROM layers WHERE diff_id = ? AND tree = ?", (diff_id, tree))
    return intact
