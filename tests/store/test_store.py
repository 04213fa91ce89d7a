"""Basic guarantees of the store: every process finds complete what any process has put in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.errors import ChecksumError, StoreError, UsageError
from danlu.oci.digest import DiffId, Digest, sha256
from danlu.store import Layer, Store

MakeLayer = Callable[..., Layer]


def test_committed_layer_is_found_again(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    assert store.layer(layer.diff_id) == layer
    assert (layer.tree / "file").read_text() == "one"
    with Store.open(store.root) as other:
        assert other.layer(layer.diff_id) == layer


def test_second_commit_of_a_layer_keeps_the_first(store: Store, make_layer: MakeLayer) -> None:
    first = make_layer(store, "one")
    assert make_layer(store, "one") == first
    assert len(list((store.root / "layers").iterdir())) == 1


def test_absent_layer_is_none(store: Store) -> None:
    assert store.layer(DiffId("sha256:" + "0" * 64)) is None


def test_staging_is_removed_at_exit(store: Store) -> None:
    with store.staging() as path:
        (path / "x").write_text("x")
    assert not path.exists()


def test_record_is_found_again(store: Store) -> None:
    store.put_record("key", {"a": [1, "ä"]})
    assert store.record("key") == {"a": [1, "ä"]}
    assert store.record("other") is None


def test_record_with_a_missing_layer_is_invalid(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    store.put_record("key", {}, layers=[layer.diff_id])
    assert store.record("key") == {}
    layer.tree.rename(store.root / "elsewhere")
    assert store.record("key") is None


def test_record_with_a_missing_blob_is_invalid(store: Store) -> None:
    digest = store.put_blob(b"data")
    store.put_record("key", {}, blobs=[digest])
    assert store.record("key") == {}
    path = store.blob(digest)
    assert path is not None
    path.unlink()
    assert store.record("key") is None


def test_blob_is_found_again(store: Store) -> None:
    digest = store.put_blob(b"data")
    path = store.blob(digest)
    assert path is not None
    assert digest == sha256(b"data")
    assert path.read_bytes() == b"data"


def test_truncated_blob_is_missing(store: Store) -> None:
    path = store.blob(store.put_blob(b"data"))
    assert path is not None
    path.write_bytes(b"dat")
    assert store.blob(sha256(b"data")) is None
    assert store.put_blob(b"data") == sha256(b"data")
    assert path.read_bytes() == b"data"


def test_blob_of_another_digest_is_refused(store: Store) -> None:
    with store.blob_writer() as writer:
        writer.write(b"data")
        with pytest.raises(ChecksumError):
            writer.commit(Digest("sha256:" + "0" * 64))
    assert store.blob(sha256(b"data")) is None
    assert not list((store.root / "tmp").iterdir())


def test_image_is_found_by_name_digest_and_prefix(store: Store, make_layer: MakeLayer) -> None:
    layer = make_layer(store, "one")
    image = store.put_image(b"{}", [layer.diff_id], names=["a:1"], metadata={"function": "build"})
    assert image.digest == sha256(b"{}")
    assert image.names == ("a:1",)
    for name in ("a:1", image.digest, image.digest[7:19], image.digest[:20]):
        assert store.image(name) == image
    assert store.image("a:2") is None
    assert store.image("fa") is None
    assert store.images() == [image]


def test_ambiguous_prefix_is_an_error(store: Store) -> None:
    digits = {sha256(str(n).encode())[7:13]: n for n in range(3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("danlu.store.images.sha256", lambda data: "sha256:abcdef" + sha256(data)[13:])
        for n in digits.values():
            store.put_image(str(n).encode(), [])
    with pytest.raises(UsageError, match="more than one"):
        store.image("abcdef")


def test_image_on_an_absent_layer_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="is not in the store"):
        store.put_image(b"{}", [DiffId("sha256:" + "0" * 64)])
    assert store.images() == []


def test_name_moves_to_the_later_image(store: Store) -> None:
    store.put_image(b"1", [], names=["a"])
    second = store.put_image(b"2", [], names=["a"])
    assert store.image("a") == second
    first = store.image(sha256(b"1"))
    assert first is not None
    assert first.names == ()


def test_tag_untag_and_remove(store: Store) -> None:
    image = store.put_image(b"1", [])
    assert store.tag("b", "nothing") is None
    tagged = store.tag("b", image.digest)
    assert tagged is not None
    assert tagged.names == ("b",)
    assert store.untag("b")
    assert not store.untag("b")
    assert store.remove_image(image.digest)
    assert not store.remove_image(image.digest)
    assert store.images() == []


def test_image_keeps_a_layer_it_contains_twice(store: Store, make_layer: MakeLayer) -> None:
    one, two = make_layer(store, "one"), make_layer(store, "two")
    order = [one.diff_id, two.diff_id, one.diff_id]
    assert store.put_image(b"{}", order).layers == tuple(order)


def test_compressed_digest_is_stored(store: Store) -> None:
    diff_id, digest = DiffId("sha256:" + "0" * 64), Digest("sha256:" + "1" * 64)
    assert store.compressed_blob(diff_id, "zstd") is None
    store.put_compressed_blob(diff_id, "zstd", digest, 5)
    result = store.compressed_blob(diff_id, "zstd")
    assert result is not None
    assert (result.digest, result.size) == (digest, 5)
    assert store.compressed_blob(diff_id, "gzip") is None


def test_newer_store_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    (tmp_path / "s" / "version").write_text("999\n")
    with pytest.raises(StoreError, match="newer danlu"):
        Store.open(tmp_path / "s")
