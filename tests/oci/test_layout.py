from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, DanluError, OutsideError, StoreError, UsageError
from danlu.oci import layout
from danlu.oci.compress import Compression
from tests.oci.layers import Trees, image_of

LAYERS: list[dict[str, str | bytes]] = [{"a": "1"}, {"b/c": "2" * 5000}]


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(directory)): one.read_bytes()
        for one in directory.rglob("*")
        if one.is_file()
    }


def names_in(directory: Path) -> list[str]:
    index = json.loads((directory / "index.json").read_text())
    key = "io.containerd.image.name"
    return [one.get("annotations", {}).get(key, "") for one in index["manifests"]]


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd"])
def test_what_was_written_is_read(tmp_path: Path, kind: Compression) -> None:
    source = Trees(tmp_path / "trees")
    image = image_of(source, LAYERS)
    written = layout.write(tmp_path / "out", image, source, kind=kind, names=["me/app:1", "b"])
    (found,) = layout.read(tmp_path / "out")
    assert found.image == image
    assert found.manifest.digest == written.manifest.digest
    assert [one.digest for one, _ in found.layers] == [one.digest for one in written.layers]
    assert found.names == ("docker.io/library/b:latest", "docker.io/me/app:1")


def test_equal_images_give_equal_bytes(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    image = image_of(source, LAYERS)
    layout.write(tmp_path / "one", image, source, names=["x"])
    source.blobs.clear()
    layout.write(tmp_path / "two", image, source, names=["x"])
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_writing_again_makes_and_writes_nothing(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    image = image_of(source, LAYERS)
    first = layout.write(tmp_path / "out", image, source, names=["x"])
    before = files(tmp_path / "out")
    source.written.clear()
    second = layout.write(tmp_path / "out", image, source, names=["x"])
    assert source.written == []
    assert second.new_bytes == 0
    assert second.manifest == first.manifest
    assert files(tmp_path / "out") == before


def test_a_change_of_one_layer_writes_one_layer(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    layout.write(tmp_path / "out", image_of(source, LAYERS), source, names=["x"])
    source.written.clear()
    changed = layout.write(tmp_path / "out", image_of(source, [{"new": "3"}]), source, names=["x"])
    assert len(source.written) == 1
    assert names_in(tmp_path / "out") == ["docker.io/library/x:latest"]
    (found,) = layout.read(tmp_path / "out")
    assert found.manifest.digest == changed.manifest.digest


def test_images_of_other_names_stay(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    layout.write(tmp_path / "out", image_of(source, [{"a": "1"}]), source, names=["one"])
    layout.write(tmp_path / "out", image_of(source, [{"a": "2"}]), source, names=["two"])
    layout.write(tmp_path / "out", image_of(source, [{"a": "3"}]), source)
    layout.write(tmp_path / "out", image_of(source, [{"a": "1"}]), source, names=["three"])
    assert names_in(tmp_path / "out") == [
        "",
        *(f"docker.io/library/{name}:latest" for name in ("one", "three", "two")),
    ]


def test_writers_at_once_lose_no_name(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    images = [image_of(source, [{"a": str(number)}]) for number in range(8)]
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            layout.write(tmp_path / "out", images[number], source, names=[f"n{number}"])
        except BaseException as error:
            failures.append(error)

    layout.write(tmp_path / "out", images[0], source, names=["n0"])
    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    assert len(names_in(tmp_path / "out")) == 8
    assert list((tmp_path / "out").rglob(".*")) == []


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    source = Trees(tmp_path.parent / f"{tmp_path.name}-trees")
    with pytest.raises(UsageError, match="holds something that is no OCI layout"):
        layout.write(tmp_path, image_of(source, LAYERS), source)
    assert files(tmp_path) == {"precious": b"x"}


def test_a_layer_whose_files_changed_is_not_written(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    image = image_of(source, LAYERS)
    (source.trees[image.diff_ids[0]] / "a").write_text("changed")
    with pytest.raises(StoreError, match="is damaged"):
        layout.write(tmp_path / "out", image, source)
    assert not any(".making" in name for name in files(tmp_path / "out"))
    assert len(files(tmp_path / "out")) == 1


def test_damage_is_found_when_reading(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    written = layout.write(tmp_path / "out", image_of(source, LAYERS), source)
    blob = tmp_path / "out/blobs/sha256" / written.layers[1].digest[7:]
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(ChecksumError, match="is damaged"):
        layout.read(tmp_path / "out")
    blob.write_bytes(data[:-1])
    with pytest.raises(ChecksumError, match="bytes, not the"):
        layout.read(tmp_path / "out")
    blob.unlink()
    with pytest.raises(OutsideError, match="lacks the blob"):
        layout.read(tmp_path / "out")


def test_a_strangers_link_is_not_followed(tmp_path: Path) -> None:
    source = Trees(tmp_path / "trees")
    written = layout.write(tmp_path / "out", image_of(source, LAYERS), source)
    blob = tmp_path / "out/blobs/sha256" / written.layers[0].digest[7:]
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideError, match="lacks the blob"):
        layout.read(tmp_path / "out")


@pytest.mark.parametrize("index", ["", "[]", '{"manifests": 1}', '{"schemaVersion":2}'])
def test_a_damaged_index_is_one_of_our_errors(tmp_path: Path, index: str) -> None:
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(DanluError):
        layout.read(tmp_path)


def test_what_is_no_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="is no OCI layout"):
        layout.read(tmp_path)
