"""Single safeguards of the store, whose absence other tests might not notice."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import ChecksumError, StoreError
from danlu.oci.digest import sha256
from danlu.store import Layer, Store, StoreInconsistency
from danlu.store.staging import lock_if_orphan
from danlu.store.types import InconsistencyKind
from danlu.util.files import remove_tree
from danlu.util.locks import try_file_lock

MakeLayer = Callable[..., Layer]
# The package has functions of the modules' names.
check_module = import_module("danlu.store.fsck")


def change(store: Store, statement: str, *arguments: object) -> None:
    with closing(sqlite3.connect(store.root / "index.sqlite")) as connection, connection:
        connection.execute(statement, arguments)


def forget_layer(store: Store, layer: Layer) -> None:
    change(store, "DELETE FROM layers WHERE diff_id = ?", layer.diff_id)
    remove_tree(layer.tree)


def test_collection_leaves_a_named_image_that_lacks_a_layer_to_the_check(
    store: Store, make_layer: MakeLayer
) -> None:
    layer, other = make_layer(store, "one"), make_layer(store, "two")
    named = store.put_image(b'{"n":1}', [layer.diff_id, other.diff_id], names=["a"])
    nameless = store.put_image(b'{"n":2}', [layer.diff_id])
    forget_layer(store, layer)
    assert store.collect(10**9).images == 1
    assert [image.digest for image in store.images()] == [named.digest]
    assert nameless.digest != named.digest
    assert [finding.kind for finding in store.check()] == ["image-incomplete"]


def test_compressed_digest_is_kept_while_an_image_needs_the_layer(
    store: Store, make_layer: MakeLayer
) -> None:
    layer, other = make_layer(store, "one"), make_layer(store, "two")
    for each in (layer, other):
        store.put_compressed_blob(each.diff_id, "gzip", sha256(each.diff_id.encode()), 1)
    store.put_image(b"{}", [layer.diff_id], names=["a"])
    forget_layer(store, layer)
    forget_layer(store, other)
    store.collect(10**9)
    assert store.compressed_blob(layer.diff_id, "gzip") is not None
    assert store.compressed_blob(other.diff_id, "gzip") is None


def test_nothing_is_collected_while_the_store_is_checked(
    store: Store, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layer(store, "one")
    seen: list[bool] = []
    original = check_module._examine_layer

    def look(core: Any, diff_id: str, name: str, normalise: str) -> object:
        with try_file_lock(store.root / "collect.lock") as free:
            seen.append(free)
        return original(core, diff_id, name, normalise)

    monkeypatch.setattr(check_module, "_examine_layer", look)
    assert store.check() == []
    assert seen == [False]


def test_repair_keeps_a_layer_that_was_put_in_again_meanwhile(
    store: Store, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_layer(store, "one")
    (layer.tree / "file").write_text("damaged")

    def look(core: Any, diff_id: str, name: str, normalise: str) -> object:
        # Another process finds the damage too, and is the first to replace it.
        sound = core.layers / "sound"
        sound.mkdir(exist_ok=True)
        (sound / "file").write_text("one")
        change(store, "UPDATE layers SET tree = 'sound' WHERE diff_id = ?", diff_id)
        return StoreInconsistency("layer-damaged", diff_id, "as it was a moment ago")

    monkeypatch.setattr(check_module, "_examine_layer", look)
    store.check(repair=True)
    monkeypatch.undo()
    result = store.layer(layer.diff_id)
    assert result is not None
    assert (result.tree / "file").read_text() == "one"


def test_entry_removed_during_a_sweep_is_not_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    with lock_if_orphan(directory) as gone:
        assert gone
        # It is locked now: for everybody else it is alive.
        with lock_if_orphan(directory) as again:
            assert not again
    lock = fcntl.flock

    def collect_first(descriptor: int, how: int) -> None:
        os.rmdir(directory)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", collect_first)
    with lock_if_orphan(directory) as gone:
        assert not gone


def test_symlink_in_staging_is_not_an_orphan(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    with lock_if_orphan(tmp_path / "link") as gone:
        assert not gone


def test_blob_of_the_expected_digest_is_taken_and_another_is_not(store: Store) -> None:
    for expected in (sha256(b"data"), None):
        with store.blob_writer() as writer:
            writer.write(b"data")
            assert writer.commit(expected) == sha256(b"data")
    with store.blob_writer() as writer:
        writer.write(b"other")
        with pytest.raises(ChecksumError):
            writer.commit(sha256(b"data"))
    assert store.blob(sha256(b"other")) is None


def test_verified_layer_of_an_earlier_boot_is_used_and_a_damaged_one_is_not(
    store: Store, make_layer: MakeLayer
) -> None:
    sound, damaged = make_layer(store, "one"), make_layer(store, "two")
    (damaged.tree / "file").write_text("cut")
    change(store, "UPDATE layers SET boot = 'earlier'")
    for _ in range(2):
        assert store.layer(sound.diff_id) is not None
        assert store.layer(damaged.diff_id) is None


def test_collection_reports_what_could_not_be_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect_module = import_module("danlu.store.gc")
    error = PermissionError(13, "Permission denied", str(store.root / "layers/x"))
    monkeypatch.setattr(collect_module, "remove_trees", lambda paths: [error])
    with pytest.raises(StoreError, match="Permission denied"):
        store.collect(0)


@pytest.mark.parametrize(
    ("kind", "harmless"),
    [
        ("tree-unknown", True),
        ("blob-unknown", True),
        ("leftover", True),
        ("layer-damaged", False),
        ("layer-missing", False),
        ("blob-damaged", False),
        ("index-damaged", False),
        ("image-incomplete", False),
    ],
)
def test_only_garbage_is_harmless(kind: InconsistencyKind, harmless: bool) -> None:
    assert StoreInconsistency(kind, "x").harmless == harmless
