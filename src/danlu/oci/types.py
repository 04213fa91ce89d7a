"""The JSON documents of OCI images, parsed, with their bytes kept as they came.

OCI image spec v1.1 (descriptor.md, manifest.md, image-index.md, config.md) and, for reading,
Docker's image manifest version 2, schema 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from danlu.errors import OutsideError
from danlu.oci.digest import Digest, is_digest, sha256
from danlu.oci.text import printable

__all__ = [
    "ACCEPTED_MANIFESTS",
    "MAX_DOCUMENT",
    "Config",
    "Descriptor",
    "Document",
    "History",
    "Index",
    "Manifest",
    "MediaType",
    "Platform",
    "RootFs",
    "RunConfig",
    "encode",
    "layer_compression",
    "parse_config",
    "parse_manifest",
]

#: The most bytes of a manifest or config that are read into memory.
MAX_DOCUMENT = 8 << 20

_T = TypeVar("_T")

#: A field that is written although it has its default (``omit_defaults`` knows no exceptions).
_TWO: Any = msgspec.field(default_factory=lambda: 2)


class MediaType:
    """The media types danlu writes and reads."""

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

#: What a registry is asked for.
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
    """What some bytes are called: media type, digest, size in bytes."""

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
            raise ValueError(f"a size of {self.size} bytes")


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One image: its config and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    schema_version: int = _TWO
    media_type: str = ""
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Several images, mostly one a platform."""

    manifests: tuple[Descriptor, ...]
    schema_version: int = _TWO
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
    """The layers by their diff ids, lowest first."""

    type: str
    diff_ids: tuple[str, ...]


class History(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a layer came to be; an empty one has no layer."""

    created: str | None = None
    created_by: str | None = None
    author: str | None = None
    comment: str | None = None
    empty_layer: bool = False


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an image is: platform, how it runs, layers, history (config.md)."""

    architecture: str
    os: str
    rootfs: RootFs
    variant: str | None = None
    created: str | None = None
    author: str | None = None
    config: RunConfig | None = None
    history: tuple[History, ...] | None = None


@dataclass(frozen=True, slots=True)
class Document(Generic[_T]):
    """A document and the bytes it was parsed from, which alone have its digest."""

    raw: bytes
    media_type: str
    value: _T

    @property
    def digest(self) -> Digest:
        """The digest of the bytes."""
        return sha256(self.raw)

    @property
    def descriptor(self) -> Descriptor:
        """What others call it."""
        return Descriptor(self.media_type, self.digest, len(self.raw))


def encode(value: msgspec.Struct) -> bytes:
    """``value`` as JSON: the same bytes for equal values (fields in order, mappings sorted)."""
    return msgspec.json.encode(value, order="deterministic")


class _Probe(msgspec.Struct, rename="camel"):
    schema_version: int | None = None
    media_type: str = ""
    config: Any = None
    layers: Any = None
    manifests: Any = None
    fs_layers: Any = None


def parse_manifest(raw: bytes, media_type: str = "") -> Document[Manifest] | Document[Index]:
    """A manifest or an index; ``media_type`` is what the sender said it is.

    Raises :class:`OutsideError` for anything else, also for a document that could be read both
    ways (CVE-2021-41190) or contradicts its sender.
    """
    probe = _decode(raw, _Probe, "image manifest")
    said = media_type.partition(";")[0].strip()
    if probe.schema_version == 1 or probe.fs_layers is not None:
        raise OutsideError(
            "the image has a manifest of the old version 1, which danlu does not read",
            hint="push it again with a client made after 2016",
        )
    is_index = probe.manifests is not None
    if is_index and (probe.layers is not None or probe.config is not None):
        raise OutsideError("the manifest says that it is one image and several at once")
    known = (*_MANIFESTS, *_INDEXES)
    if said in known and probe.media_type in known and said != probe.media_type:
        raise OutsideError(
            f"the manifest is sent as {said} but says that it is {printable(probe.media_type)}"
        )
    kind = probe.media_type or (said if said in known else "")
    wanted = _INDEXES if is_index else _MANIFESTS
    kind = kind or wanted[0]
    if kind not in wanted:
        raise OutsideError(f"the manifest is of a kind that danlu does not read: {printable(kind)}")
    if is_index:
        return Document(raw, kind, _decode(raw, Index, "image index"))
    return Document(raw, kind, _decode(raw, Manifest, "image manifest"))


def parse_config(raw: bytes) -> Document[Config]:
    """An image's config; raises :class:`OutsideError` where it is not one."""
    config = _decode(raw, Config, "image config")
    if config.rootfs.type != "layers" or not all(map(is_digest, config.rootfs.diff_ids)):
        raise OutsideError("the image config names its layers in a way that danlu does not know")
    return Document(raw, MediaType.CONFIG, config)


def layer_compression(media_type: str) -> Literal["none", "gzip", "zstd"]:
    """``none``, ``gzip`` or ``zstd``; raises :class:`OutsideError` for what is no layer of ours."""
    try:
        return _COMPRESSION[media_type]
    except KeyError:
        raise OutsideError(
            f"the image has a layer of a kind that danlu does not read: {printable(media_type)}",
            hint="is it an image? registries keep other artifacts too",
        ) from None


def _decode(raw: bytes, kind: type[_T], what: str) -> _T:
    if len(raw) > MAX_DOCUMENT:
        raise OutsideError(f"the {what} has {len(raw)} bytes, more than any should have")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise OutsideError(f"the {what} cannot be read: {printable(str(error))}") from error
