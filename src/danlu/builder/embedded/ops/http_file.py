"""A file fetched by HTTP."""

from __future__ import annotations

import shutil

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree, inside, make_parents
from danlu.graph import HttpFile
from danlu.oci.tar import Normalise
from danlu.sources.http import fetch
from danlu.store import Layer

__all__ = ["execute"]


async def execute(op: HttpFile, context: Context) -> list[Layer]:
    """One layer with the file, verified against the locked hash."""
    fetched = await fetch(
        op.url,
        op.sha256,
        cache=context.paths.cache / "http",
        offline=context.offline,
    )
    with context.store.staging() as staged:
        path = inside(staged, op.target)
        make_parents(staged, path)
        await context.run_sync(shutil.copyfile, fetched.path, path)
        path.chmod(op.mode)
        normalise = Normalise(mtime=op.epoch, uid=op.uid, gid=op.gid)
        return await commit_tree(context, staged, normalise, f"danlu: download {op.url}")
