"""Copy files of another image into a layer."""

from __future__ import annotations

import fnmatch
import os
import shutil
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import (
    commit_tree,
    make_parents,
    path_inside,
    set_owner,
)
from danlu.errors import UsageError
from danlu.graph.ops import CopyImage
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.layer_view import LayerView
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
    view = LayerView((merged,))
    source = path_inside(merged, op.source)
    sources = [source] if os.path.lexists(source) else _match_pattern(merged, source, view)
    for found in sources:
        # What matches a pattern keeps its name.
        into = f"{op.target}/{found.name}" if found != source else op.target
        _copy_path(_resolve_links(merged, found, view), found.name, op, staged, into)
    if not sources:
        raise UsageError(f"{op.source} not found in the image")


def _match_pattern(merged: Path, source: Path, view: LayerView) -> list[Path]:
    """Return what the pattern in the last part of a path matches, sorted."""
    directory = _resolve_links(merged, source.parent, view)
    if not any(character in source.name for character in "*?[") or not directory.is_dir():
        return []
    names = fnmatch.filter(os.listdir(directory), source.name)
    return [source.parent / name for name in sorted(names)]


def _resolve_links(merged: Path, path: Path, view: LayerView) -> Path:
    """Return a path of the image without symbolic links, which cannot lead out of it."""
    return merged.joinpath(*view.resolve(str(path.relative_to(merged))))


def _copy_path(resolved: Path, name: str, op: CopyImage, staged: Path, target_path: str) -> None:
    """Copy a file, or the content of a directory, to ``target_path`` in the staged tree."""
    if not os.path.lexists(resolved):
        raise UsageError(f"{op.source} not found in the image")
    into = f"{target_path}/{name}" if target_path.endswith("/") else target_path
    target = path_inside(staged, target_path if resolved.is_dir() else into)
    make_parents(staged, target, (op.uid, op.gid))
    if resolved.is_dir():
        shutil.copytree(resolved, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(resolved, target)
    set_owner(target, (op.uid, op.gid))
