"""Copy files of another image into a layer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.ops.staged_tree import (
    commit_tree,
    make_parents,
    path_inside,
    set_owner,
)
from danlu.errors import UsageError
from danlu.graph.ops import CopyImage
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.overlay import mount_root
from danlu.sandbox.types import RootFilesystem
from danlu.store import Layer


async def execute(op: CopyImage, context: OpContext) -> list[Layer]:
    """Return one layer with the files at ``op.source`` in the stack of the input."""
    layers = tuple(layer.tree for layer in context.inputs[0].stack)
    with context.store.staging() as staged, context.store.staging() as work:
        with mount_root(RootFilesystem(layers), work) as merged:
            await context.run_sync(_copy_source, merged, op, staged)
        normalise = NormalizeOptions(mtime=op.epoch)
        made_by = f"danlu: copy {op.source} to {op.target}"
        return await commit_tree(context, staged, normalise, made_by)


def _copy_source(merged: Path, op: CopyImage, staged: Path) -> None:
    source = path_inside(merged, op.source)
    resolved = Path(os.path.realpath(source))
    if merged != resolved and merged not in resolved.parents:
        raise UsageError(f"{op.source} leads outside the image it is copied from")
    if not os.path.lexists(resolved):
        raise UsageError(f"{op.source} not found in the image")
    into = f"{op.target}/{source.name}" if op.target.endswith("/") else op.target
    target = path_inside(staged, op.target if resolved.is_dir() else into)
    make_parents(staged, target, (op.uid, op.gid))
    if resolved.is_dir():
        shutil.copytree(resolved, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(resolved, target)
    set_owner(target, (op.uid, op.gid))
