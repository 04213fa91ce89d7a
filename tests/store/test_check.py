"""The check finds every kind of damage, and repair leaves an intact store."""

from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from danlu.errors import StoreError
from danlu.oci.tar import write_layer
from danlu.store import Layer, Store
from danlu.store.index_check import check_store
from danlu.store.schema import migrate
from danlu.util.id_maps import UNMAPPED_ID, IdMaps, record_id_maps

MakeLayer = Callable[..., Layer]


@pytest.fixture
def full(store: Store, make_layer: MakeLayer) -> Store:
    """A store with something of each kind, and nothing wrong."""
    layer, blob = make_layer(store, "one"), store.put_blob(b"data")
    store.put_record("key", {}, layers=[layer.diff_id], blobs=[blob])
    store.put_image(b"{}", [layer.diff_id], names=["a"], blobs=[blob], metadata={"x": 1})
    assert store.check() == []
    return store


def change(store: Store, statement: str) -> None:
    with closing(sqlite3.connect(store.root / "index.sqlite")) as connection, connection:
        connection.execute(statement)


def only(path: Path) -> Path:
    (result,) = path.iterdir()
    return result


def damage_file(store: Store) -> None:
    (only(store.root / "layers") / "file").write_text("two")


def damage_mode(store: Store) -> None:
    (only(store.root / "layers") / "file").chmod(0o600)


def add_file(store: Store) -> None:
    (only(store.root / "layers") / "new").touch()


def remove_tree(store: Store) -> None:
    only(store.root / "layers").rename(store.root / "elsewhere")


def damage_blob(store: Store) -> None:
    only(store.root / "blobs").write_bytes(b"atad")


def remove_blob(store: Store) -> None:
    only(store.root / "blobs").unlink()


def damage_config(store: Store) -> None:
    change(store, "UPDATE images SET config = x'7b207d'")


def damage_metadata(store: Store) -> None:
    change(store, "UPDATE images SET metadata = '{'")


def damage_record(store: Store) -> None:
    change(store, "UPDATE records SET value = '[1'")


def damage_normalise(store: Store) -> None:
    change(store, "UPDATE layers SET normalise = '{\"bad\": 1}'")


def dangling_name(store: Store) -> None:
    change(store, "INSERT INTO names VALUES ('b', 'sha256:0')")


def stray_tree(store: Store) -> None:
    (store.root / "layers" / "stray").mkdir()


def stray_blob(store: Store) -> None:
    (store.root / "blobs" / "stray").touch()


def leftover(store: Store) -> None:
    (store.root / "tmp" / "left").mkdir()


DAMAGES: list[tuple[Callable[[Store], None], set[str]]] = [
    (damage_file, {"layer-damaged"}),
    (damage_mode, {"layer-damaged"}),
    (add_file, {"layer-damaged"}),
    (damage_normalise, {"layer-damaged"}),
    (remove_tree, {"layer-missing"}),
    (damage_blob, {"blob-damaged"}),
    (remove_blob, {"blob-missing"}),
    (damage_config, {"image-damaged"}),
    (damage_metadata, {"image-damaged"}),
    (dangling_name, {"image-incomplete"}),
    (damage_record, {"record-damaged"}),
    (stray_tree, {"tree-unknown"}),
    (stray_blob, {"blob-unknown"}),
    (leftover, {"leftover"}),
]


@pytest.mark.parametrize(("damage", "kinds"), DAMAGES, ids=[d.__name__ for d, _ in DAMAGES])
def test_damage_is_found_and_repaired(
    full: Store, damage: Callable[[Store], None], kinds: set[str]
) -> None:
    damage(full)
    findings = full.check()
    assert {finding.kind for finding in findings} == kinds
    assert not any(finding.repaired for finding in findings)
    assert full.check() == findings
    assert all(finding.repaired for finding in full.check(repair=True))
    assert full.check() == []


def test_repair_removes_records_and_images_of_a_damaged_layer(full: Store) -> None:
    damage_file(full)
    kinds = [finding.kind for finding in full.check(repair=True)]
    assert kinds == ["layer-damaged", "record-damaged", "image-incomplete", "tree-unknown"]
    assert full.record("key") is None
    assert full.image("a") is None


def test_repaired_layer_can_be_put_in_again(full: Store, make_layer: MakeLayer) -> None:
    damage_file(full)
    full.check(repair=True)
    layer = make_layer(full, "one")
    assert (layer.tree / "file").read_text() == "one"
    assert full.check() == []


