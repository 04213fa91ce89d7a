"""Images of a store: found, named, removed, compared, written out and read back."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.commands.export import write_output
from danlu.commands.imagediff import compare, compare_files
from danlu.commands.imageload import load
from danlu.commands.images import find_image, layers_of, normal_name, remove, summary_fields, tag
from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.oci.image import make_image
from danlu.oci.tar import Normalise, write_layer
from danlu.store import Layer, Store, StoredImage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


def layer(store: Store, **files: str) -> Layer:
    """A layer of these files; the value ``-`` is a deletion, ``->x`` a link to x."""
    normalise = Normalise(mtime=1)
    with store.staging() as staged:
        root = staged / "tree"
        root.mkdir()
        for name, text in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if text == "-":
                os.mknod(path, 0o20000)
            elif text.startswith("->"):
                path.symlink_to(text[2:])
            else:
                path.write_text(text)
        summary = write_layer(root, None, normalise=normalise)
        return store.commit_layer(root, summary, created_by=f"{files}", normalise=normalise)


def image(store: Store, *layers: Layer, names: tuple[str, ...] = (), user: str = "") -> StoredImage:
    made = make_image(
        [(one.diff_id, one.created_by) for one in layers], architecture="amd64", user=user
    )
    return store.put_image(made.config, made.diff_ids, names=names, metadata={})


def test_an_image_is_found_by_name_digest_and_beginning(store: Store) -> None:
    made = image(store, layer(store, a="1"), names=("demo:latest",))
    for text in ("demo", "demo:latest", made.digest, made.digest[7:19], "docker.io/library/demo"):
        assert find_image(store, text).digest == made.digest


def test_a_name_that_is_not_there_brings_the_nearest(store: Store) -> None:
    image(store, layer(store, a="1"), names=("demo:latest",))
    with pytest.raises(UsageError) as caught:
        find_image(store, "dmeo")
    assert caught.value.hint == "did you mean demo:latest?"


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "x@sha256:12", "-x", "a:b:c", "é"])
def test_what_cannot_be_a_name_is_refused(store: Store, text: str) -> None:
    made = image(store, layer(store, a="1"))
    with pytest.raises(UsageError):
        tag(store, made.digest, text)


def test_names_have_one_spelling() -> None:
    assert normal_name("demo") == "demo:latest"
    assert normal_name("localhost:5000/demo:1") == "localhost:5000/demo:1"


def test_a_name_moves_to_the_image_that_gets_it(store: Store) -> None:
    one = image(store, layer(store, a="1"), names=("demo:latest",))
    two = image(store, layer(store, a="2"))
    assert tag(store, two.digest, "demo") == "demo:latest"
    assert find_image(store, "demo").digest == two.digest
    assert find_image(store, one.digest).names == ()


def test_removing_one_of_two_names_keeps_the_image(store: Store) -> None:
    made = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove(store, ["a:1"])
    assert (removed.names, removed.images) == (("a:1",), ())
    assert find_image(store, "b:1").digest == made.digest
    assert remove(store, ["b:1"]).images == (made.digest,)


def test_removing_by_digest_takes_all_names(store: Store) -> None:
    made = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove(store, [made.digest])
    assert (removed.names, removed.images) == (("a:1", "b:1"), (made.digest,))
    assert store.images() == []


def test_removing_both_names_at_once_removes_the_image_once(store: Store) -> None:
    made = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove(store, ["a:1", "b:1", made.digest])
    assert removed.images == (made.digest,)
    assert removed.names == ("a:1", "b:1")


def test_nothing_is_removed_where_one_name_is_wrong(store: Store) -> None:
    image(store, layer(store, a="1"), names=("a:1",))
    with pytest.raises(UsageError):
        remove(store, ["a:1", "missing"])
    assert find_image(store, "a:1")


def test_layers_come_with_size_and_origin(store: Store) -> None:
    one, two = layer(store, a="1"), layer(store, b="22")
    found = layers_of(store, image(store, one, two))
    assert [(each.size, each.created_by) for each in found] == [
        (one.size, one.created_by),
        (two.size, two.created_by),
    ]
    assert summary_fields(store, image(store, one, two))["size"] == one.size + two.size


def test_an_image_is_the_same_as_itself(store: Store) -> None:
    made = image(store, layer(store, a="1"))
    assert compare(store, made, made).same
    assert list(compare_files(store, made, made)) == []


def test_a_comparison_tells_layers_and_settings(store: Store) -> None:
    base, old, new = layer(store, a="1"), layer(store, b="1"), layer(store, b="2")
    found = compare(store, image(store, base, old), image(store, base, new, user="1000:1000"))
    assert [one.diff_id for one in found.removed] == [old.diff_id]
    assert [one.diff_id for one in found.added] == [new.diff_id]
    assert found.common == 1
    assert found.settings == (("User", "", "1000:1000"),)
    assert not found.same


def test_layers_in_another_order_are_a_difference(store: Store) -> None:
    one, two = layer(store, a="1"), layer(store, a="2")
    assert not compare(store, image(store, one, two), image(store, two, one)).same


@pytest.mark.skipif(os.geteuid() != 0, reason="makes deletions, which are devices")
def test_files_are_compared_as_they_lie_over_one_another(store: Store) -> None:
    base = layer(store, same="1", changed="old", gone="x", d__inner="y", link="->same")
    old = image(store, base)
    new = image(
        store,
        base,
        layer(store, changed="new!", gone="-", d="-", added="z", link="->changed", same="1"),
    )
    changes = {one.path: one.kind for one in compare_files(store, old, new)}
    assert changes == {
        "/added": "added",
        "/changed": "changed",
        "/d": "removed",
        "/d/inner": "removed",
        "/gone": "removed",
        "/link": "changed",
    }


@pytest.mark.parametrize("kind", ["docker", "oci", "dir"])
@pytest.mark.parametrize("compression", ["zstd", "gzip", "none"])
def test_an_image_survives_the_way_out_and_in(
    store: Store, tmp_path: Path, kind: str, compression: str
) -> None:
    made = image(store, layer(store, a="1"), layer(store, b__c="2"), names=("demo:1",))
    place = tmp_path / "out.tar"
    write_output(
        store, made, f"type={kind},dest={place}", names=made.names, compression=compression
    )
    with Store.open(tmp_path / "other") as other:
        (loaded,) = load(other, place)
        assert (loaded.digest, loaded.names) == (made.digest, ("demo:1",))
        assert [other.layer(one) is not None for one in loaded.layers] == [True, True]
        assert other.check() == []
        again = load(other, place, names=["more:1"])
        assert again[0].names == ("demo:1", "more:1")


def test_a_layout_of_several_images_gives_them_all(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "layout"
    for number in range(3):
        made = image(store, layer(store, a=str(number)), names=(f"n:{number}",))
        write_output(store, made, f"type=oci,dest={place}", names=made.names)
    with Store.open(tmp_path / "other") as other:
        assert sorted(one.names[0] for one in load(other, place)) == ["n:0", "n:1", "n:2"]
        with pytest.raises(UsageError, match="3 images"):
            load(other, place, names=["one:1"])


def test_a_damaged_archive_puts_nothing_into_the_store(store: Store, tmp_path: Path) -> None:
    made = image(store, layer(store, a="1" * 5000))
    place = tmp_path / "out.tar"
    write_output(store, made, f"type=docker,dest={place}")
    data = place.read_bytes()
    place.write_bytes(data.replace(b"1" * 4000, b"2" * 4000))
    with Store.open(tmp_path / "other") as other:
        with pytest.raises(ChecksumError):
            load(other, place)
        assert other.images() == []
        assert other.layer(made.layers[0]) is None


@pytest.mark.parametrize("content", [b"", b"no tar", b"\x1f\x8b damaged"])
def test_what_is_no_archive_is_said(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(OutsideError):
        load(store, tmp_path / "x.tar")


def test_an_archive_that_reaches_out_is_refused(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        tar.addfile(info)
    with pytest.raises(OutsideError):
        load(store, tmp_path / "x.tar")


@pytest.mark.parametrize("name", ["missing.tar", "empty"])
def test_what_is_not_there_is_said(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises((UsageError, OutsideError)):
        load(store, tmp_path / name)
