"""Bootstrap a minimal distribution for another processor, without running any of its programs."""

from __future__ import annotations

from danlu.builder.embedded.apt_repository import fetch_packages, write_apt_repository
from danlu.builder.embedded.base_tree import finish_tree, make_skeleton
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.foreign_tree import CONFIGURE, configure_packages, unpack_packages
from danlu.builder.embedded.staged_tree import commit_tree
from danlu.graph.ops import ForeignBootstrap
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.merge_upper import merge_upper
from danlu.store import Layer


async def execute(op: ForeignBootstrap, context: OpContext) -> list[Layer]:
    """Fetch missing packages, unpack and configure all of them, and commit the layer."""
    cache = await fetch_packages(
        context, op.packages, distribution=op.distribution, codename=op.codename
    )
    with context.store.staging() as tree, context.store.staging() as work:
        directory = work / "repository"
        await write_apt_repository(cache, op.packages, directory)
        await context.run_sync(make_skeleton, tree, op)
        names = await unpack_packages(op.packages, context, directory, tree)
        (directory / "install").write_text("".join(f"{name}\n" for name in names))
        upper = await configure_packages(
            context,
            CONFIGURE,
            (tree,),
            context.inputs[0].stack,
            packages=op.packages,
            work=work,
            epoch=op.epoch,
            what=f"configuring the base of {op.distribution}",
        )
        await context.run_sync(finalize_upper, upper, op.epoch, below=(tree,))
        await context.run_sync(merge_upper, upper, tree)
        await context.run_sync(finish_tree, tree, op)
        made_by = f"danlu bootstrap {op.distribution}"
        return await commit_tree(context, tree, NormalizeOptions(clamp=op.epoch), made_by)
