"""Give the directories of installed packages to a user, without their files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, copy_parents
from danlu.graph.ops import OwnDirectories
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.layer_view import LayerView
from danlu.store import Layer


async def execute(op: OwnDirectories, context: OpContext) -> list[Layer]:
    """Return one layer with directories only.

    Directories with Python code get a ``__pycache__``, so that the user may replace the bytecode
    that is added to the image, too.
    """
    view = LayerView(tuple(layer.tree for layer in context.below))
    with context.store.staging() as staged:
        for root in op.roots:
            await context.run_sync(_copy_directories, op, view, view.resolve(root), staged)
        made_by = f"danlu: give directories to {op.uid}:{op.gid}"
        return await commit_tree(context, staged, NormalizeOptions(mtime=op.epoch), made_by)


def _copy_directories(
    op: OwnDirectories, view: LayerView, root: tuple[str, ...], staged: Path
) -> None:
    if not view.directories(root):
        return
    copy_parents(view, staged, root[:-1])
    pending = [root]
    while pending:
        parts = pending.pop()
        _make_directory(staged.joinpath(*parts), view.entry(parts), op)
        names = sorted(view.names(parts))
        for name in names:
            entry = view.entry((*parts, name))
            if entry is not None and stat.S_ISDIR(os.lstat(entry).st_mode):
                pending.append((*parts, name))
        if "__pycache__" not in names and any(name.endswith(".py") for name in names):
            _make_directory(staged.joinpath(*parts, "__pycache__"), None, op)


def _make_directory(path: Path, model: str | None, op: OwnDirectories) -> None:
    path.mkdir()
    os.chown(path, op.uid, op.gid)
    path.chmod(stat.S_IMODE(os.lstat(model).st_mode) if model else 0o755)
