"""A full disk leaves nothing half done, and the advice in the error message works."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from danlu.errors import StoreError
from danlu.store import Layer, Store
from tests.disk_quota import mount_quota

MakeLayer = Callable[..., Layer]

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(params=["tmpfs", "ext4", "quota"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small separate file system, or a directory with a quota."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if request.param == "quota":
        with mount_quota(tmp_path, 16 << 20) as limited:
            yield limited
        return
    directory = tmp_path / "disk"
    directory.mkdir()
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(24 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"cannot mount {request.param} here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def fill(place: Path, *, leave: int = 0, name: str = "filler") -> None:
    """Fill the disk to the last byte, or until ``leave`` bytes are left."""
    # Removed at the end: on btrfs an exhausted quota forbids to truncate a file.
    spare = place / f"{name}.spare"
    with suppress(OSError), spare.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, leave or 1)
    with suppress(OSError), (place / name).open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
        os.fsync(file.fileno())
    if leave:
        spare.unlink()


def until_full(put: Callable[[str], object]) -> int:
    """Call ``put("0")``, ``put("1")`` … until the disk is full; return the first that failed."""
    for number in range(10_000):
        try:
            put(str(number))
        except StoreError as error:
            if "no space left" not in error.message:
                raise
            return number
    raise AssertionError("the disk never filled")


def test_blob_that_does_not_fit_leaves_nothing(disk: Path) -> None:
    with Store.open(disk / "store") as store:
        fill(disk, leave=1 << 20)
        with pytest.raises(StoreError, match="no space left") as caught:
            store.put_blob(os.urandom(2 << 20))
        assert "image prune" in caught.value.hint
        assert not list((store.root / "tmp").iterdir())
        assert store.usage().blobs == 0
        (disk / "filler").unlink()
        store.put_blob(b"x" * (2 << 20))
        assert store.check() == []


def test_full_disk_inside_staging_is_a_store_error(disk: Path) -> None:
    with Store.open(disk / "store") as store:
        with pytest.raises(StoreError, match="no space left"), store.staging() as path:
            (path / "x").write_bytes(bytes(64 << 20))
        assert store.check() == []


def test_index_that_cannot_grow_leaves_nothing_half_done(disk: Path, make_layer: MakeLayer) -> None:
    with Store.open(disk / "store") as store:
        first = make_layer(store, "one")
        fill(disk, leave=256 << 10)
        result = until_full(lambda text: store.put_record(text, {"x": "y" * 1000}))
        assert store.record(str(result - 1)) is not None
        assert store.record(str(result)) is None
        assert store.layer(first.diff_id) == first
        assert store.check() == []


def test_layer_without_its_row_is_taken_back(disk: Path, make_layer: MakeLayer) -> None:
    with Store.open(disk / "store") as store:
        fill(disk, leave=256 << 10)
        until_full(lambda text: make_layer(store, text))
        assert store.check() == []


def test_full_disk_can_be_cleaned(disk: Path, make_layer: MakeLayer) -> None:
    with Store.open(disk / "store") as store:
        for number in range(20):
            make_layer(store, str(number))
        store.put_blob(os.urandom(3 << 20))
    fill(disk)
    # Others that find the disk full, such as a download, take what there is.
    for number in range(3):
        with suppress(StoreError), Store.open(disk / "store"):
            fill(disk, name=f"filler-{number}")
    with Store.open(disk / "store", frees_space=True) as store:
        gone = store.collect(0)
        assert (gone.layers, gone.blobs) == (20, 1)
        assert store.check() == []
        make_layer(store, "again")


def test_a_full_store_is_not_reported_as_damaged(disk: Path) -> None:
    with Store.open(disk / "store"):
        pass
    (disk / "store" / "reserve").unlink()
    fill(disk)
    with (
        pytest.raises(StoreError, match="no space left") as caught,
        Store.open(disk / "store") as store,
    ):
        store.put_record("key", {"x": "y" * 100_000})
    assert "image prune" in caught.value.hint


def test_a_store_is_not_created_on_a_full_disk(disk: Path) -> None:
    fill(disk)
    with pytest.raises(StoreError, match="no space left"):
        Store.open(disk / "store")
    (disk / "filler").unlink()
    with Store.open(disk / "store") as store:
        assert store.check() == []
