from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, DanluError, StoreError
from danlu.oci import docker_archive
from danlu.oci.image import Image
from danlu.oci.tar import extract_layer
from tests.oci.layers import TreeLayerSource, image_of


def archive_of(image: Image, source: TreeLayerSource, *names: str) -> bytes:
    out = io.BytesIO()
    size = docker_archive.write_archive(image, source, out.write, names=names)
    assert size == len(out.getvalue())
    return out.getvalue()


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_written_archive_is_read_back(
    tmp_path: Path, source: TreeLayerSource, pack: type[bytes]
) -> None:
    image = image_of(source, [{"a": "1"}, {"b": "2" * 3000}])
    path = tmp_path / "image.tar"
    path.write_bytes(pack(archive_of(image, source, "me/app:1", "debian")))
    with docker_archive.open_archive(path) as archive:
        (result,) = archive.images
        assert result.image == image
        assert result.names == ("docker.io/me/app:1", "docker.io/library/debian:latest")
        for diff_id, member in zip(image.diff_ids, result.members, strict=True):
            root = tmp_path / diff_id[7:]
            root.mkdir()
            assert extract_layer(archive.open_layer(member), root).diff_id == diff_id
        assert (root / "b").read_text() == "2" * 3000


def test_equal_images_give_equal_bytes(source: TreeLayerSource) -> None:
    image = image_of(source, [{"a": "1"}])
    assert archive_of(image, source, "x") == archive_of(image, source, "x")


def test_repeated_layer_is_written_once(tmp_path: Path, source: TreeLayerSource) -> None:
    image = image_of(source, [{"a": "1"}])
    from danlu.oci.image import make_image

    twice = make_image([(image.diff_ids[0], "x")] * 2, architecture="amd64")
    data = archive_of(twice, source)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getnames()) == 3
        listing = tar.extractfile("manifest.json")
        assert listing is not None
        assert len(json.load(listing)[0]["Layers"]) == 2


def test_layer_with_changed_files_is_not_exported(source: TreeLayerSource) -> None:
    image = image_of(source, [{"a": "1"}])
    os.utime(source.trees[image.diff_ids[0]] / "a", (1, 1))
    with pytest.raises(StoreError, match="is damaged"):
        archive_of(image, source)


def write_archive(
    tmp_path: Path, members: dict[str, bytes], links: dict[str, str] | None = None
) -> Path:
    path = tmp_path / "made.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def test_links_to_repeated_layers_of_old_docker_versions_are_followed(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    image = image_of(source, [{"a": "1"}])
    listing = [{"Config": "c.json", "RepoTags": None, "Layers": ["two/layer.tar"]}]
    layer = io.BytesIO()
    source.write_tar(image.diff_ids[0], layer.write)
    path = write_archive(
        tmp_path,
        {
            "manifest.json": json.dumps(listing).encode(),
            "c.json": image.config,
            "one/layer.tar": gzip.compress(layer.getvalue()),
        },
        {"two/layer.tar": "../one/layer.tar"},
    )
    with docker_archive.open_archive(path) as archive:
        read = extract_layer(archive.open_layer(archive.images[0].members[0]), tmp_path)
    assert read.diff_id == image.diff_ids[0]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"manifest.json": b"{"},
        {"manifest.json": b"{}"},
        {"manifest.json": b'[{"Config":"/etc/passwd","Layers":[]}]'},
        {"manifest.json": b'[{"Config":"c","Layers":["x"]}]', "c": b"{}"},
    ],
)
def test_invalid_image_archive_is_rejected(tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(DanluError), docker_archive.open_archive(write_archive(tmp_path, members)):
        pass


def test_file_that_is_not_a_tar_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello" * 1000)
    with (
        pytest.raises(DanluError, match=r"it is not a tar archive$"),
        docker_archive.open_archive(tmp_path / "x"),
    ):
        pass


def test_link_out_of_the_archive_is_not_followed(tmp_path: Path, source: TreeLayerSource) -> None:
    image = image_of(source, [{"a": "1"}])
    listing = [{"Config": "c.json", "Layers": ["layer.tar"]}]
    members = {"manifest.json": json.dumps(listing).encode(), "c.json": image.config}
    path = write_archive(tmp_path, members, {"layer.tar": "../../../etc/passwd"})
    with (
        docker_archive.open_archive(path) as archive,
        pytest.raises(DanluError, match="no member"),
    ):
        archive.open_layer("layer.tar")


def test_config_that_does_not_match_its_name_is_rejected(
    tmp_path: Path, source: TreeLayerSource
) -> None:
    image = image_of(source, [])
    name = "0" * 64 + ".json"
    listing = json.dumps([{"Config": name, "Layers": []}]).encode()
    path = write_archive(tmp_path, {"manifest.json": listing, name: image.config})
    with pytest.raises(ChecksumError), docker_archive.open_archive(path):
        pass
