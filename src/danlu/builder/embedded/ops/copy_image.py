"""Files of another image."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree, inside, make_parents
from danlu.errors import UsageError
from danlu.graph import CopyImage
from danlu.oci.tar import Normalise
from danlu.sandbox.overlay import mounted
from danlu.sandbox.types import Root
from danlu.store import Layer

__all__ = ["execute"]


async def execute(op: CopyImage, context: Context) -> list[Layer]:
    """One layer with what ``op.source`` names in the stack of the input."""
    layers = tuple(layer.tree for layer in context.inputs[0].stack)
    with context.store.staging() as staged, context.store.staging() as work:
        with mounted(Root(layers), work) as merged:
            await context.run_sync(_copy, merged, op, staged)
        normalise = Normalise(mtime=op.epoch, uid=op.uid, gid=op.gid)
        made_by = f"danlu: copy {op.source} to {op.target}"
        return await commit_tree(context, staged, normalise, made_by)


def _copy(merged: Path, op: CopyImage, staged: Path) -> None:
    source = inside(merged, op.source)
    resolved = Path(os.path.realpath(source))
    if merged != resolved and merged not in resolved.parents:
        raise UsageError(f"{op.source} leads out of the image it is copied from")
    if not os.path.lexists(resolved):
        raise UsageError(f"the image has no {op.source}")
    into = f"{op.target}/{source.name}" if op.target.endswith("/") else op.target
    target = inside(staged, op.target if resolved.is_dir() else into)
    make_parents(staged, target)
    if resolved.is_dir():
        shutil.copytree(resolved, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(resolved, target)
