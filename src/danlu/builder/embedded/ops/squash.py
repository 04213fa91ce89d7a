"""The layers of several leaves as one."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.builder.embedded.collisions import refuse_collisions
from danlu.builder.embedded.context import Context
from danlu.graph import WHEEL_TIME, Squash
from danlu.oci.tar import Normalise, write_layer
from danlu.store import Layer

__all__ = ["execute"]


async def execute(op: Squash, context: Context) -> list[Layer]:
    """One layer that holds what the inputs' layers hold; files are shared, not copied.

    The inputs are wheels, whose layers all have one normalisation. Raises :class:`ResolveError`
    where two have one path with different bytes.
    """
    parts = [layer for result in context.inputs for layer in result.layers]
    await context.run_sync(refuse_collisions, parts)
    normalise = Normalise(mtime=WHEEL_TIME, uid=0, gid=0)
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
            path.mkdir(exist_ok=True)
            path.chmod(entry.stat().st_mode & 0o7777)
            _link_tree(Path(entry.path), path)
        elif not os.path.lexists(path):
            os.link(entry.path, path, follow_symlinks=False)
