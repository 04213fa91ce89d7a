"""One budget for the store and for downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.commands.prune import prune
from danlu.sources import downloads
from danlu.store import Store
from danlu.util.paths import Paths

KB = 1000


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path)})


@pytest.fixture
def store(paths: Paths) -> Iterator[Store]:
    """A store of ten blobs of a thousand bytes."""
    with Store.open(paths.store) as store:
        for number in range(10):
            store.put_blob(bytes([number]) * KB)
        yield store


def download(paths: Paths, count: int) -> None:
    """So many downloads of a thousand bytes."""
    for number in range(count):
        path = paths.cache / f"http/sha256/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(KB))
        os.utime(path, (number, number))


def kept(paths: Paths) -> tuple[int, int]:
    """Thousands of bytes in the store's blobs, and in downloads."""
    return len(list((paths.store / "blobs").iterdir())), downloads.size(paths.cache) // KB


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
def test_downloads_give_way_but_for_a_quarter(
    store: Store, paths: Paths, budget: int, fetched: int, left: tuple[int, int]
) -> None:
    download(paths, fetched)
    done = prune(store, paths, budget * KB)
    assert kept(paths) == left
    assert (done.blobs, done.downloads) == (10 - left[0], fetched - left[1])
    assert (done.freed + done.kept, done.kept) == ((10 + fetched) * KB, sum(left) * KB)


def test_what_the_store_must_keep_costs_downloads_no_more_than_their_share(
    store: Store, paths: Paths
) -> None:
    download(paths, 10)
    with store.lease():
        for number in range(10):
            store.put_blob(bytes([number]) * KB)
        prune(store, paths, 8 * KB)
    assert kept(paths) == (10, 2)


def test_a_build_under_way_keeps_its_downloads(store: Store, paths: Paths) -> None:
    download(paths, 3)
    with downloads.in_use(paths.cache):
        done = prune(store, paths, 0)
    assert (done.busy, done.blobs, kept(paths)) == (True, 10, (0, 3))
