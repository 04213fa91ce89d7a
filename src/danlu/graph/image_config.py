"""The part of an OCI image configuration that a container is started from."""

from __future__ import annotations

import msgspec

from danlu.util.decoding import decode_json


class ImageConfig(msgspec.Struct, frozen=True):
    """How an image runs (OCI image spec, config.md).

    ``environment`` overrides the base image's variables, and ``path`` is prepended to its PATH.
    """

    environment: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_directory: str = "/"
    user: str = ""
    exposed_ports: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


class _RuntimeConfig(msgspec.Struct, rename="pascal"):
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    exposed_ports: dict[str, msgspec.Raw] | None = None
    labels: dict[str, str] | None = None


class _ConfigFile(msgspec.Struct):
    config: _RuntimeConfig | None = None


def parse_image_config(config: bytes) -> ImageConfig:
    """Parse an OCI image configuration (OCI image spec, config.md).

    Raises :class:`msgspec.DecodeError` or :class:`msgspec.ValidationError` for other bytes.
    """
    run = decode_json(config, _ConfigFile).config or _RuntimeConfig()
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
