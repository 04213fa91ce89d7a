"""Pull images from a registry into the store, and push them again."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.graph.ops import Platform
from danlu.oci.blob_export import LayerBlob, make_manifest
from danlu.oci.digest import DiffId, Digest, parse_digest
from danlu.oci.image import Image, make_image
from danlu.oci.layer_status import LayerStatus
from danlu.oci.types import Descriptor, Index, MediaType, encode_json
from danlu.oci.types import Platform as OciPlatform
from danlu.sources import image as images
from danlu.sources.blob_locations import StoredBlobLocations
from danlu.store import Store
from danlu.store.store_layers import StoreLayers
from danlu.util.config import Configuration, RegistryConfig
from danlu.util.retry import RetryPolicy
from tests.fakes.registry import FakeRegistry, RegistryFault
from tests.oci.layers import TreeLayerSource, image_of

pytestmark = pytest.mark.anyio
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
CONFIG = Configuration()


@pytest.fixture(autouse=True)
def _no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def fake() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


async def push_image(
    fake: FakeRegistry, source: TreeLayerSource, image: Image, tmp_path: Path, name: str = "app:1"
) -> str:
    return await images.push(
        f"{fake.host}/{name}", image, source, config=CONFIG, scratch=tmp_path / "scratch"
    )


async def test_pushed_image_is_resolved_and_pulled(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    image = image_of(source, [{"a": "1"}, {"d/b": random.Random(1).randbytes(300_000)}])
    digest = await push_image(fake, source, image, tmp_path)
    name = f"{fake.host}/app:1"
    assert await images.resolve_reference(name, AMD64, config=CONFIG) == digest
    moved: list[tuple[int, int]] = []
    pulled = await images.pull(
        name, digest, store=store, config=CONFIG, transfer=lambda *pair: moved.append(pair)
    )
    assert pulled.config == image.config
    assert [layer.diff_id for layer in pulled.layers] == list(image.diff_ids)
    assert [layer.created_by for layer in pulled.layers] == ["layer 0", "layer 1"]
    assert (pulled.layers[0].tree / "a").read_text() == "1"
    assert moved[-1][0] == moved[-1][1] > 300_000


async def test_a_second_pull_makes_no_request(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    image = image_of(source, [{"a": "1"}])
    digest = await push_image(fake, source, image, tmp_path)
    name = f"{fake.host}/app:1"
    first = await images.pull(name, digest, store=store, config=CONFIG)
    fake.log.clear()
    again = await images.pull(name, digest, store=store, config=CONFIG, offline=True)
    assert again == first
    assert fake.log == []


async def test_layers_of_other_images_are_not_fetched_again(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    base = image_of(source, [{"a": "1"}])
    digest = await push_image(fake, source, base, tmp_path)
    await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    more = source.add({"b": "2"})
    both = make_image([(base.diff_ids[0], ""), (more, "")], architecture="amd64")
    digest = await push_image(fake, source, both, tmp_path, "app:2")
    fake.log.clear()
    await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    blobs = [request.path.rpartition("/")[2] for request in fake.requests("GET", "/blobs/")]
    assert len(blobs) == 2  # the config and the new layer


async def test_offline_makes_no_request(fake: FakeRegistry, store: Store) -> None:
    with pytest.raises(OutsideError, match="--offline"):
        await images.resolve_reference(f"{fake.host}/app", AMD64, config=CONFIG, offline=True)
    with pytest.raises(OutsideError, match="--offline"):
        await images.pull(
            f"{fake.host}/app", "sha256:" + "0" * 64, store=store, config=CONFIG, offline=True
        )
    assert fake.log == []


def make_foreign_layer() -> bytes:
    """A tar as no code of ours writes it: dot slashes, no order, GNU names, blocks of 10 KiB."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in [("./z", b"1" * 700), ("./a/" + "n" * 120, b"2"), ("./z", b"3")]:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(content), 1234567890, "someone"
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def put_image(
    fake: FakeRegistry, layer: bytes, *, diff_id: str = "", architecture: str = "amd64"
) -> tuple[Image, str]:
    """Push an image of one gzipped layer to the registry; return it and its digest."""
    diff_id = diff_id or "sha256:" + hashlib.sha256(layer).hexdigest()
    image = make_image([(DiffId(diff_id), "")], architecture=architecture)
    packed = gzip.compress(layer, mtime=0)
    blob = LayerBlob("gzip", parse_digest(fake.put_blob("app", packed)), len(packed))
    fake.put_blob("app", image.config)
    return image, fake.put_manifest("app", make_manifest(image, [blob]).raw, tag="1")


