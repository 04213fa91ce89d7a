"""Bootstrap a minimal distribution for another processor, without running any of its programs."""

from __future__ import annotations

from danlu.builder.embedded.base_tree import commit_base, unpack_base
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.foreign_tree import CONFIGURE, configure_packages
from danlu.graph.ops import ForeignBootstrap
from danlu.store import Layer


async def execute(op: ForeignBootstrap, context: OpContext) -> list[Layer]:
    """Fetch missing packages, unpack and configure all of them, and commit the layer."""
    with context.store.staging() as tree, context.store.staging() as work:
        await unpack_base(op, context, tree, work / "repository")
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
        return await commit_base(op, context, tree, upper)
