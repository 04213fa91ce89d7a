"""The store and the downloads share one budget."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.image.manage import prune_images
from danlu.sources import downloads
from danlu.store import Store
from danlu.util.paths import Paths

KB = 1000


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path)})


@pytest.fixture
def store(paths: Paths) -> Iterator[Store]:
    """Return a store with ten blobs of 1000 bytes."""
    with Store.open(paths.store) as store:
        for number in range(10):
            store.put_blob(bytes([number]) * KB)
        yield store


def download(paths: Paths, count: int) -> None:
    """Create this number of downloads of 1000 bytes."""
    for number in range(count):
        path = paths.cache / f"http/sha256/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(KB))
        os.utime(path, (number, number))


def measure_sizes(paths: Paths) -> tuple[int, int]:
    """Return the sizes of the store's blobs and of the downloads in units of 1000 bytes."""
    return len(list((paths.store / "blobs").iterdir())), downloads.cache_size(paths.cache) // KB


@pytest.mark.parametrize(
    ("budget", "fetched", "left"),
    [
        (20, 10, (10, 10)),
        (16, 10, (10, 6)),
        (12, 10, (9, 3)),
        (8, 10, (6, 2)),
        (8, 1, (7, 1)),
        (8, 0, (8, 0)),
        (0, 10, (0, 0)),
    ],
)
def test_prune_evicts_downloads_down_to_a_quarter_of_the_budget(
    store: Store, paths: Paths, budget: int, fetched: int, left: tuple[int, int]
) -> None:
    download(paths, fetched)
    result = prune_images(store, paths, budget * KB)
    assert measure_sizes(paths) == left
    assert (result.blobs, result.downloads) == (10 - left[0], fetched - left[1])
    assert (result.freed + result.kept, result.kept) == ((10 + fetched) * KB, sum(left) * KB)


def test_prune_reserves_a_share_for_downloads(store: Store, paths: Paths) -> None:
    download(paths, 10)
    with store.lease():
        for number in range(10):
            store.put_blob(bytes([number]) * KB)
        prune_images(store, paths, 8 * KB)
    assert measure_sizes(paths) == (10, 2)


def test_prune_keeps_downloads_of_a_running_build(store: Store, paths: Paths) -> None:
    download(paths, 3)
    with downloads.prevent_pruning(paths.cache):
        result = prune_images(store, paths, 0)
    assert (result.busy, result.blobs, measure_sizes(paths)) == (True, 10, (0, 3))
