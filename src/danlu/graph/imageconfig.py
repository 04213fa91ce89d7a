"""What an image says of how it runs, as a value and read from the OCI's form of it."""

from __future__ import annotations

import msgspec

__all__ = ["ImageConfig", "image_config_of"]


class ImageConfig(msgspec.Struct, frozen=True):
    """What an image says of how it runs (OCI image spec, config.md).

    ``environment`` is laid over the base image's, and ``path`` goes before its PATH.
    """

    environment: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_directory: str = "/"
    user: str = ""
    exposed_ports: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


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