async def test_a_pulled_layer_can_be_pushed_bit_for_bit(
    fake: FakeRegistry, store: Store, tmp_path: Path
) -> None:
    layer = make_foreign_layer()
    image, digest = put_image(fake, layer)
    pulled = await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    assert pulled.layers[0].created_by == f"pulled from {fake.host}/app:latest@{digest}"
    again = io.BytesIO()
    summary = store.write_tar(image.diff_ids[0], again.write)
    assert again.getvalue() == layer
    assert summary.diff_id == image.diff_ids[0]
    assert store.check() == []
    known = store.compressed_blob(image.diff_ids[0], "gzip")
    assert known is not None
    assert known.digest == "sha256:" + hashlib.sha256(gzip.compress(layer, mtime=0)).hexdigest()


async def test_the_image_of_an_index_is_chosen_by_platform(
    fake: FakeRegistry, store: Store
) -> None:
    _, amd64 = put_image(fake, make_foreign_layer())
    _, arm64 = put_image(fake, make_foreign_layer(), architecture="arm64")
    index = Index(
        manifests=(
            _make_descriptor(fake, amd64, OciPlatform("unknown", "unknown")),
            _make_descriptor(fake, arm64, OciPlatform("arm64", "linux", "v8")),
            _make_descriptor(fake, amd64, OciPlatform("amd64", "linux")),
        ),
        media_type=MediaType.INDEX,
    )
    whole = fake.put_manifest("app", encode_json(index), tag="all")
    for reference in (f"{fake.host}/app:all", f"{fake.host}/app@{whole}"):
        assert await images.resolve_reference(reference, AMD64, config=CONFIG) == amd64
        assert await images.resolve_reference(reference, ARM64, config=CONFIG) == arm64
        with pytest.raises(OutsideError, match="is not available for linux/s390x") as caught:
            await images.resolve_reference(reference, Platform("linux", "s390x"), config=CONFIG)
        assert caught.value.hint == "available platforms: linux/amd64, linux/arm64/v8"
    pulled = await images.pull(
        f"{fake.host}/app", whole, store=store, config=CONFIG, platform=ARM64
    )
    assert json.loads(pulled.config)["architecture"] == "arm64"


def _make_descriptor(fake: FakeRegistry, digest: str, platform: OciPlatform) -> Descriptor:
    raw, kind = fake.manifests["app", digest]
    return Descriptor(kind, parse_digest(digest), len(raw), platform=platform)


async def test_an_image_for_another_platform_is_refused_when_resolved(
    fake: FakeRegistry,
) -> None:
    put_image(fake, make_foreign_layer(), architecture="arm64")
    with pytest.raises(OutsideError, match="does not support linux/amd64"):
        await images.resolve_reference(f"{fake.host}/app:1", AMD64, config=CONFIG)


async def test_a_layer_that_differs_from_the_config_is_rejected(
    fake: FakeRegistry, store: Store
) -> None:
    _, digest = put_image(fake, make_foreign_layer(), diff_id="sha256:" + "0" * 64)
    with pytest.raises(ChecksumError, match="but its image has"):
        await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    assert store.layer(DiffId("sha256:" + "0" * 64)) is None
    assert list((store.root / "layers").iterdir()) == []


