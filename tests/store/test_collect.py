"""Garbage collection evicts least recently used objects, never tagged or leased ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.errors import StoreError
from danlu.store import Layer, Store
from danlu.util.locks import file_lock

MakeLayer = Callable[..., Layer]


def test_untagged_objects_are_evicted_with_a_budget_of_zero(
    store: Store, make_layer: MakeLayer
) -> None:
    layer = make_layer(store, "one")
    blob = store.put_blob(b"data")
    store.put_record("on a layer", {}, layers=[layer.diff_id])
    store.put_record("on nothing", {})
    store.put_image(b"{}", [layer.diff_id])
    gone = store.collect(0)
    assert (gone.images, gone.layers, gone.blobs, gone.records) == (1, 1, 1, 2)
    assert gone.kept == 0
    assert store.layer(layer.diff_id) is None
    assert store.blob(blob) is None
    assert store.images() == []
    assert store.record("on nothing") is None
    assert not layer.tree.exists()
    assert store.usage().layers == 0


def test_named_image_keeps_all_it_needs(store: Store, make_layer: MakeLayer) -> None:
    layer, blob = make_layer(store, "one"), store.put_blob(b"data")
    store.put_record("key", {}, layers=[layer.diff_id])
    store.put_image(b"{}", [layer.diff_id], names=["a"], blobs=[blob])
    store.collect(0)
    assert store.layer(layer.diff_id) == layer
    assert store.blob(blob) is not None
    assert store.record("key") == {}
    store.untag("a")
    store.collect(0)
    assert store.layer(layer.diff_id) is None


def test_nothing_is_evicted_below_the_budget(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    assert store.collect(10**9).layers == 0
    assert store.layer(layer.diff_id) == layer


def test_least_recently_used_is_evicted_first(
    store: Store, make_layer: MakeLayer, clock: Callable[[], float]
) -> None:
    first, second, third = (make_layer(store, text) for text in "123")
    clock.now += 3600  # type: ignore[attr-defined]
    assert store.layer(first.diff_id) == first
    gone = store.collect(first.size + third.size)
    assert gone.layers == 1
    assert gone.freed == second.size
    assert store.layer(second.diff_id) is None
    assert store.layer(first.diff_id) == first
    assert store.layer(third.diff_id) == third


def test_last_use_survives_the_process(tmp_path: Path, make_layer: MakeLayer) -> None:
    root = tmp_path / "store"
    now = [1e9]
    with Store.open(root, clock=lambda: now[0]) as store:
        first = make_layer(store, "1")
        now[0] += 100
        make_layer(store, "2")
        now[0] += 100
        store.layer(first.diff_id)
    with Store.open(root) as store:
        store.collect(first.size)
        assert store.layer(first.diff_id) == first


def test_untagged_image_is_evicted_with_its_first_layer(
    store: Store, make_layer: MakeLayer
) -> None:
    old, new = make_layer(store, "old"), make_layer(store, "new")
    store.put_image(b"{}", [old.diff_id, new.diff_id])
    gone = store.collect(new.size + 100)
    assert (gone.images, gone.layers) == (1, 1)
    assert store.images() == []
    assert store.layer(new.diff_id) == new


def test_lease_protects_created_and_read_layers(store: Store, make_layer: MakeLayer) -> None:
    before, untouched = make_layer(store, "before"), make_layer(store, "untouched")
    store.put_record("key", {"a": 1}, layers=[before.diff_id])
    with Store.open(store.root) as other, store.lease():
        assert store.record("key") == {"a": 1}
        result, blob = make_layer(store, "made"), store.put_blob(b"data")
        other.collect(0)
        assert store.layer(before.diff_id) == before
        assert store.record("key") == {"a": 1}
        assert store.layer(result.diff_id) == result
        assert store.blob(blob) is not None
        assert store.layer(untouched.diff_id) is None
    store.collect(0)
    assert store.layer(result.diff_id) is None
    assert not list((store.root / "leases").iterdir())


def test_lease_keeps_from_its_own_process_too(store: Store, make_layer: MakeLayer) -> None:
    with store.lease():
        layer = make_layer(store, "made")
        store.collect(0)
        assert store.layer(layer.diff_id) == layer


def test_lease_keeps_an_image_that_loses_its_name(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    store.put_image(b"{}", [layer.diff_id], names=["a"])
    with store.lease():
        image = store.image("a")
        assert image is not None
        store.untag("a")
        store.collect(0)
        assert store.image(image.digest) is not None
        assert store.layer(layer.diff_id) == layer


def test_inner_lease_does_not_end_the_outer(store: Store, make_layer: MakeLayer) -> None:
    with store.lease():
        with store.lease() as inner:
            layer = make_layer(store, "made")
            inner.keep([layer.diff_id])
        store.collect(0)
        assert store.layer(layer.diff_id) == layer


def test_lease_of_a_killed_process_ends(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    program = (
        "import sys, os, signal; from pathlib import Path; from danlu.store import Store\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "with store.lease() as lease:\n"
        "    lease.keep([sys.argv[2]])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(store.root), layer.diff_id], check=False)
    assert len(list((store.root / "leases").iterdir())) == 1
    store.collect(0)
    assert store.layer(layer.diff_id) is None
    assert not list((store.root / "leases").iterdir())


def test_shared_lease_lasts_as_long_as_the_child(store: Store, make_layer: MakeLayer) -> None:
    with store.lease() as lease:
        layer = make_layer(store, "made")
        descriptor = lease.share()
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor])
    store.collect(0)
    assert store.layer(layer.diff_id) == layer
    child.communicate(b"")
    store.collect(0)
    assert store.layer(layer.diff_id) is None


def test_orphaned_staging_is_removed_and_a_live_one_kept(store: Store) -> None:
    program = (
        "import sys, os, signal; from pathlib import Path; from danlu.store import Store\n"
        "with Store.open(Path(sys.argv[1])).staging() as path:\n"
        "    (path / 'x').write_text('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(store.root)], check=False)
    with store.staging() as mine:
        assert len(list((store.root / "tmp").iterdir())) == 2
        store.collect(10**9)
        assert list((store.root / "tmp").iterdir()) == [mine]


def test_strays_are_removed_even_below_the_budget(store: Store) -> None:
    (store.root / "layers" / "stray" / "deep").mkdir(parents=True)
    (store.root / "blobs" / ("0" * 64)).write_bytes(b"x")
    store.collect(10**9)
    assert not list((store.root / "layers").iterdir())
    assert not list((store.root / "blobs").iterdir())


def test_compressed_digest_is_deleted_with_its_layer(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    store.put_compressed_blob(layer.diff_id, "zstd", store.put_blob(b"z"), 1)
    store.collect(layer.size)
    assert store.compressed_blob(layer.diff_id, "zstd") is not None
    store.collect(0)
    assert store.compressed_blob(layer.diff_id, "zstd") is None


@pytest.mark.parametrize("keep", [0, 15_000, 25_000, 10**9])
def test_kept_objects_fit_the_budget_or_are_pinned(
    store: Store, make_layer: MakeLayer, keep: int
) -> None:
    layers = [make_layer(store, str(number)) for number in range(4)]
    store.put_image(b"{}", [layers[0].diff_id], names=["a"])
    gone = store.collect(keep)
    assert gone.kept <= max(keep, layers[0].size + 10)
    assert store.usage().layers <= gone.kept
    assert store.check() == []


def test_layers_count_as_used_when_their_image_is(
    store: Store, make_layer: MakeLayer, clock: Callable[[], float]
) -> None:
    used, unused = make_layer(store, "used"), make_layer(store, "unused")
    store.put_image(b"{}", [used.diff_id])
    clock.now += 3600  # type: ignore[attr-defined]
    image = store.image("44136fa355b3")
    assert image is not None
    store.collect(used.size + 100)
    assert store.layer(unused.diff_id) is None
    assert store.layer(used.diff_id) == used


def test_collection_times_out_waiting_for_the_gate(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.store.index._LOCK_TIMEOUT_SECONDS", 0.05)
    with file_lock(store.root / "gate"), pytest.raises(StoreError, match="another danlu"):
        store.collect(0)
    store.collect(0)


@pytest.mark.real
@pytest.mark.needs("root")
def test_leftover_with_a_mount_is_kept_without_blocking_others(
    store: Store, make_layer: MakeLayer, tmp_path: Path
) -> None:
    layer = make_layer(store, "one")
    project = tmp_path / "project"
    project.mkdir()
    (project / "work").write_text("years")
    directory = store.root / "tmp" / "left" / "merged"
    directory.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(project), str(directory)], check=True)
    try:
        with pytest.raises(StoreError, match="in use by a mount"):
            store.collect(0)
    finally:
        subprocess.run(["umount", str(directory)], check=True)
    assert (project / "work").read_text() == "years"
    assert not layer.tree.exists()
    store.collect(0)
    assert not list((store.root / "tmp").iterdir())
