"""Interoperability with skopeo, podman, buildah and Docker, in both directions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from danlu.oci import docker_archive, layout
from danlu.oci.compress import Compression
from danlu.oci.digest import sha256
from danlu.oci.image import Image
from danlu.oci.registry import push_image, push_index
from danlu.oci.tar import extract_layer
from danlu.oci.types import Manifest
from tests import engines
from tests.engines import make_short_directory
from tests.oci.layers import TreeLayerSource, image_of
from tests.oci.registries import client, debian_registry

pytestmark = pytest.mark.real


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [str(argument) for argument in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


@pytest.fixture
def image(source: TreeLayerSource) -> Image:
    return image_of(source, [{"etc/one": "1\n", "é" * 70: "2"}, {"etc/two": "x" * 100_000}])


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of a short name, as buildah needs it."""
    with make_short_directory() as directory:
        yield directory


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """Return podman's command with a separate store."""
    if reason := engines.missing("podman"):
        pytest.skip(reason)
    with engines.podman(storage="vfs") as engine:
        yield engine.command


@pytest.fixture
def docker() -> Iterator[list[str]]:
    """Return docker's command with a separate daemon."""
    if reason := engines.missing("docker"):
        pytest.skip(reason)
    with engines.docker_daemon(storage="vfs") as engine:
        yield engine.command


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with debian_registry() as host:
        yield host


@pytest.mark.needs("skopeo")
@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_skopeo_reads_our_layout(
    tmp_path: Path, source: TreeLayerSource, image: Image, kind: Compression
) -> None:
    content = layout.write_layout(tmp_path / "out", image, source, kind=kind, names=["me/app:v1"])
    seen = json.loads(run("skopeo", "inspect", f"oci:{tmp_path}/out:v1"))
    assert seen["Digest"] == content.manifest.digest
    config = run("skopeo", "inspect", "--config", "--raw", f"oci:{tmp_path}/out:v1")
    assert config.encode() == image.config
    run("skopeo", "copy", f"oci:{tmp_path}/out:v1", f"dir:{tmp_path}/dir")


@pytest.mark.needs("skopeo")
def test_we_read_the_layout_of_skopeo(
    tmp_path: Path, source: TreeLayerSource, image: Image
) -> None:
    layout.write_layout(tmp_path / "out", image, source, kind="gzip", names=["me/app:v1"])
    run("skopeo", "copy", f"oci:{tmp_path}/out:v1", f"oci:{tmp_path}/copy:other")
    (result,) = layout.read_layout(tmp_path / "copy")
    assert result.image == image
    assert result.names == ("other",)


@pytest.mark.needs("skopeo")
def test_skopeo_and_we_read_each_others_docker_archives(
    tmp_path: Path, source: TreeLayerSource, image: Image
) -> None:
    with (tmp_path / "ours.tar").open("wb") as file:
        docker_archive.write_archive(image, source, file.write, names=["me/app:v1"])
    run("skopeo", "copy", f"docker-archive:{tmp_path}/ours.tar", f"oci:{tmp_path}/copy:x")
    (result,) = layout.read_layout(tmp_path / "copy")
    assert result.image.diff_ids == image.diff_ids
    run(
        "skopeo",
        "copy",
        f"oci:{tmp_path}/copy:x",
        f"docker-archive:{tmp_path}/theirs.tar:docker.io/me/app:v2",
    )
    with docker_archive.open_archive(tmp_path / "theirs.tar") as archive:
        (saved,) = archive.images
        assert saved.names == ("docker.io/me/app:v2",)
        for number, member in enumerate(saved.members):
            root = tmp_path / f"root{number}"
            root.mkdir()
            assert extract_layer(archive.open_layer(member), root).diff_id == image.diff_ids[number]


@pytest.mark.needs("podman")
def test_podman_loads_our_docker_archive(
    tmp_path: Path, source: TreeLayerSource, image: Image, podman: list[str]
) -> None:
    with (tmp_path / "image.tar").open("wb") as file:
        docker_archive.write_archive(image, source, file.write, names=["me/app:v1"])
    run(*podman, "load", "-i", tmp_path / "image.tar")
    (seen,) = json.loads(run(*podman, "image", "inspect", "docker.io/me/app:v1"))
    assert seen["RootFS"]["Layers"] == list(image.diff_ids)
    assert seen["Config"]["Cmd"] == ["/hello"]


@pytest.mark.needs("podman", "docker-registry", "root")  # only root mounts an image
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_podman_pulls_what_we_pushed(
    tmp_path: Path,
    source: TreeLayerSource,
    image: Image,
    podman: list[str],
    host: str,
    kind: Compression,
) -> None:
    async def push() -> None:
        async with client(host) as registry:
            await push_image(
                registry, f"pod/{kind}", image, source, scratch=tmp_path, tags=["v1"], kind=kind
            )

    anyio.run(push)
    run(*podman, "pull", "--tls-verify=false", f"{host}/pod/{kind}:v1")
    (seen,) = json.loads(run(*podman, "image", "inspect", f"{host}/pod/{kind}:v1"))
    assert seen["RootFS"]["Layers"] == list(image.diff_ids)
    mount = run(*podman, "image", "mount", f"{host}/pod/{kind}:v1").strip()
    assert Path(mount, "etc/one").read_text() == "1\n"
    assert Path(mount, "é" * 70).read_text() == "2"
    run(*podman, "image", "unmount", f"{host}/pod/{kind}:v1")


