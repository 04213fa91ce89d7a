from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, DanluError, OutsideError, StoreError, UsageError
from danlu.oci import layout
from danlu.oci.compress import Compression
from tests.oci.layers import TreeLayerSource, image_of

LAYERS: list[dict[str, str | bytes]] = [{"a": "1"}, {"b/c": "2" * 5000}]


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def names_in(directory: Path) -> list[str]:
    index = json.loads((directory / "index.json").read_text())
    key = "io.containerd.image.name"
    return [descriptor.get("annotations", {}).get(key, "") for descriptor in index["manifests"]]


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_written_archive_is_read_back(tmp_path: Path, kind: Compression) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, LAYERS)
    content = layout.write_layout(
        tmp_path / "out", image, source, kind=kind, names=["me/app:1", "b"]
    )
    (result,) = layout.read_layout(tmp_path / "out")
    assert result.image == image
    assert result.manifest.digest == content.manifest.digest
    assert [layer.digest for layer, _ in result.layers] == [
        descriptor.digest for descriptor in content.layers
    ]
    assert result.names == ("docker.io/library/b:latest", "docker.io/me/app:1")


def test_equal_images_give_equal_bytes(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, LAYERS)
    layout.write_layout(tmp_path / "one", image, source, names=["x"])
    source.blobs.clear()
    layout.write_layout(tmp_path / "two", image, source, names=["x"])
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_second_write_compresses_and_writes_nothing(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, LAYERS)
    first = layout.write_layout(tmp_path / "out", image, source, names=["x"])
    before = files(tmp_path / "out")
    source.written.clear()
    second = layout.write_layout(tmp_path / "out", image, source, names=["x"])
    assert source.written == []
    assert second.new_bytes == 0
    assert second.manifest == first.manifest
    assert files(tmp_path / "out") == before


def test_changed_layer_is_the_only_one_written(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    layout.write_layout(tmp_path / "out", image_of(source, LAYERS), source, names=["x"])
    source.written.clear()
    changed = layout.write_layout(
        tmp_path / "out", image_of(source, [{"new": "3"}]), source, names=["x"]
    )
    assert len(source.written) == 1
    assert names_in(tmp_path / "out") == ["docker.io/library/x:latest"]
    (result,) = layout.read_layout(tmp_path / "out")
    assert result.manifest.digest == changed.manifest.digest


def test_images_with_other_names_are_kept(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    layout.write_layout(tmp_path / "out", image_of(source, [{"a": "1"}]), source, names=["one"])
    layout.write_layout(tmp_path / "out", image_of(source, [{"a": "2"}]), source, names=["two"])
    layout.write_layout(tmp_path / "out", image_of(source, [{"a": "3"}]), source)
    layout.write_layout(tmp_path / "out", image_of(source, [{"a": "1"}]), source, names=["three"])
    assert names_in(tmp_path / "out") == [
        "",
        *(f"docker.io/library/{name}:latest" for name in ("one", "three", "two")),
    ]


def test_concurrent_writers_keep_all_names(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    images = [image_of(source, [{"a": str(number)}]) for number in range(8)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            layout.write_layout(tmp_path / "out", images[number], source, names=[f"n{number}"])
        except BaseException as error:
            failures.append(error)

    layout.write_layout(tmp_path / "out", images[0], source, names=["n0"])
    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(names_in(tmp_path / "out")) == 8
    assert list((tmp_path / "out").rglob(".*")) == []


def test_directory_with_other_content_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    source = TreeLayerSource(tmp_path.parent / f"{tmp_path.name}-trees")
    with pytest.raises(UsageError, match="not an OCI layout"):
        layout.write_layout(tmp_path, image_of(source, LAYERS), source)
    assert files(tmp_path) == {"precious": b"x"}


def test_layer_with_changed_files_is_not_written(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, LAYERS)
    (source.trees[image.diff_ids[0]] / "a").write_text("changed")
    with pytest.raises(StoreError, match="is damaged"):
        layout.write_layout(tmp_path / "out", image, source)
    assert not any(".making" in name for name in files(tmp_path / "out"))
    assert len(files(tmp_path / "out")) == 1


def test_damaged_blob_is_detected(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    content = layout.write_layout(tmp_path / "out", image_of(source, LAYERS), source)
    blob = tmp_path / "out/blobs/sha256" / content.layers[1].digest[7:]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ChecksumError, match="is damaged"):
        layout.read_layout(tmp_path / "out")
    blob.write_bytes(data[:-1])
    with pytest.raises(ChecksumError, match="bytes, but"):
        layout.read_layout(tmp_path / "out")
    blob.unlink()
    with pytest.raises(OutsideError, match="has no blob"):
        layout.read_layout(tmp_path / "out")


def test_symlink_in_an_untrusted_layout_is_not_followed(tmp_path: Path) -> None:
    source = TreeLayerSource(tmp_path / "trees")
    content = layout.write_layout(tmp_path / "out", image_of(source, LAYERS), source)
    blob = tmp_path / "out/blobs/sha256" / content.layers[0].digest[7:]
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideError, match="has no blob"):
        layout.read_layout(tmp_path / "out")


@pytest.mark.parametrize("index", ["", "[]", '{"manifests": 1}', '{"schemaVersion":2}'])
def test_damaged_index_raises_outside_error(tmp_path: Path, index: str) -> None:
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(DanluError):
        layout.read_layout(tmp_path)


def test_directory_that_is_not_a_layout_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="is not an OCI layout"):
        layout.read_layout(tmp_path)
