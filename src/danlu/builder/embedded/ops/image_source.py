"""An image of a registry as what everything stands on."""

from __future__ import annotations

from danlu.builder.embedded.context import Context, Made
from danlu.graph import ImageConfig, ImageSource
from danlu.sources.image import pull

__all__ = ["execute", "inherited"]


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
    return Made(tuple(pulled.layers), inherited=inherited(pulled.config))


def inherited(config: object) -> ImageConfig:
    """The part of an image's configuration that images built on it keep."""
    import msgspec

    run = (msgspec.json.decode(config) if isinstance(config, bytes) else config) or {}
    assert isinstance(run, dict)
    inner = run.get("config") or {}
    pairs = [text.partition("=") for text in inner.get("Env") or ()]
    return ImageConfig(
        environment=tuple((name, value) for name, _, value in pairs),
        entrypoint=tuple(inner.get("Entrypoint") or ()),
        command=tuple(inner.get("Cmd") or ()),
        working_directory=inner.get("WorkingDir") or "",
        user=inner.get("User") or "",
        exposed_ports=tuple(sorted(inner.get("ExposedPorts") or ())),
        labels=tuple(sorted((inner.get("Labels") or {}).items())),
    )