def test_missing_tree_is_put_in_again_without_repair(full: Store, make_layer: MakeLayer) -> None:
    remove_tree(full)
    layer = make_layer(full, "one")
    assert full.layer(layer.diff_id) == layer
    assert full.check() == []


def test_layers_of_an_earlier_boot_are_verified_before_use(full: Store) -> None:
    image = full.image("a")
    assert image is not None
    change(full, "UPDATE layers SET boot = 'earlier'")
    assert full.layer(image.layers[0]) is not None
    change(full, "UPDATE layers SET boot = 'earlier'")
    damage_file(full)
    assert full.record("key") is None
    assert full.layer(image.layers[0]) is None


def test_blobs_of_an_earlier_boot_are_verified_before_use(full: Store) -> None:
    change(full, "UPDATE blobs SET boot = 'earlier'")
    image = full.image("a")
    assert image is not None
    assert full.blob(image.blobs[0]) is not None
    change(full, "UPDATE blobs SET boot = 'earlier'")
    damage_blob(full)
    assert full.blob(image.blobs[0]) is None


def test_synced_layers_need_no_verification(full: Store) -> None:
    full.sync()
    change(full, "UPDATE layers SET boot = 'earlier' WHERE boot != ''")
    damage_file(full)
    image = full.image("a")
    assert image is not None
    assert full.layer(image.layers[0]) is not None


def test_unverified_layer_is_replaced_by_a_new_commit(full: Store, make_layer: MakeLayer) -> None:
    change(full, "UPDATE layers SET boot = 'earlier'")
    damage_file(full)
    layer = make_layer(full, "one")
    assert (layer.tree / "file").read_text() == "one"
    full.collect(10**9)
    assert full.check() == []


def not_a_database(index: Path) -> None:
    index.write_bytes(b"not a database" * 1000)


def torn_page(index: Path) -> None:
    with index.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(4096))


