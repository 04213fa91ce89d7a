"""Combine the layers of several packages into one."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.builder.embedded.collisions import reject_collisions
from danlu.builder.embedded.context import OpContext
from danlu.graph.ops import WHEEL_TIME, Squash
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Layer


async def execute(op: Squash, context: OpContext) -> list[Layer]:
    """Return one layer with the files of all inputs' layers, hard-linked instead of copied.

    The inputs are wheels or conda packages, whose layers are normalized alike. Raises
    :class:`ResolveError` if two wheels have a path with different bytes.
    """
    parts = [layer for result in context.inputs for layer in result.layers]
    if op.is_exclusive:
        await context.run_sync(reject_collisions, parts)
    else:
        # The first to come keeps a path; in a stack of layers it would be the last.
        parts.reverse()
    normalise = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)
    with context.store.staging() as staged:
        for part in parts:
            await context.run_sync(_link_tree, part.tree, staged)
        summary = await context.run_sync(write_layer, staged, None, normalise=normalise)
        made_by = ", ".join(part.created_by for part in parts)
        layer = await context.run_sync(
            context.store.commit_layer, staged, summary, created_by=made_by, normalise=normalise
        )
        return [layer]


def _link_tree(source: Path, target: Path) -> None:
    for entry in os.scandir(source):
        path = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                continue
            path.mkdir(exist_ok=True)
            path.chmod(entry.stat().st_mode & 0o7777)
            _link_tree(Path(entry.path), path)
        elif not os.path.lexists(path):
            os.link(entry.path, path, follow_symlinks=False)
