"""Images of a store: find, tag, remove, compare, save and load."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from danlu.engine.settings import load_settings
from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.image import file_trees
from danlu.image.diff import compare_files, compare_images
from danlu.image.export import parse_output, push_names, write_output
from danlu.image.load import load_images
from danlu.image.manage import (
    find_image,
    list_layers,
    normalize_name,
    remove_images,
    summarize_image,
    tag_image,
)
from danlu.image.platforms import find_other_platforms, tag_platforms
from danlu.oci.image import make_image
from danlu.oci.layout import read_layout
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sandbox.emulation import host_platform, read_image_platform
from danlu.store import Layer, Store, StoredImage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


def layer(store: Store, **files: str) -> Layer:
    """Return a layer with these files; ``-`` deletes a file and ``->x`` links to x."""
    normalise = NormalizeOptions(mtime=1)
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


def image(
    store: Store,
    *layers: Layer,
    names: tuple[str, ...] = (),
    user: str = "",
    architecture: str = "amd64",
) -> StoredImage:
    described = [(layer.diff_id, layer.created_by) for layer in layers]
    result = make_image(described, architecture=architecture, user=user)
    return store.put_image(result.config, result.diff_ids, names=names, metadata={})


def test_find_image_by_name_digest_and_prefix(store: Store) -> None:
    result = image(store, layer(store, a="1"), names=("demo:latest",))
    for text in (
        "demo",
        "demo:latest",
        result.digest,
        result.digest[7:19],
        "docker.io/library/demo",
    ):
        assert find_image(store, text).digest == result.digest


@pytest.fixture
def platforms(store: Store) -> tuple[StoredImage, StoredImage]:
    """The same image for this machine, and for another processor."""
    own = host_platform().architecture
    other = "amd64" if own == "arm64" else "arm64"
    only = layer(store, a="1")
    return image(store, only, architecture=own), image(store, only, architecture=other)


def test_name_of_several_platforms_is_that_of_this_machine(
    store: Store, platforms: tuple[StoredImage, StoredImage]
) -> None:
    own, other = platforms
    tag_platforms(store, "demo:1", [other, own])
    name = f"demo:1@{read_image_platform(other.config)}"
    assert find_image(store, "demo:1").digest == own.digest
    assert find_image(store, name).digest == other.digest
    assert [result.digest for result in find_other_platforms(store, "demo:1")] == [other.digest]
    tag_image(store, "demo:1", "copy:2")
    assert [found.digest for found in find_other_platforms(store, "copy:2")] == [other.digest]
    assert remove_images(store, ["copy:2"]).names == ("copy:2", name.replace("demo:1", "copy:2"))
    assert store.image("demo:1")


def test_name_that_moves_to_another_image_loses_its_platforms(
    store: Store, platforms: tuple[StoredImage, StoredImage]
) -> None:
    own, other = platforms
    tag_platforms(store, "demo:1", [own, other])
    tag_platforms(store, "demo:1", [image(store, layer(store, b="2"))])
    assert find_other_platforms(store, "demo:1") == ()


def test_layout_of_several_platforms_has_an_index(
    store: Store, platforms: tuple[StoredImage, StoredImage], tmp_path: Path
) -> None:
    own, other = platforms
    directory = tmp_path / "layout"
    output = f"type=oci,dest={directory}"
    digest, _ = write_output(store, own, output, names=["demo:1"], others=[other])
    (entry,) = json.loads((directory / "index.json").read_text())["manifests"]
    assert entry["digest"] == digest
    index = json.loads((directory / "blobs/sha256" / digest[7:]).read_text())
    assert [manifest["platform"]["architecture"] for manifest in index["manifests"]] == [
        read_image_platform(result.config).architecture for result in platforms
    ]
    assert {loaded.image.config for loaded in read_layout(directory)} == {own.config, other.config}


@pytest.mark.parametrize("kind", ["docker", "tar", "dockerfile"])
def test_output_that_holds_one_platform_refuses_several(
    store: Store, platforms: tuple[StoredImage, StoredImage], tmp_path: Path, kind: str
) -> None:
    own, other = platforms
    with pytest.raises(UsageError, match="holds one platform"):
        write_output(store, own, f"type={kind},dest={tmp_path}/out", others=[other])
    assert not (tmp_path / "out").exists()


def test_missing_image_suggests_the_nearest_name(store: Store) -> None:
    image(store, layer(store, a="1"), names=("demo:latest",))
    with pytest.raises(UsageError) as caught:
        find_image(store, "dmeo")
    assert caught.value.hint == "did you mean demo:latest?"


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "x@sha256:12", "-x", "a:b:c", "é"])
def test_invalid_image_name_is_an_error(store: Store, text: str) -> None:
    result = image(store, layer(store, a="1"))
    with pytest.raises(UsageError):
        tag_image(store, result.digest, text)


def test_image_names_are_normalized() -> None:
    assert normalize_name("demo") == "demo:latest"
    assert normalize_name("localhost:5000/demo:1") == "localhost:5000/demo:1"


def test_tag_moves_a_name(store: Store) -> None:
    one = image(store, layer(store, a="1"), names=("demo:latest",))
    two = image(store, layer(store, a="2"))
    assert tag_image(store, two.digest, "demo") == "demo:latest"
    assert find_image(store, "demo").digest == two.digest
    assert find_image(store, one.digest).names == ()


def test_removing_one_of_two_names_keeps_the_image(store: Store) -> None:
    result = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove_images(store, ["a:1"])
    assert (removed.names, removed.images) == (("a:1",), ())
    assert find_image(store, "b:1").digest == result.digest
    assert remove_images(store, ["b:1"]).images == (result.digest,)


def test_removing_by_digest_takes_all_names(store: Store) -> None:
    result = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove_images(store, [result.digest])
    assert (removed.names, removed.images) == (("a:1", "b:1"), (result.digest,))
    assert store.images() == []


def test_removing_both_names_together_removes_the_image_once(store: Store) -> None:
    result = image(store, layer(store, a="1"), names=("a:1", "b:1"))
    removed = remove_images(store, ["a:1", "b:1", result.digest])
    assert removed.images == (result.digest,)
    assert removed.names == ("a:1", "b:1")


def test_nothing_is_removed_if_one_name_is_unknown(store: Store) -> None:
    image(store, layer(store, a="1"), names=("a:1",))
    with pytest.raises(UsageError):
        remove_images(store, ["a:1", "missing"])
    assert find_image(store, "a:1")


def test_layers_have_size_and_origin(store: Store) -> None:
    one, two = layer(store, a="1"), layer(store, b="22")
    layers = list_layers(store, image(store, one, two))
    assert [(each.size, each.created_by) for each in layers] == [
        (one.size, one.created_by),
        (two.size, two.created_by),
    ]
    assert summarize_image(store, image(store, one, two))["size"] == one.size + two.size


def test_image_does_not_differ_from_itself(store: Store) -> None:
    result = image(store, layer(store, a="1"))
    assert compare_images(store, result, result).same
    assert list(compare_files(store, result, result)) == []


def test_diff_lists_layers_and_settings(store: Store) -> None:
    base, old, new = layer(store, a="1"), layer(store, b="1"), layer(store, b="2")
    result = compare_images(
        store, image(store, base, old), image(store, base, new, user="1000:1000")
    )
    assert [entry.diff_id for entry in result.removed] == [old.diff_id]
    assert [entry.diff_id for entry in result.added] == [new.diff_id]
    assert result.common == 1
    assert result.settings == (("User", "", "1000:1000"),)
    assert not result.same


def test_reordered_layers_differ(store: Store) -> None:
    one, two = layer(store, a="1"), layer(store, a="2")
    assert not compare_images(store, image(store, one, two), image(store, two, one)).same


@pytest.mark.skipif(os.geteuid() != 0, reason="makes deletions, which are devices")
def test_diff_compares_files_of_the_merged_layers(store: Store) -> None:
    base = layer(store, same="1", changed="old", gone="x", d__inner="y", link="->same")
    old = image(store, base)
    new = image(
        store,
        base,
        layer(store, changed="new!", gone="-", d="-", added="z", link="->changed", same="1"),
    )
    changes = {entry.path: entry.kind for entry in compare_files(store, old, new)}
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
def test_image_round_trips_through_save_and_load(
    store: Store, tmp_path: Path, kind: str, compression: str
) -> None:
    result = image(store, layer(store, a="1"), layer(store, b__c="2"), names=("demo:1",))
    path = tmp_path / "out.tar"
    write_output(
        store, result, f"type={kind},dest={path}", names=result.names, compression=compression
    )
    with Store.open(tmp_path / "other") as other:
        (loaded,) = load_images(other, path)
        assert (loaded.digest, loaded.names) == (result.digest, ("demo:1",))
        assert [other.layer(layer) is not None for layer in loaded.layers] == [True, True]
        assert other.check() == []
        again = load_images(other, path, names=["more:1"])
        assert again[0].names == ("demo:1", "more:1")


def test_an_image_with_editable_packages_cannot_be_exported(store: Store, tmp_path: Path) -> None:
    result = image(store, layer(store, a="1"))
    editable = msgspec.structs.replace(result, metadata={"editable": "mine, yours"})
    path = tmp_path / "out.tar"
    with pytest.raises(UsageError, match="mine, yours is installed with -e"):
        write_output(store, editable, f"type=docker,dest={path}")
    with pytest.raises(UsageError, match="works only with its project"):
        push_names(store, editable, ["h/n:1"], settings=load_settings(), progress=print)
    assert not path.exists()


def test_load_reads_every_image_of_a_layout(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "layout"
    for number in range(3):
        result = image(store, layer(store, a=str(number)), names=(f"n:{number}",))
        write_output(store, result, f"type=oci,dest={directory}", names=result.names)
    with Store.open(tmp_path / "other") as other:
        assert sorted(entry.names[0] for entry in load_images(other, directory)) == [
            "n:0",
            "n:1",
            "n:2",
        ]
        with pytest.raises(UsageError, match="3 images"):
            load_images(other, directory, names=["one:1"])


def test_damaged_archive_loads_nothing(store: Store, tmp_path: Path) -> None:
    result = image(store, layer(store, a="1" * 5000))
    path = tmp_path / "out.tar"
    write_output(store, result, f"type=docker,dest={path}")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"1" * 4000, b"2" * 4000))
    with Store.open(tmp_path / "other") as other:
        with pytest.raises(ChecksumError):
            load_images(other, path)
        assert other.images() == []
        assert other.layer(result.layers[0]) is None


@pytest.mark.parametrize("content", [b"", b"no tar", b"\x1f\x8b damaged"])
def test_load_rejects_files_that_are_not_archives(
    store: Store, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(OutsideError):
        load_images(store, tmp_path / "x.tar")


def test_load_rejects_paths_outside_the_archive(store: Store, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        tar.addfile(info)
    with pytest.raises(OutsideError):
        load_images(store, tmp_path / "x.tar")


@pytest.mark.parametrize("name", ["missing.tar", "empty"])
def test_load_reports_a_missing_file(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises((UsageError, OutsideError)):
        load_images(store, tmp_path / name)


def test_archive_of_all_files_has_the_merged_view_of_the_image(
    store: Store, tmp_path: Path
) -> None:
    below = layer(store, etc__a="1", etc__b="1", etc__gone="1", old__x="1")
    above = layer(store, etc__b="2", etc__gone="-", old="-", new="->etc/b")
    write_output(store, image(store, below, above), f"type=tar,dest={tmp_path}/root.tar")
    with tarfile.open(tmp_path / "root.tar") as archive:
        assert archive.getnames() == ["etc", "etc/a", "etc/b", "new"]
        content = archive.extractfile("etc/b")
        assert content is not None
        assert content.read() == b"2"


def test_other_names_of_a_replaced_file_keep_its_content(store: Store, tmp_path: Path) -> None:
    normalise = NormalizeOptions(mtime=1)
    with store.staging() as staged:
        root = staged / "tree"
        root.mkdir()
        (root / "a").write_text("one")
        os.link(root / "a", root / "b")
        os.link(root / "a", root / "c")
        summary = write_layer(root, None, normalise=normalise)
        below = store.commit_layer(root, summary, created_by="x", normalise=normalise)
    write_output(
        store, image(store, below, layer(store, a="two")), f"type=tar,dest={tmp_path}/root.tar"
    )
    with tarfile.open(tmp_path / "root.tar") as archive:
        archive.extractall(tmp_path / "root")
    results = {path.name: path.read_text() for path in (tmp_path / "root").iterdir()}
    assert results == {"a": "two", "b": "one", "c": "one"}
    assert os.path.samefile(tmp_path / "root/b", tmp_path / "root/c")


def test_dockerfile_adds_each_layer_and_removes_whiteouts(store: Store, tmp_path: Path) -> None:
    below, above = layer(store, etc__a="1", gone="1"), layer(store, gone="-", new="2")
    directory = tmp_path / "context"
    write_output(
        store, image(store, below, above, user="1000"), f"type=dockerfile,dest={directory}"
    )
    instructions = [
        line for line in (directory / "Dockerfile").read_text().splitlines() if line[0] != "#"
    ]
    assert instructions == [
        "FROM scratch",
        f"ADD layers/{below.diff_id[7:]}.tar /",
        'RUN ["/bin/rm", "-rf", "--", "/gone"]',
        f"ADD layers/{above.diff_id[7:]}.tar /",
        "USER 1000",
    ]
    with tarfile.open(directory / f"layers/{above.diff_id[7:]}.tar") as archive:
        assert archive.getnames() == ["new"]


def test_interrupted_dockerfile_is_completed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    below, above = layer(store, a="1"), layer(store, b="2")
    output = f"type=dockerfile,dest={tmp_path}/context"
    with monkeypatch.context() as patch:
        patch.setattr(file_trees, "_render_config", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_output(store, image(store, below), output)
    write_output(store, image(store, below, above), output)
    names = sorted(os.listdir(tmp_path / "context/layers"))
    assert names == sorted(f"{item.diff_id[7:]}.tar" for item in (below, above))


def test_dockerfile_is_not_written_among_other_files(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        write_output(store, image(store, layer(store, a="1")), f"type=dockerfile,dest={tmp_path}")


@pytest.mark.parametrize("kind", ["docker", "tar"])
def test_pipes_and_directories_are_not_replaced_by_an_archive(tmp_path: Path, kind: str) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for place, message in (
        (pipe, "not a regular file"),
        (link, "not a regular file"),
        (Path("-"), "not a regular file"),
        (tmp_path, "is a directory"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_output(f"type={kind},dest={place}")


def test_an_archive_goes_where_a_link_leads(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("out.tar")
    result = image(store, layer(store, a="1"))
    write_output(store, result, f"type=docker,dest={tmp_path}/link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out.tar").is_file()