def cut_in_half(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


def lost_table(index: Path) -> None:
    with closing(sqlite3.connect(index)) as connection, connection:
        connection.execute("DROP TABLE layers")


@pytest.mark.parametrize("damage", [not_a_database, torn_page, cut_in_half, lost_table])
def test_damaged_index_is_replaced(
    full: Store, make_layer: MakeLayer, damage: Callable[[Path], None]
) -> None:
    root = full.root
    full.close()
    damage(root / "index.sqlite")
    first, *_ = check_store(root)
    assert (first.kind, first.repaired) == ("index-damaged", False)
    assert check_store(root, repair=True)[0].repaired
    assert check_store(root) == []
    with Store.open(root) as again:
        layer = make_layer(again, "one")
        assert again.layer(layer.diff_id) == layer
    assert not list(root.glob("damaged*"))


def test_readable_part_of_a_damaged_index_is_kept(full: Store) -> None:
    root = full.root
    full.close()
    with closing(sqlite3.connect(root / "index.sqlite")) as connection, connection:
        connection.execute("DROP TABLE records")
    check_store(root, repair=True)
    with Store.open(root) as again:
        image = again.image("a")
        assert image is not None
        assert again.layer(image.layers[0]) is not None


@pytest.mark.parametrize("part", ["layers", "blobs", "record_needs"])
def test_images_with_intact_layers_survive_a_damaged_page(
    store: Store, make_layer: MakeLayer, part: str
) -> None:
    names = [f"image-{number}" for number in range(150)]
    for name in names:
        layer, blob = make_layer(store, name), store.put_blob(name.encode())
        store.put_record(name, {}, layers=[layer.diff_id], blobs=[blob])
        store.put_image(name.encode(), [layer.diff_id], names=[name], blobs=[blob])
    root = store.root
    store.close()
    index = root / "index.sqlite"
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    page = find_leaf_page(index, part, size)
    with index.open("r+b") as file:
        file.seek(page * size)
        file.write(b"\xff" * size)
    assert check_store(root)[0].kind == "index-damaged"
    check_store(root, repair=True)
    assert check_store(root) == []
    with Store.open(root) as again:
        for name in names:
            image = again.image(name)
            assert image is not None, name
            assert again.layers(image.layers) is not None
            assert again.blob(image.blobs[0]) is not None


def find_leaf_page(index: Path, table: str, size: int) -> int:
    """Return the number (from 0) of a page in the middle of the table's rows."""
    with closing(sqlite3.connect(index)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
    data = index.read_bytes()
    page = data[(root - 1) * size : root * size]
    assert page[0] in (2, 5), "the table has a single page"
    # Database file format, 1.6: the children of an interior page are where its cells begin.
    cells = int.from_bytes(page[3:5], "big")
    offset = 12 + 2 * (cells // 2)
    cell = int.from_bytes(page[offset : offset + 2], "big")
    return int.from_bytes(page[cell : cell + 4], "big") - 1


def test_damaged_index_is_an_error_with_a_hint(full: Store) -> None:
    root = full.root
    full.close()
    not_a_database(root / "index.sqlite")
    with pytest.raises(StoreError, match="index is damaged") as caught:
        Store.open(root)
    assert "check --repair" in caught.value.hint


def test_intact_store_has_no_inconsistencies(full: Store) -> None:
    assert check_store(full.root) == []


def test_a_lost_index_leaves_an_empty_store(full: Store) -> None:
    root = full.root
    full.close()
    for path in root.glob("index.sqlite*"):
        path.unlink()
    with Store.open(root) as again:
        assert again.images() == []
        assert {finding.kind for finding in again.check(repair=True)} == {
            "tree-unknown",
            "blob-unknown",
        }
        assert again.check() == []


def test_missing_directories_are_recreated(full: Store, make_layer: MakeLayer) -> None:
    root = full.root
    full.close()
    for name in ("layers", "tmp", "leases"):
        shutil.rmtree(root / name)
    with Store.open(root) as again:
        assert again.record("key") is None
        layer = make_layer(again, "one")
        assert again.layer(layer.diff_id) == layer
        assert again.check() == []


def test_store_is_found_from_another_directory(
    tmp_path: Path, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(Path("relative")) as store:
        monkeypatch.chdir("/")
        layer = make_layer(store, "one")
        assert layer.tree.is_absolute()
        assert store.layer(layer.diff_id) == layer


@pytest.mark.parametrize("text", ["", "one", "-"])
def test_directory_that_is_not_a_store_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "version").write_text(text)
    with pytest.raises(StoreError, match="not a danlu store"):
        Store.open(tmp_path)


def check_without_permission(root: Path) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    with Store.open(root) as store:
        with store.staging() as tree:
            (tree / "below").mkdir()
            summary = write_layer(tree, None)
            layer = store.commit_layer(tree, summary, created_by="x")
        (layer.tree / "below").chmod(0)
        with store.staging() as tree:
            (tree / "file").write_text("1")
            summary = write_layer(tree, None)
            damaged = store.commit_layer(tree, summary, created_by="y")
        (damaged.tree / "file").write_text("2")
        findings = {finding.subject: finding for finding in store.check(repair=True)}
        assert findings[layer.diff_id].kind == "layer-unreadable"
        assert findings[layer.diff_id].denied
        assert findings[damaged.diff_id].kind == "layer-damaged"
        assert not any(finding.repaired for finding in findings.values())
        assert layer.tree.is_dir()
        assert damaged.tree.is_dir()
        change(store, "UPDATE layers SET boot = 'earlier'")
        assert store.layer(layer.diff_id) == layer


def test_unreadable_tree_is_not_reported_as_damaged() -> None:
    # Imported now: who gave up being root may not read the interpreter's files.
    importlib.import_module("danlu.store.fsck")
    # Not tmp_path: only root may pass through the directories above it.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        child = multiprocessing.get_context("fork").Process(
            target=check_without_permission, args=(Path(directory) / "store",)
        )
        child.start()
        child.join()
    assert child.exitcode == 0


def test_committing_an_intact_layer_replaces_a_damaged_one(
    full: Store, make_layer: MakeLayer
) -> None:
    image = full.image("a")
    assert image is not None
    damage_file(full)
    layer = make_layer(full, "one")
    assert layer.diff_id == image.layers[0]
    assert (layer.tree / "file").read_text() == "one"
    assert {finding.kind for finding in full.check(repair=True)} == {"tree-unknown"}
    assert full.image("a") == image


def test_intact_layer_committed_again_is_kept_and_not_marked_synced(
    full: Store, make_layer: MakeLayer
) -> None:
    image = full.image("a")
    assert image is not None
    before = full.layer(image.layers[0])
    assert make_layer(full, "one") == before
    with closing(sqlite3.connect(full.root / "index.sqlite")) as connection:
        # Read from memory, it may still not have reached the disk.
        assert connection.execute("SELECT boot FROM layers").fetchall() != [("",)]


OTHER_IDS = IdMaps(((0, 1000, 1), (1, 100000, 65536)), ((0, 1000, 1), (1, 100000, 65536)))
"""Those of a rootless build; no test runs inside this user namespace."""


def fail_reading(number: int) -> Callable[..., object]:
    def fail(tree: Path, *_: object) -> object:
        raise StoreError("cannot read the layer") from OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("why", ["other ids", "no permission", "disk"])
def test_repair_removes_nothing_if_a_layer_is_unreadable(
    full: Store, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    image = full.image("a")
    assert image is not None
    damage_blob(full)
    if why == "other ids":
        record_id_maps(full.root, OTHER_IDS)
        damage_file(full)  # what the owners would look like: another content
    else:
        number = errno.EACCES if why == "no permission" else errno.EIO
        monkeypatch.setattr("danlu.store.layers._write_layer_tar", fail_reading(number))
    for repair in (False, True):
        findings = full.check(repair=repair)
        assert [finding.kind for finding in findings] == ["layer-unreadable", "blob-damaged"]
        assert findings[0].denied == (why != "disk")
        assert not any(finding.repaired for finding in findings)
    assert full.image("a") == image
    assert len(list((full.root / "layers").iterdir())) == 1
    change(full, "UPDATE layers SET boot = 'earlier'")
    if why == "disk":
        with pytest.raises(StoreError, match="Input/output error") as caught:
            full.layer(image.layers[0])
        assert "dmesg" in caught.value.hint
    else:
        assert full.layer(image.layers[0]) is not None
    with closing(sqlite3.connect(full.root / "index.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM layers").fetchone() == (1,)


def test_unreadable_blob_is_kept(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    damage_file(full)
    monkeypatch.setattr("danlu.store.blobs.file_digest", fail)
    findings = full.check(repair=True)
    assert [finding.kind for finding in findings] == ["layer-damaged", "blob-unreadable"]
    assert full.image("a") is not None


def test_unmapped_owner_is_not_damage_without_recorded_id_maps(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store from before ids were recorded looks like this without newuidmap."""
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    single = IdMaps(((0, 1000, 1),), ((0, 1000, 1),))
    monkeypatch.setattr("danlu.store.layers.read_id_maps", lambda: single)
    damage_file(full)
    assert {finding.kind for finding in full.check()} == {"layer-damaged"}
    os.chown(only(full.root / "layers") / "file", UNMAPPED_ID, UNMAPPED_ID)
    assert {finding.kind for finding in full.check()} == {"layer-unreadable"}


def test_id_maps_cover_those_that_map_the_same() -> None:
    assert OTHER_IDS.covers(OTHER_IDS)
    more = IdMaps(((0, 1000, 1), (1, 100000, 99999)), ((0, 1000, 1), (1, 100000, 65536)))
    assert more.covers(OTHER_IDS)
    assert not OTHER_IDS.covers(more)
    moved = IdMaps(((0, 1000, 1), (1, 200000, 65536)), OTHER_IDS.groups)
    assert not moved.covers(OTHER_IDS)
    single = IdMaps(((0, 1000, 1),), ((0, 1000, 1),))
    assert OTHER_IDS.covers(single)
    assert not single.covers(OTHER_IDS)
    whole_machine = IdMaps(((0, 0, 2**32 - 1),), ((0, 0, 2**32 - 1),))
    assert not whole_machine.covers(single)


def test_killed_recovery_leaves_the_damaged_index(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = full.root
    full.close()
    lost_table(root / "index.sqlite")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("danlu.store.index_check._copy_rows", stop)
        with pytest.raises(KeyboardInterrupt):
            check_store(root, repair=True)
    findings = check_store(root)
    assert [finding.kind for finding in findings] == ["index-damaged"]
    check_store(root, repair=True)
    assert check_store(root) == []


def test_recovery_on_a_full_disk_leaves_the_damaged_index(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = full.root
    full.close()
    with closing(sqlite3.connect(root / "index.sqlite")) as connection, connection:
        connection.execute("DROP TABLE records")
        connection.execute("UPDATE images SET config = ?", (bytes(1 << 20),))

    def migrate_small(connection: sqlite3.Connection) -> None:
        migrate(connection)
        connection.execute("PRAGMA max_page_count = 30")

    with monkeypatch.context() as patch:
        patch.setattr("danlu.store.index_check.migrate", migrate_small)
        with pytest.raises(StoreError, match="no space left"):
            check_store(root, repair=True)
    kinds = {finding.kind for finding in check_store(root)}
    assert kinds == {"index-damaged"}
    assert len(list((root / "layers").iterdir())) == 1
