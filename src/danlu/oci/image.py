"""An image as a value: its config's bytes, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from danlu.oci.digest import DiffId, Digest, sha256
from danlu.oci.types import Config, History, RootFs, RunConfig, encode, parse_config

__all__ = ["Image", "make_image", "read_image"]


@dataclass(frozen=True, slots=True)
class Image:
    """An image: ``config`` is its identity, byte for byte; ``diff_ids`` its layers, lowest first.

    ``created_by`` says, for each layer, how it came to be; empty where nobody said.
    """

    config: bytes
    diff_ids: tuple[DiffId, ...]
    created_by: tuple[str, ...]
    parsed: Config = field(compare=False)

    @property
    def digest(self) -> Digest:
        """The image's identity: the digest of its config."""
        return sha256(self.config)


def make_image(
    layers: Sequence[tuple[DiffId, str]],
    *,
    architecture: str,
    os: str = "linux",
    variant: str = "",
    created: int = 0,
    environment: Sequence[tuple[str, str]] = (),
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    working_directory: str = "",
    user: str = "",
    exposed_ports: Sequence[str] = (),
    labels: Mapping[str, str] | Sequence[tuple[str, str]] = (),
) -> Image:
    """An image of ``layers`` (diff id and how it was made, lowest first).

    ``created`` is seconds since 1970 and holds for image and history; ``exposed_ports`` are
    ``8080`` or ``8080/udp``. Equal arguments give equal bytes.
    """
    time = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ports = {one if "/" in one else f"{one}/tcp": dict[str, object]() for one in exposed_ports}
    config = Config(
        architecture=architecture,
        os=os,
        variant=variant or None,
        created=time,
        config=RunConfig(
            user=user or None,
            exposed_ports=ports or None,
            env=tuple(f"{name}={value}" for name, value in environment) or None,
            entrypoint=tuple(entrypoint) or None,
            cmd=tuple(command) or None,
            working_dir=working_directory or None,
            labels=dict(labels) or None,
        ),
        rootfs=RootFs("layers", tuple(diff_id for diff_id, _ in layers)),
        history=tuple(History(created=time, created_by=made or None) for _, made in layers),
    )
    return Image(
        encode(config),
        tuple(diff_id for diff_id, _ in layers),
        tuple(made for _, made in layers),
        config,
    )


def read_image(config: bytes) -> Image:
    """The image that ``config`` describes; raises :class:`OutsideError` where it describes none."""
    parsed = parse_config(config).value
    diff_ids = tuple(map(DiffId, parsed.rootfs.diff_ids))
    made = [one.created_by or "" for one in parsed.history or () if not one.empty_layer]
    # History is optional, and some tools write it wrongly; layers count from the lowest.
    made = (made + [""] * len(diff_ids))[: len(diff_ids)]
    return Image(config, diff_ids, tuple(made), parsed)
