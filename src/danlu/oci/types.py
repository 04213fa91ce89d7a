"""The JSON documents of OCI images, parsed, with their original bytes.

OCI image spec v1.1 (descriptor.md, manifest.md, image-index.md, config.md) and, for reading,
Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from danlu.errors import OutsideError
from danlu.oci.digest import Digest, is_digest, sha256
from danlu.util.decoding import decode_json
from danlu.util.sanitize import escape_unprintable

#: Larger manifests and configs are rejected, because they are read into memory.
MAX_DOCUMENT_SIZE = 8 << 20

_T = TypeVar("_T")

#: A field that is written even if it has its default (``omit_defaults`` has no exceptions).
_SCHEMA_VERSION_FIELD: Any = msgspec.field(default_factory=lambda: 2)


class MediaType:
    """The media types that danlu writes and reads."""

    MANIFEST = "application/vnd.oci.image.manifest.v1+json"
    INDEX = "application/vnd.oci.image.index.v1+json"
    CONFIG = "application/vnd.oci.image.config.v1+json"
    LAYER = "application/vnd.oci.image.layer.v1.tar"
    LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
    LAYER_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"
    DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
    DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
    DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
    DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
    DOCKER_LAYER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    DOCKER_LAYER_ZSTD = "application/vnd.docker.image.rootfs.diff.tar.zstd"


_MANIFESTS = (MediaType.MANIFEST, MediaType.DOCKER_MANIFEST)
_INDEXES = (MediaType.INDEX, MediaType.DOCKER_LIST)

#: The Accept header of manifest requests.
ACCEPTED_MANIFESTS = (*_MANIFESTS, *_INDEXES)

_COMPRESSION: dict[str, Literal["none", "gzip", "zstd"]] = {
    MediaType.LAYER: "none",
    MediaType.DOCKER_LAYER: "none",
    MediaType.LAYER_GZIP: "gzip",
    MediaType.DOCKER_LAYER_GZIP: "gzip",
    MediaType.LAYER_ZSTD: "zstd",
    MediaType.DOCKER_LAYER_ZSTD: "zstd",
}


class Platform(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an image runs on (image-index.md, ``platform``)."""

    architecture: str
    os: str
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Media type, digest and size of some content (descriptor.md)."""

    media_type: str
    digest: Digest
    size: int
    annotations: dict[str, str] | None = None
    platform: Platform | None = None
    urls: tuple[str, ...] | None = None
    artifact_type: str = ""

    def __post_init__(self) -> None:
        if not is_digest(self.digest):
            raise ValueError(f"not a sha256 digest: {self.digest!r}")
        if self.size < 0:
            raise ValueError(f"negative size: {self.size}")


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One image: its config and its layers, lowest first (manifest.md)."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    schema_version: int = _SCHEMA_VERSION_FIELD
    media_type: str = ""
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Several images, usually one per platform (image-index.md)."""

    manifests: tuple[Descriptor, ...]
    schema_version: int = _SCHEMA_VERSION_FIELD
    media_type: str = ""
    annotations: dict[str, str] | None = None


