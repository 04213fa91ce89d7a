"""An image of a registry as what everything stands on."""

from __future__ import annotations

from danlu.builder.embedded.context import Context, Made
from danlu.graph import ImageSource
from danlu.graph.imageconfig import image_config_of
from danlu.sources.image import pull

__all__ = ["execute"]


async def execute(op: ImageSource, context: Context) -> Made:
    """The image's layers, pulled where the store lacks them, and its configuration."""
    pulled = await pull(
        op.reference,
        op.digest,
        store=context.store,
        config=context.config,
        offline=context.offline,
        transfer=context.transfer,
    )
    return Made(tuple(pulled.layers), inherited=image_config_of(pulled.config))
