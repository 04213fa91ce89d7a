"""The same claims of the client against the fake registry and against Debian's real one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from danlu.errors import OutsideError
from danlu.oci import exporting
from danlu.oci.compress import Compression
from danlu.oci.digest import Digest, sha256
from danlu.oci.registry import NotFound, push_image
from danlu.oci.types import Descriptor, Index, Manifest, MediaType
from danlu.testing.registry import FakeRegistry
from tests.oci.layers import Trees, image_of
from tests.oci.registries import client, debian_registry

pytestmark = pytest.mark.anyio
BIG = random.Random(7).randbytes(3 << 20)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
def source(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "trees")


async def test_a_registry_answers(host: str) -> None:
    async with client(host) as registry:
        await registry.ping()


@pytest.mark.parametrize("content", [b"", b"x", BIG])
async def test_a_blob_comes_back_as_it_went(host: str, content: bytes, tmp_path: Path) -> None:
    digest = sha256(content)
    (tmp_path / "blob").write_bytes(content)
    sent, received = [0], [0]
    pieces: list[bytes] = []
    async with client(host) as registry:
        await registry.push_blob(
            "a/blobs", digest, tmp_path / "blob", progress=lambda n: sent.append(n)
        )
        assert await registry.has_blob("a/blobs", digest)
        await registry.blob(
            "a/blobs",
            Descriptor(MediaType.LAYER, digest, len(content)),
            pieces.append,
            progress=lambda n: received.append(n),
        )
    assert b"".join(pieces) == content
    assert sum(sent) == sum(received) == len(content)


async def test_what_is_not_there_is_said_to_be_missing(host: str) -> None:
    digest = sha256(b"nowhere")
    async with client(host) as registry:
        assert not await registry.has_blob("a/empty", digest)
        with pytest.raises(NotFound, match=r"has no image a/empty:latest"):
            await registry.manifest("a/empty", "latest")
        with pytest.raises(NotFound, match="has no blob"):
            await registry.blob("a/empty", Descriptor("x", digest, 1), print)
        with pytest.raises(NotFound):
            await registry.tags("a/empty")


async def test_a_blob_is_mounted_from_another_repository(host: str) -> None:
    digest = sha256(b"mounted")
    async with client(host) as registry:
        await registry.push_blob("m/one", digest, b"mounted")
        assert await registry.mount("m/two", digest, "m/one")
        assert await registry.has_blob("m/two", digest)
        assert not await registry.mount("m/two", sha256(b"other"), "m/one")


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
async def test_an_image_comes_back_by_tag_and_by_digest(
    host: str, source: Trees, tmp_path: Path, kind: Compression
) -> None:
    image = image_of(source, [{"a": "1"}, {"b": BIG}])
    async with client(host) as registry:
        pushed = await push_image(
            registry, f"i/{kind}", image, source, scratch=tmp_path, tags=["v1", "v2"], kind=kind
        )
        assert await registry.tags(f"i/{kind}") == ["v1", "v2"]
        for target in ("v1", "v2", pushed.digest):
            document = await registry.manifest(f"i/{kind}", target)
            assert document.digest == pushed.digest
            assert isinstance(document.value, Manifest)
            assert await registry.image(f"i/{kind}", document.value) == image


async def test_only_what_is_missing_is_made_and_sent(
    host: str, source: Trees, tmp_path: Path
) -> None:
    layers: list[dict[str, str | bytes]] = [{"a": "1"}, {"b": "2"}]
    sizes: list[int] = []
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
            progress=lambda done, all_of_it: sizes.append(done),
        )
        assert source.written == []
        assert sizes == []
        new = source.add({"c": "3"})
        from danlu.oci.image import make_image

        second = make_image([(one, "") for one in (*first.diff_ids, new)], architecture="amd64")
        await push_image(registry, "once", second, source, scratch=tmp_path, tags=["2"])
        assert source.written == [new]
        source.written.clear()
        await push_image(registry, "other", second, source, scratch=tmp_path, mount_from=["once"])
        assert source.written == []
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".")] == []


async def test_many_transfers_at_once(host: str) -> None:
    contents = [random.Random(n).randbytes(50_000 + n) for n in range(24)]
    async with client(host) as registry:

        async def there_and_back(content: bytes) -> None:
            digest = Digest("sha256:" + hashlib.sha256(content).hexdigest())
            pieces: list[bytes] = []
            await registry.push_blob("many", digest, content)
            await registry.blob("many", Descriptor("x", digest, len(content)), pieces.append)
            assert b"".join(pieces) == content

        async with anyio.create_task_group() as group:
            for content in contents:
                group.start_soon(there_and_back, content)


async def test_a_manifest_without_its_blobs_is_refused(host: str, source: Trees) -> None:
    image = image_of(source, [])
    manifest = exporting.make_manifest(image, [])
    async with client(host) as registry:
        with pytest.raises(OutsideError, match="unknown"):
            await registry.push_manifest("lacking", manifest, "x")


async def test_an_index_is_told_from_a_manifest(host: str, source: Trees, tmp_path: Path) -> None:
    from danlu.oci.types import Document, encode

    image = image_of(source, [{"a": "1"}])
    async with client(host) as registry:
        one = await push_image(registry, "multi", image, source, scratch=tmp_path)
        index = Index(manifests=(one,), media_type=MediaType.INDEX)
        document = Document(encode(index), MediaType.INDEX, index)
        await registry.push_manifest("multi", document, "all")
        found = await registry.manifest("multi", "all")
    assert found.value == index
