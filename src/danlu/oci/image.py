"""Images as values: create them, parse their config, select one for a platform from an index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from danlu.errors import OutsideError
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.oci.types import (
    Config,
    Descriptor,
    History,
    Index,
    Platform,
    RootFs,
    RunConfig,
    encode_json,
    parse_config,
)
from danlu.util.sanitize import escape_unprintable

#: What a platform without a variant means (containerd, platforms/database.go).
_DEFAULT_VARIANT = {"arm64": "v8", "arm": "v7"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image; ``config`` is its identity, byte for byte, ``diff_ids`` its layers, lowest first.

    ``created_by`` says how each layer was created; empty if unknown.
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
    """Return an image of ``layers`` (diff ID and how it was created, lowest first).

    ``created`` is in seconds since 1970, for the image and its history. ``exposed_ports`` are
    written ``8080`` or ``8080/udp``. Equal arguments give equal bytes.
    """
    time = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ports = {port if "/" in port else f"{port}/tcp": dict[str, object]() for port in exposed_ports}
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
        history=tuple(
            History(created=time, created_by=created_by or None) for _, created_by in layers
        ),
    )
    return Image(
        encode_json(config),
        tuple(diff_id for diff_id, _ in layers),
        tuple(text for _, text in layers),
        config,
    )


def extend_config(
    config: bytes, diff_id: DiffId, created_by: str, *, created: datetime | None = None
) -> bytes:
    """Return an image configuration with one more layer (OCI image spec, config.md).

    Without ``created`` the image keeps its time, so that equal layers give equal images.
    """
    document = json.loads(config)
    if created is not None:
        document["created"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    document["rootfs"]["diff_ids"].append(diff_id)
    if "history" in document:
        entry = {"created": document.get("created"), "created_by": created_by}
        document["history"].append({key: value for key, value in entry.items() if value})
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def parse_image(config: bytes) -> Image:
    """Return the image with this config. Raises :class:`OutsideError` if the config is invalid."""
    parsed = parse_config(config).value
    diff_ids = tuple(map(DiffId, parsed.rootfs.diff_ids))
    created_by = [entry.created_by or "" for entry in parsed.history or () if not entry.empty_layer]
    # History is optional and some tools get it wrong; entries are matched from the lowest layer.
    created_by = (created_by + [""] * len(diff_ids))[: len(diff_ids)]
    return Image(config, diff_ids, tuple(created_by), parsed)


def select_platform(
    index: Index, *, os: str, architecture: str, variant: str = "", name: str = "the image"
) -> Descriptor:
    """Return the manifest of ``index`` for a platform; the first one if several match.

    Raises :class:`OutsideError` listing the platforms that the index has.
    """
    wanted = Platform(architecture, os, variant)
    images = [descriptor for descriptor in index.manifests if _is_image(descriptor)]
    for exact in (True, False):
        for descriptor in images:
            if descriptor.platform is not None and _matches_platform(
                descriptor.platform, wanted, exact=exact
            ):
                return descriptor
    # An index with one image often names no platform; the image's config does.
    if len(images) == 1 and images[0].platform is None:
        return images[0]
    known = sorted(
        {
            _format_platform(descriptor.platform)
            for descriptor in images
            if descriptor.platform is not None
        }
    )
    raise OutsideError(
        f"{name} is not available for {_format_platform(wanted)}",
        hint=f"available platforms: {', '.join(known)}" if known else "its index is empty",
    )


def _is_image(descriptor: Descriptor) -> bool:
    """Return whether it is an image; BuildKit's attestations have the platform ``unknown``."""
    return descriptor.platform is None or descriptor.platform.os != "unknown"


def _matches_platform(platform: Platform, wanted: Platform, *, exact: bool) -> bool:
    if (platform.os, platform.architecture) != (wanted.os, wanted.architecture):
        return False
    default = _DEFAULT_VARIANT.get(wanted.architecture, "")
    if (platform.variant or default) == (wanted.variant or default):
        return True
    return not exact and not wanted.variant


def _format_platform(platform: Platform) -> str:
    parts = (platform.os, platform.architecture, platform.variant)
    return escape_unprintable("/".join(part for part in parts if part))
