"""Download a file into a layer."""

from __future__ import annotations

import shutil

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import (
    commit_tree,
    make_parents,
    path_inside,
    set_owner,
)
from danlu.graph.ops import HttpFile
from danlu.oci.tar import NormalizeOptions
from danlu.sources.mirrors import fetch_from_server
from danlu.store import Layer


async def execute(op: HttpFile, context: OpContext) -> list[Layer]:
    """Return one layer with the file, verified against the locked hash."""
    fetched = await fetch_from_server(
        context.with_credentials(op.url),
        op.sha256,
        mirrors=context.config.mirrors,
        cache=context.paths.cache / "http",
        offline=context.request.offline,
    )
    with context.store.staging() as staged:
        path = path_inside(staged, op.target)
        make_parents(staged, path, (op.uid, op.gid))
        await context.run_sync(shutil.copyfile, fetched.path, path)
        path.chmod(op.mode)
        set_owner(path, (op.uid, op.gid))
        normalise = NormalizeOptions(mtime=op.epoch)
        return await commit_tree(context, staged, normalise, f"danlu: download {op.url}")
