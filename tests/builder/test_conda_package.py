"""A conda package becomes a layer: verified, in this process or a worker, the same bytes."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from danlu.builder.embedded.ops.conda_package import execute
from danlu.errors import ChecksumError, ResolveError
from danlu.graph.ops import CondaPackage
from danlu.store import Layer
from danlu.util.worker_pool import WorkerPool
from tests.builder.wheels import WheelBuilder
from tests.fakes.conda import CondaFile, write_package

pytestmark = pytest.mark.anyio
LARGE = CondaFile(random.Random(1).randbytes(1 << 20))
SCRIPT = CondaFile(b"touch /evil\n", 0o755)


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


async def build(builder: WheelBuilder, archive: Path, **more: Any) -> Layer:
    name, version, _ = archive.name.rsplit("-", 2)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    directory = archive.parent.parent.as_uri()
    op = CondaPackage(
        name, version, "0", directory, archive.parent.name, archive.name, digest, "/opt/conda"
    )
    (layer,) = await execute(op, builder.context(**more))
    return layer


async def test_a_worker_creates_the_same_layer(builder: WheelBuilder, channel: Path) -> None:
    archive = write_package(channel, "large", files={"share/large": LARGE})
    here = await build(builder, archive)
    async with WorkerPool(1) as workers:
        existing = await build(builder, archive, workers=workers)
        assert await workers.run(os.getpid, weight=1 << 30) != os.getpid()
    assert existing == here
    assert (here.tree / "opt/conda/share/large").read_bytes() == LARGE.content


async def test_an_error_of_a_worker_names_the_package(builder: WheelBuilder, channel: Path) -> None:
    files = {"share/large": LARGE, "bin/.large-post-link.sh": SCRIPT}
    archive = write_package(channel, "large", files=files)
    async with WorkerPool(1) as workers:
        with pytest.raises(ResolveError, match=r"large 1\.0 has a post-link script") as caught:
            await build(builder, archive, workers=workers)
    assert "run() step" in caught.value.hint
    assert not list((builder.store.root / "tmp").iterdir())


async def test_a_damaged_download_is_fetched_again(builder: WheelBuilder, channel: Path) -> None:
    archive = write_package(channel, "app", files={"share/app": CondaFile(b"whole")})
    first = await build(builder, archive)
    (cached,) = (builder.paths.cache / "http" / "sha256").iterdir()
    cached.chmod(0o644)
    cached.write_bytes(cached.read_bytes().replace(b"info", b"evil"))
    with pytest.raises(ChecksumError, match=r"download of app-1\.0-0\.conda"):
        await build(builder, archive, offline=True)
    assert await build(builder, archive) == first
    assert "is damaged; fetching it again" in builder.lines[-1]
    assert cached.read_bytes() == archive.read_bytes()
