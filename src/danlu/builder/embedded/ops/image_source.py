"""Pull an image of a registry as the base of a stack."""

from __future__ import annotations

from danlu.builder.embedded.context import OpContext, OpOutput
from danlu.graph.image_config import parse_image_config
from danlu.graph.ops import ImageSource
from danlu.sources.image import pull


async def execute(op: ImageSource, context: OpContext) -> OpOutput:
    """Return the image's layers and configuration; pull what the store lacks."""
    pulled = await pull(
        op.reference,
        op.digest,
        store=context.store,
        config=context.config,
        offline=context.request.offline,
        transfer=context.transfer,
    )
    return OpOutput(tuple(pulled.layers), inherited=parse_image_config(pulled.config))
