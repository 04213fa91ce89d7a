"""An image's configuration as the OCI writes it, read as the part that running and building use."""

from __future__ import annotations

import msgspec

from danlu.graph.types import ImageConfig

__all__ = ["image_config_of"]


class _Run(msgspec.Struct, rename="pascal"):
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    exposed_ports: dict[str, msgspec.Raw] | None = None
    labels: dict[str, str] | None = None


class _Config(msgspec.Struct):
    config: _Run | None = None


def image_config_of(config: bytes) -> ImageConfig:
    """What ``config`` (OCI image spec, config.md) says of how the image runs.

    Raises :class:`msgspec.DecodeError` or :class:`msgspec.ValidationError` for other bytes.
    """
    run = msgspec.json.decode(config, type=_Config).config or _Run()
    pairs = [text.partition("=") for text in run.env or ()]
    return ImageConfig(
        environment=tuple((name, value) for name, _, value in pairs),
        entrypoint=tuple(run.entrypoint or ()),
        command=tuple(run.cmd or ()),
        working_directory=run.working_dir or "",
        user=run.user or "",
        exposed_ports=tuple(sorted(run.exposed_ports or ())),
        labels=tuple(sorted((run.labels or {}).items())),
    )