@pytest.mark.needs("buildah")
def test_buildah_pulls_our_layout(
    tmp_path: Path, source: TreeLayerSource, image: Image, place: Path
) -> None:
    layout.write_layout(tmp_path / "out", image, source, names=["me/app:v1"])
    buildah = ["buildah", "--root", str(place / "root"), "--runroot", str(place / "run")]
    buildah += ["--storage-driver", "vfs"]
    run(*buildah, "pull", f"oci:{tmp_path}/out:v1")
    assert len(json.loads(run(*buildah, "images", "--json"))) == 1


@pytest.mark.needs("docker", "dockerd", "root")
def test_docker_loads_and_saves_our_archive(
    tmp_path: Path, source: TreeLayerSource, image: Image, docker: list[str]
) -> None:
    with (tmp_path / "ours.tar").open("wb") as file:
        docker_archive.write_archive(image, source, file.write, names=["me/app:v1"])
    run(*docker, "load", "-i", tmp_path / "ours.tar")
    (seen,) = json.loads(run(*docker, "image", "inspect", "me/app:v1"))
    assert seen["RootFS"]["Layers"] == list(image.diff_ids)
    assert seen["Id"] == image.digest
    run(*docker, "save", "-o", tmp_path / "theirs.tar", "me/app:v1")
    with docker_archive.open_archive(tmp_path / "theirs.tar") as archive:
        (saved,) = archive.images
        assert saved.image == image
        for number, member in enumerate(saved.members):
            root = tmp_path / f"root{number}"
            root.mkdir()
            assert extract_layer(archive.open_layer(member), root).diff_id == image.diff_ids[number]


@pytest.mark.needs("docker", "dockerd", "docker-registry", "root")
def test_docker_pulls_what_we_pushed(
    tmp_path: Path, source: TreeLayerSource, image: Image, docker: list[str], host: str
) -> None:
    # Docker before 23 unpacks no zstd.
    async def push() -> None:
        async with client(host) as registry:
            await push_image(
                registry, "dock/app", image, source, scratch=tmp_path, tags=["v1"], kind="gzip"
            )

    anyio.run(push)
    run(*docker, "pull", f"{host}/dock/app:v1")
    (seen,) = json.loads(run(*docker, "image", "inspect", f"{host}/dock/app:v1"))
    assert seen["Id"] == image.digest


@pytest.mark.needs("skopeo", "docker-registry")
def test_we_pull_what_skopeo_pushed(
    tmp_path: Path, source: TreeLayerSource, image: Image, host: str
) -> None:
    layout.write_layout(tmp_path / "out", image, source, kind="none", names=["me/app:v1"])
    run(
        "skopeo",
        "copy",
        "--dest-tls-verify=false",
        "--format=v2s2",
        f"oci:{tmp_path}/out:v1",
        f"docker://{host}/sko/app:v1",
    )

    async def pull() -> Image:
        async with client(host) as registry:
            document = await registry.get_manifest("sko/app", "v1")
            assert isinstance(document.value, Manifest)
            assert "docker" in document.media_type
            return await registry.get_image("sko/app", document.value)

    assert anyio.run(pull).diff_ids == image.diff_ids


@pytest.mark.needs("skopeo", "docker-registry")
def test_skopeo_selects_a_platform_of_an_index_that_we_pushed(
    tmp_path: Path, source: TreeLayerSource, image: Image, host: str
) -> None:
    other = image_of(source, [{"etc/one": "1\n"}], architecture="arm64")

    async def push() -> str:
        async with client(host) as registry:
            pushed = await push_index(
                registry, "me/both", [image, other], source, scratch=tmp_path, tags=["v1"]
            )
            return pushed.digest

    digest = anyio.run(push)
    name = f"docker://{host}/me/both:v1"
    for architecture in ("amd64", "arm64"):
        options = ["--tls-verify=false", f"--override-arch={architecture}"]
        seen = json.loads(run("skopeo", *options[1:], "inspect", options[0], name))
        assert seen["Architecture"] == architecture
    raw = run("skopeo", "inspect", "--raw", "--tls-verify=false", name)
    assert sha256(raw.encode()) == digest


@pytest.mark.needs("skopeo")
def test_real_tools_use_the_fake_registry(
    tmp_path: Path, source: TreeLayerSource, image: Image
) -> None:
    import sys

    layout.write_layout(tmp_path / "out", image, source, kind="gzip", names=["me/app:v1"])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.registry", "--user", "me:secret"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        name = f"docker://{process.stdout.readline().strip()}/x/app:v1"
        options = ["--dest-tls-verify=false", "--dest-creds=me:secret"]
        run("skopeo", "copy", *options, f"oci:{tmp_path}/out:v1", name)
        seen = run("skopeo", "inspect", "--tls-verify=false", "--creds=me:secret", name)
        assert json.loads(seen)["Env"] == ["PATH=/bin"]
    finally:
        process.terminate()
        process.communicate()
