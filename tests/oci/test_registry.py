"""The client against the fake registry and against Debian's real one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from danlu.errors import OutsideError
from danlu.oci import blob_export
from danlu.oci.compress import Compression
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.oci.layer_status import LayerStatus
from danlu.oci.registry import RegistryNotFound, push_image
from danlu.oci.types import Descriptor, Index, Manifest, MediaType
from tests.fakes.registry import FakeRegistry
from tests.oci.layers import TreeLayerSource, image_of
from tests.oci.registries import client, debian_registry

pytestmark = pytest.mark.anyio
BIG = random.Random(7).randbytes(3 << 20)


@pytest.fixture(scope="module")
def real_host() -> Iterator[str]:
    with debian_registry() as host:
        yield host


@pytest.fixture(params=["fake", pytest.param("debian", marks=pytest.mark.real)])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "fake":
        async with FakeRegistry() as registry:
            yield registry.host
    else:
        yield request.getfixturevalue("real_host")


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


async def test_registry_responds(host: str) -> None:
    async with client(host) as registry:
        await registry.ping()


@pytest.mark.parametrize("content", [b"", b"x", BIG])
async def test_pushed_blob_is_downloaded_unchanged(
    host: str, content: bytes, tmp_path: Path
) -> None:
    digest = sha256(content)
    (tmp_path / "blob").write_bytes(content)
    sent, received = [0], [0]
    pieces: list[bytes] = []
    async with client(host) as registry:
        await registry.push_blob(
            "a/blobs", digest, tmp_path / "blob", progress=lambda n: sent.append(n)
        )
        assert await registry.has_blob("a/blobs", digest)
        await registry.download_blob(
            "a/blobs",
            Descriptor(MediaType.LAYER, digest, len(content)),
            pieces.append,
            progress=lambda n: received.append(n),
        )
    assert b"".join(pieces) == content
    assert sum(sent) == sum(received) == len(content)


async def test_missing_blobs_and_manifests_are_not_found(host: str) -> None:
    digest = sha256(b"nowhere")
    async with client(host) as registry:
        assert not await registry.has_blob("a/empty", digest)
        with pytest.raises(RegistryNotFound, match=r"has no image a/empty:latest"):
            await registry.get_manifest("a/empty", "latest")
        with pytest.raises(RegistryNotFound, match="has no blob"):
            await registry.download_blob("a/empty", Descriptor("x", digest, 1), print)


async def test_blob_is_mounted_from_another_repository(host: str) -> None:
    digest = sha256(b"mounted")
    async with client(host) as registry:
        await registry.push_blob("m/one", digest, b"mounted")
        assert await registry.mount_blob("m/two", digest, "m/one")
        assert await registry.has_blob("m/two", digest)
        assert not await registry.mount_blob("m/two", sha256(b"other"), "m/one")


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
async def test_pushed_image_is_pulled_by_tag_and_by_digest(
    host: str, source: TreeLayerSource, tmp_path: Path, kind: Compression
) -> None:
    image = image_of(source, [{"a": "1"}, {"b": BIG}])
    async with client(host) as registry:
        pushed = await push_image(
            registry, f"i/{kind}", image, source, scratch=tmp_path, tags=["v1", "v2"], kind=kind
        )
        for target in ("v1", "v2", pushed.digest):
            document = await registry.get_manifest(f"i/{kind}", target)
            assert document.digest == pushed.digest
            assert isinstance(document.value, Manifest)
            assert await registry.get_image(f"i/{kind}", document.value) == image


class RememberedLocations:
    """The store's record of blob locations, in memory."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, Digest], list[str]] = {}

    def find_repositories(self, registry: str, digest: Digest) -> list[str]:
        return self.known.get((registry, digest), [])

    def record_repository(
        self, registry: str, repository: str, digest: Digest, diff_id: DiffId
    ) -> None:
        self.known.setdefault((registry, digest), []).append(repository)


async def test_only_missing_layers_are_compressed_and_sent(
    host: str, source: TreeLayerSource, tmp_path: Path
) -> None:
    layers: list[dict[str, str | bytes]] = [{"a": "1"}, {"b": "2"}]
    statuses: list[LayerStatus] = []
    locations = RememberedLocations()
    async with client(host) as registry:
        first = image_of(source, layers)
        await push_image(registry, "once", first, source, scratch=tmp_path, tags=["1"])
        source.written.clear()
        await push_image(
            registry,
            "once",
            first,
            source,
            scratch=tmp_path,
            tags=["1"],
            locations=locations,
            report=statuses.append,
        )
        assert source.written == []
        assert {status.state for status in statuses} == {"waiting", "exists"}
        new = source.add({"c": "3"})
        from danlu.oci.image import make_image

        second = make_image(
            [(diff_id, "") for diff_id in (*first.diff_ids, new)], architecture="amd64"
        )
        await push_image(registry, "once", second, source, scratch=tmp_path, tags=["2"])
        assert source.written == [new]
        source.written.clear()
        statuses.clear()
        await push_image(
            registry,
            "other",
            first,
            source,
            scratch=tmp_path,
            locations=locations,
            report=statuses.append,
        )
        assert source.written == []
        assert {status.state for status in statuses} == {"waiting", "mounted"}
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


async def test_concurrent_transfers(host: str) -> None:
    contents = [random.Random(n).randbytes(50_000 + n) for n in range(24)]
    async with client(host) as registry:

        async def push_and_pull(content: bytes) -> None:
            digest = Digest("sha256:" + hashlib.sha256(content).hexdigest())
            pieces: list[bytes] = []
            await registry.push_blob("many", digest, content)
            await registry.download_blob(
                "many", Descriptor("x", digest, len(content)), pieces.append
            )
            assert b"".join(pieces) == content

        async with anyio.create_task_group() as group:
            for content in contents:
                group.start_soon(push_and_pull, content)


async def test_manifest_without_its_blobs_is_rejected(host: str, source: TreeLayerSource) -> None:
    image = image_of(source, [])
    manifest = blob_export.make_manifest(image, [])
    async with client(host) as registry:
        with pytest.raises(OutsideError, match="unknown"):
            await registry.push_manifest("lacking", manifest, "x")


async def test_index_is_distinguished_from_a_manifest(
    host: str, source: TreeLayerSource, tmp_path: Path
) -> None:
    from danlu.oci.types import ParsedDocument, encode_json

    image = image_of(source, [{"a": "1"}])
    async with client(host) as registry:
        descriptor = await push_image(registry, "multi", image, source, scratch=tmp_path)
        index = Index(manifests=(descriptor,), media_type=MediaType.INDEX)
        document = ParsedDocument(encode_json(index), MediaType.INDEX, index)
        await registry.push_manifest("multi", document, "all")
        manifest = await registry.get_manifest("multi", "all")
    assert manifest.value == index
