"""Concurrent processes use one store, and any of them can be killed at any moment."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Layer, Store

HARMLESS = {"tree-unknown", "blob-unknown", "leftover"}
FIXED = NormalizeOptions(mtime=1)

# The parent has no store open when it forks: sqlite does not survive that.
_fork = multiprocessing.get_context("fork")


def commit(store: Store, text: str) -> Layer:
    with store.staging() as directory:
        tree = directory / "tree"
        (tree / "below").mkdir(parents=True)
        for number in range(20):
            (tree / "below" / str(number)).write_text(f"{text} {number}")
        summary = write_layer(tree, None, normalise=FIXED)
        return store.commit_layer(tree, summary, created_by=text, normalise=FIXED)


def build(store: Store, numbers: list[int]) -> None:
    """Write layers, records, a blob and an image, as a build does."""
    with store.lease():
        layers = []
        for number in numbers:
            record = store.record(f"key {number}")
            if record is None:
                layer = commit(store, str(number))
                store.put_record(f"key {number}", {"layer": layer.diff_id}, layers=[layer.diff_id])
            else:
                result = store.layer(record["layer"])
                assert result is not None, "a record is there and its layer is not"
                layer = result
            assert (layer.tree / "below" / "19").read_text() == f"{number} 19"
            layers.append(layer.diff_id)
        blob = store.put_blob(str(numbers).encode())
        store.put_image(str(numbers).encode(), layers, names=[f"n{numbers[0]}"], blobs=[blob])


def build_many(root: Path, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    with Store.open(root) as store:
        for _ in range(rounds):
            build(store, chance.sample(range(12), 4))


def collect_until(root: Path, stop: Event) -> None:
    with Store.open(root) as store:
        for number in itertools.count():
            for image in store.images()[::2]:
                for name in image.names:
                    store.untag(name)
            store.collect(number % 3 * 30_000)
            if stop.is_set():
                return


def run_all(*targets: tuple[Callable[..., None], tuple[object, ...]]) -> None:
    children = [_fork.Process(target=target, args=args) for target, args in targets]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * len(children)


def test_concurrent_builds_and_collections_do_not_interfere(tmp_path: Path) -> None:
    root = tmp_path / "store"
    stop = _fork.Event()
    collector = _fork.Process(target=collect_until, args=(root, stop))
    collector.start()
    run_all(*[(build_many, (root, seed, 60)) for seed in range(3)])
    stop.set()
    collector.join()
    assert collector.exitcode == 0
    with Store.open(root) as store:
        assert {finding.kind for finding in store.check()} <= {"tree-unknown"}
        store.collect(10**9)
        assert store.check() == []


def commit_same(root: Path, texts: list[str]) -> None:
    with Store.open(root) as store:
        for text in texts:
            layer = commit(store, text)
            assert store.layer(layer.diff_id) == layer
            assert (layer.tree / "below" / "0").read_text() == f"{text} 0"


def test_concurrent_commits_of_one_layer_both_succeed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    texts = [str(number) for number in range(40)]
    run_all(*[(commit_same, (root, texts))] * 4)
    with Store.open(root) as store:
        assert store.check() == []
        assert len(list((root / "layers").iterdir())) == 40


def test_concurrent_creations_of_one_store_all_succeed(tmp_path: Path) -> None:
    for number in range(5):
        run_all(*[(build_many, (tmp_path / str(number), number, 1))] * 4)


def test_threads_share_one_store(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work(store: Store, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(15):
                build(store, chance.sample(range(12), 4))
        except BaseException as error:
            failures.append(error)

    with Store.open(tmp_path / "store") as store:
        threads = [threading.Thread(target=work, args=(store, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert store.check() == []


def build_until_killed(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Store.open(root) as store:
        while True:
            build(store, [chance.randrange(10**6) for _ in range(3)])
            if chance.random() < 0.3:
                store.collect(50_000)


def kill_after(root: Path, seed: int, seconds: float) -> None:
    child = _fork.Process(target=build_until_killed, args=(root, seed))
    child.start()
    child.join(timeout=seconds)
    assert child.pid is not None
    assert child.exitcode is None, "the builder failed by itself"
    os.kill(child.pid, signal.SIGKILL)
    child.join()


def assert_only_harmless(root: Path) -> None:
    with Store.open(root) as store:
        findings = store.check()
        assert {finding.kind for finding in findings} <= HARMLESS, findings
        for image in store.images():
            assert all(store.layer(diff_id) for diff_id in image.layers)
        store.collect(100_000)
        assert store.check() == []


@pytest.mark.real
def test_kill_at_any_moment_leaves_at_most_garbage(tmp_path: Path) -> None:
    chance = random.Random(7)
    for seed in range(25):
        kill_after(tmp_path / "store", seed, chance.random() * 0.2)
        assert_only_harmless(tmp_path / "store")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_at_very_many_moments_leaves_at_most_garbage(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("DANLU_TEST_SEED", "8")))
    end = time.monotonic() + 60
    seed = 0
    while time.monotonic() < end:
        seed += 1
        kill_after(tmp_path / str(seed % 3), seed, chance.random() * 0.1)
        assert_only_harmless(tmp_path / str(seed % 3))
