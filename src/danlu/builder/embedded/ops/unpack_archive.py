"""Unpack a pinned archive into a layer."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import (
    commit_tree,
    make_parents,
    path_inside,
    set_owner,
)
from danlu.errors import ChecksumError
from danlu.graph.ops import WHEEL_TIME, UnpackArchive
from danlu.oci.archive import ArchiveLayout, unpack_archive
from danlu.oci.tar import NormalizeOptions
from danlu.sources.http import FetchedFile
from danlu.sources.mirrors import fetch_archive, list_mirrors
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.simple_index import fetch_file
from danlu.sources.pypi.uv import Uv
from danlu.store import Layer
from danlu.util.safe_paths import ProjectTree


async def execute(op: UnpackArchive, context: OpContext) -> list[Layer]:
    """Return one layer with the archive, verified against the locked hash, below its target."""
    name = op.path.rpartition("/")[2]
    layout = ArchiveLayout(op.strip_components, op.include, dict(op.rename))
    with context.store.staging() as staged, context.store.staging() as work:
        archive = await _fetch_file(op, context, work)
        target = path_inside(staged, op.target)
        make_parents(staged, target, (op.uid, op.gid))
        target.mkdir(exist_ok=True)
        await context.run_sync(unpack_archive, archive, target, layout, name=name)
        await context.run_sync(_substitute_text, target, op.substitute)
        if op.uid or op.gid:
            await context.run_sync(set_owner, target, (op.uid, op.gid))
        await context.run_sync(_set_directory_times, staged)
        return await commit_tree(context, staged, NormalizeOptions(), f"danlu: {name}")


async def _fetch_file(op: UnpackArchive, context: OpContext, work: Path) -> Path:
    """Return the verified archive; that of a project is copied, so that it cannot change later."""
    if op.mirror == "pypi":
        return (await _fetch_wheel(op, context)).path
    if op.mirror:
        fetched = await fetch_archive(
            op.mirror,
            op.path,
            op.sha256,
            mirrors=list_mirrors(op.mirror, context.config, context.request.mirrors),
            cache=context.paths.cache / "http",
            offline=context.request.offline,
        )
        return fetched.path
    with ProjectTree(context.request.project) as tree:
        data = tree.read_bytes(op.path)
    if hashlib.sha256(data).hexdigest() != op.sha256:
        raise ChecksumError(f"{op.path} has changed since it was locked", hint="run `danlu lock`")
    copy = work / "archive"
    copy.write_bytes(data)
    return copy


async def _fetch_wheel(op: UnpackArchive, context: OpContext) -> FetchedFile:
    """Return a wheel that carries programs, from the user's Python indexes."""
    name, _, file = op.path.rpartition("/")
    indexes = context.indexes or IndexSettings()
    uv = Uv(
        context.paths.cache / "uv",
        context.request.project,
        indexes,
        offline=context.request.offline,
    )
    return await fetch_file(uv, name, file, op.sha256, cache=context.paths.cache / "http")


def _substitute_text(root: Path, substitutions: Sequence[tuple[str, str, str]]) -> None:
    for pattern, old, new in substitutions:
        for path in sorted(root.glob(pattern)):
            # Links of the archive, one after another, could lead out of it.
            if path.is_symlink() or not path.resolve().is_relative_to(root.resolve()):
                continue
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                continue
            path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _set_directory_times(root: Path) -> None:
    """Give all directories one time: those that the archive does not list have the current one."""
    for directory, _, _ in os.walk(root):
        os.utime(directory, (WHEEL_TIME, WHEEL_TIME))