async def test_a_wrong_blob_never_reaches_the_store(fake: FakeRegistry, store: Store) -> None:
    _, digest = put_image(fake, make_foreign_layer())
    packed = gzip.compress(make_foreign_layer(), mtime=0)
    blob = "sha256:" + hashlib.sha256(packed).hexdigest()
    fake.wrong[blob] = packed[:-1] + bytes([packed[-1] ^ 1])
    with pytest.raises(ChecksumError):
        await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    assert list((store.root / "layers").iterdir()) == []


async def test_a_mirror_is_tried_first_and_then_the_registry(
    fake: FakeRegistry, store: Store
) -> None:
    _, digest = put_image(fake, make_foreign_layer())
    async with FakeRegistry() as mirror:
        config = Configuration(
            registries={fake.host: RegistryConfig(mirror=f"http://{mirror.host}/proxied")}
        )
        name = f"{fake.host}/app:1"
        assert await images.resolve_reference(name, AMD64, config=config) == digest
        assert mirror.requests("GET", "/v2/proxied/app/manifests/1")
        mirror.blobs = fake.blobs
        mirror.linked["proxied/app"] = fake.linked["app"]
        for target in ("1", digest):
            mirror.manifests["proxied/app", target] = fake.manifests["app", target]
        fake.log.clear()
        assert await images.resolve_reference(name, AMD64, config=config) == digest
        await images.pull(name, digest, store=store, config=config)
        assert fake.log == []


async def test_a_pulled_image_is_pushed_elsewhere_without_being_compressed_again(
    fake: FakeRegistry, store: Store, tmp_path: Path
) -> None:
    from danlu.store.store_layers import StoreLayers

    image, digest = put_image(fake, make_foreign_layer())
    await images.pull(f"{fake.host}/app", digest, store=store, config=CONFIG)
    again = await images.push(
        f"{fake.host}/app:2",
        image,
        StoreLayers(store),
        config=CONFIG,
        scratch=tmp_path,
        kind="gzip",
    )
    assert fake.requests("POST") == []
    assert again == digest


# Interrupted, and continued later

LARGE = random.Random(5).randbytes(6 << 20)


def partial_files(store: Store) -> list[Path]:
    directory = store.root / "partial"
    return sorted(directory.iterdir()) if directory.exists() else []


@pytest.fixture
def _one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_TRANSFER_BACKOFF", RetryPolicy(attempts=1))