class RunConfig(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """How a container of the image runs (config.md, ``config``)."""

    user: str | None = None
    exposed_ports: dict[str, dict[str, Any]] | None = None
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    volumes: dict[str, dict[str, Any]] | None = None
    working_dir: str | None = None
    labels: dict[str, str] | None = None
    stop_signal: str | None = None
    shell: tuple[str, ...] | None = None


class RootFs(msgspec.Struct, frozen=True):
    """The layers as diff IDs, lowest first."""

    type: str
    diff_ids: tuple[str, ...]


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a layer was created; an empty entry has no layer."""

    created: str | None = None
    created_by: str | None = None
    author: str | None = None
    comment: str | None = None
    empty_layer: bool = False


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image's platform, how it runs, its layers and its history (config.md)."""

    architecture: str
    os: str
    rootfs: RootFs
    variant: str | None = None
    created: str | None = None
    author: str | None = None
    config: RunConfig | None = None
    history: tuple[History, ...] | None = None


@dataclass(frozen=True, slots=True)
class ParsedDocument(Generic[_T]):
    """A document together with the bytes it was parsed from, because only those have its digest."""

    raw: bytes
    media_type: str
    value: _T

    @property
    def digest(self) -> Digest:
        """The digest of the original bytes."""
        return sha256(self.raw)

    @property
    def descriptor(self) -> Descriptor:
        """A descriptor of this document."""
        return Descriptor(self.media_type, self.digest, len(self.raw))


def encode_json(value: msgspec.Struct) -> bytes:
    """Return ``value`` as canonical JSON: fields in order, mappings sorted."""
    return msgspec.json.encode(value, order="deterministic")


class _ManifestProbe(msgspec.Struct, rename="camel"):
    schema_version: int | None = None
    media_type: str = ""
    config: Any = None
    layers: Any = None
    manifests: Any = None
    fs_layers: Any = None


def parse_manifest(
    raw: bytes, media_type: str = ""
) -> ParsedDocument[Manifest] | ParsedDocument[Index]:
    """Parse a manifest or an index; ``media_type`` is what the sender declared.

    Raises :class:`OutsideError` for anything else, including a document that could be read both
    ways (CVE-2021-41190) or that contradicts its sender.
    """
    probe = _decode_json(raw, _ManifestProbe, "image manifest")
    declared = media_type.partition(";")[0].strip()
    if probe.schema_version == 1 or probe.fs_layers is not None:
        raise OutsideError(
            "the image has a manifest of schema version 1, which is not supported",
            hint="push the image again with a current client",
        )
    is_index = probe.manifests is not None
    if is_index and (probe.layers is not None or probe.config is not None):
        raise OutsideError("the manifest is ambiguous: it has fields of both an image and an index")
    known = (*_MANIFESTS, *_INDEXES)
    if declared in known and probe.media_type in known and declared != probe.media_type:
        raise OutsideError(
            f"the manifest was sent as {declared} but declares "
            f"{escape_unprintable(probe.media_type)}"
        )
    kind = probe.media_type or (declared if declared in known else "")
    expected = _INDEXES if is_index else _MANIFESTS
    kind = kind or expected[0]
    if kind not in expected:
        raise OutsideError(f"unsupported manifest media type: {escape_unprintable(kind)}")
    if is_index:
        return ParsedDocument(raw, kind, _decode_json(raw, Index, "image index"))
    return ParsedDocument(raw, kind, _decode_json(raw, Manifest, "image manifest"))


def parse_config(raw: bytes) -> ParsedDocument[Config]:
    """Parse an image's config. Raises :class:`OutsideError` if it is invalid."""
    config = _decode_json(raw, Config, "image config")
    if config.rootfs.type != "layers" or not all(map(is_digest, config.rootfs.diff_ids)):
        raise OutsideError("the image config lists its layers in an unsupported form")
    return ParsedDocument(raw, MediaType.CONFIG, config)


def layer_compression(media_type: str) -> Literal["none", "gzip", "zstd"]:
    """Return ``none``, ``gzip`` or ``zstd``. Raises :class:`OutsideError` for other media types."""
    try:
        return _COMPRESSION[media_type]
    except KeyError:
        raise OutsideError(
            f"unsupported layer media type: {escape_unprintable(media_type)}",
            hint="is it an image? registries also store other artifacts",
        ) from None


def _decode_json(raw: bytes, kind: type[_T], what: str) -> _T:
    if len(raw) > MAX_DOCUMENT_SIZE:
        raise OutsideError(f"the {what} has {len(raw)} bytes; the limit is {MAX_DOCUMENT_SIZE}")
    try:
        return decode_json(raw, kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise OutsideError(f"invalid {what}: {escape_unprintable(str(error))}") from error
