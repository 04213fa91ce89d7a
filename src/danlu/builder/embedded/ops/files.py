"""Files danlu writes."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree, inside, make_parents
from danlu.graph import FileEntry, Files
from danlu.oci.tar import Normalise
from danlu.store import Layer

__all__ = ["execute"]


async def execute(op: Files, context: Context) -> list[Layer]:
    """One layer with the entries of ``op``, all with the epoch as their time."""
    with context.store.staging() as staged:
        for entry in sorted(op.entries, key=lambda one: one.path):
            _write(staged, entry)
        made_by = "danlu: " + ", ".join(entry.path for entry in op.entries[:4])
        return await commit_tree(context, staged, Normalise(mtime=op.epoch), made_by)


def _write(staged: Path, entry: FileEntry) -> None:
    path = inside(staged, entry.path)
    make_parents(staged, path)
    if entry.kind == "dir":
        path.mkdir(exist_ok=True)
    elif entry.kind == "link":
        path.symlink_to(entry.target)
    else:
        path.write_text(entry.content)
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        path.chmod(entry.mode)