async def interrupted_pull(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> tuple[str, str]:
    """Pull an image until its large layer breaks off after 4 MiB; return its name and digest."""
    image = image_of(source, [{"a": "1"}, {"large": LARGE}])
    digest = await push_image(fake, source, image, tmp_path)
    large = max(fake.blobs, key=lambda name: len(fake.blobs[name]))
    fake.faults = [
        RegistryFault(path=large, drop_after=4 << 20),
        RegistryFault(path=large, status=503, times=99),
    ]
    name = f"{fake.host}/app:1"
    with pytest.raises(TemporaryError):
        await images.pull(name, digest, store=store, config=CONFIG)
    fake.faults = []
    fake.log.clear()
    return name, digest


@pytest.mark.usefixtures("_one_attempt")
async def test_interrupted_pull_is_continued_by_the_next(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    name, digest = await interrupted_pull(fake, store, source, tmp_path)
    (file,) = partial_files(store)
    received = file.stat().st_size
    assert 3 << 20 < received <= 4 << 20
    pulled = await images.pull(name, digest, store=store, config=CONFIG)
    assert (pulled.layers[1].tree / "large").read_bytes() == LARGE
    large = max(fake.blobs, key=lambda blob: len(fake.blobs[blob]))
    (request,) = fake.requests("GET", large)
    assert request.headers["Range"] == f"bytes={received}-"
    assert partial_files(store) == []


@pytest.mark.usefixtures("_one_attempt")
async def test_damaged_beginning_of_a_layer_is_downloaded_again(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    name, digest = await interrupted_pull(fake, store, source, tmp_path)
    (file,) = partial_files(store)
    file.write_bytes(b"\0" * (4 << 20))
    pulled = await images.pull(name, digest, store=store, config=CONFIG)
    assert (pulled.layers[1].tree / "large").read_bytes() == LARGE
    assert partial_files(store) == []


@pytest.mark.usefixtures("_one_attempt")
async def test_partial_download_longer_than_the_layer_is_discarded(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    name, digest = await interrupted_pull(fake, store, source, tmp_path)
    (file,) = partial_files(store)
    file.write_bytes(b"\0" * (40 << 20))
    await images.pull(name, digest, store=store, config=CONFIG)
    assert None in [request.headers.get("Range") for request in fake.requests("GET", "/blobs/")]


async def test_layer_with_a_wrong_digest_leaves_nothing_behind(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    image = image_of(source, [{"large": LARGE}])
    digest = await push_image(fake, source, image, tmp_path)
    large = max(fake.blobs, key=lambda name: len(fake.blobs[name]))
    right = fake.blobs[large]
    fake.wrong[large] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(ChecksumError, match=f"instead of {large}"):
        await images.pull(f"{fake.host}/app:1", digest, store=store, config=CONFIG)
    assert partial_files(store) == []
    assert store.check() == []
    fake.wrong.clear()
    await images.pull(f"{fake.host}/app:1", digest, store=store, config=CONFIG)


@pytest.mark.usefixtures("_one_attempt")
async def test_garbage_collection_removes_partial_downloads(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    await interrupted_pull(fake, store, source, tmp_path)
    (file,) = partial_files(store)
    assert store.check() == []
    received = file.stat().st_size
    assert store.collect(1 << 40).freed == received > 0
    assert partial_files(store) == []


@pytest.mark.usefixtures("_one_attempt")
async def test_concurrent_pulls_do_not_share_a_partial_download(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    name, digest = await interrupted_pull(fake, store, source, tmp_path)
    large = Digest(max(fake.blobs, key=lambda blob: len(fake.blobs[blob])))
    with store.partial_blob(large) as held:
        assert held.received > 3 << 20
        pulled = await images.pull(name, digest, store=store, config=CONFIG)
        assert held.path.stat().st_size == held.received
    assert (pulled.layers[1].tree / "large").read_bytes() == LARGE


async def test_pulled_layers_are_mounted_when_pushed_to_another_repository(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    image = image_of(source, [{"a": "1"}, {"large": LARGE}])
    digest = await push_image(fake, source, image, tmp_path)
    await images.pull(f"{fake.host}/app:1", digest, store=store, config=CONFIG)
    fake.log.clear()
    statuses: list[LayerStatus] = []
    layers = StoreLayers(store)
    locations = StoredBlobLocations(store)
    await images.push(
        f"{fake.host}/team/other:1",
        image,
        layers,
        config=CONFIG,
        scratch=tmp_path,
        kind="zstd",
        locations=locations,
        on_layer=statuses.append,
    )
    assert [status.state for status in statuses].count("mounted") == 2
    assert fake.requests("PATCH") == []
    # The next repository may be mounted from either.
    for diff_id in image.diff_ids:
        blob = layers.find_blob(diff_id, "zstd")
        assert blob is not None
        assert locations.find_repositories(fake.host, blob.digest) == ["team/other", "app"]
        assert locations.find_repositories("elsewhere.example", blob.digest) == []


async def test_layer_that_can_no_longer_be_mounted_is_sent(
    fake: FakeRegistry, store: Store, source: TreeLayerSource, tmp_path: Path
) -> None:
    image = image_of(source, [{"a": "1"}])
    digest = await push_image(fake, source, image, tmp_path)
    await images.pull(f"{fake.host}/app:1", digest, store=store, config=CONFIG)
    fake.linked.clear()
    await images.push(
        f"{fake.host}/team/other:1",
        image,
        StoreLayers(store),
        config=CONFIG,
        scratch=tmp_path,
        locations=StoredBlobLocations(store),
    )
    assert ("team/other", "1") in fake.manifests
