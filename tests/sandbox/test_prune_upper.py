"""What a layer can omit because the layers below contain it already."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.oci.overlay import is_opaque
from danlu.sandbox.finalize_upper import prune_upper
from tests.sandbox.trees import GONE, read, write

EPOCH = 1_700_000_000


def set_times(tree: Path, seconds: int = EPOCH) -> None:
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (seconds, seconds), follow_symlinks=False)


@pytest.fixture
def below(tmp_path: Path) -> list[Path]:
    """Two layers with times after the epoch, as a new layer may have."""
    first = {"etc/a": "1", "etc/b": "2", "link": "->etc/a", "usr/lib/deep/x": "x", "hidden": "h"}
    second = {"etc/b": "two", "hidden": GONE}
    layers = [write(tmp_path / "l0", first), write(tmp_path / "l1", second)]
    for layer in layers:
        set_times(layer, EPOCH + 1000)
    return layers


def prune_entries(tmp_path: Path, below: list[Path], entries: dict[str, object]) -> dict[str, str]:
    upper = write(tmp_path / "upper", entries)
    set_times(upper)
    prune_upper(upper, below, epoch=EPOCH)
    return read(upper)


def names(tmp_path: Path, below: list[Path], entries: dict[str, object]) -> list[str]:
    return list(prune_entries(tmp_path, below, entries))


def test_unchanged_entries_and_directories_are_removed(tmp_path: Path, below: list[Path]) -> None:
    same = {"etc/a": "1", "etc/b": "two", "link": "->etc/a", "usr/lib/deep/x": "x"}
    assert names(tmp_path, below, {**same}) == []


@pytest.mark.parametrize("change", ["content", "mode", "time", "owner", "attribute", "kind"])
def test_entries_that_differ_in_any_way_are_kept(
    tmp_path: Path, below: list[Path], change: str
) -> None:
    upper = write(tmp_path / "upper", {"etc/a": "2" if change == "content" else "1"})
    set_times(upper)
    directory = upper / "etc/a"
    if change == "mode":
        directory.chmod(0o600)
    elif change == "time":
        os.utime(directory, (1, 1))
    elif change == "owner":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.chown(directory, 7, 7)
    elif change == "attribute":
        os.setxattr(directory, "user.mine", b"1")
    elif change == "kind":
        directory.unlink()
        directory.symlink_to("b")
    prune_upper(upper, below, epoch=EPOCH)
    assert list(read(upper)) == ["etc", "etc/a"]


def test_only_the_topmost_layer_is_compared(tmp_path: Path, below: list[Path]) -> None:
    assert names(tmp_path, below, {"etc/b": "2", "hidden": "h"}) == ["etc", "etc/b", "hidden"]


def test_whiteout_of_nothing_is_removed(tmp_path: Path, below: list[Path]) -> None:
    entries = {"etc/a": GONE, "etc/none": GONE, "hidden": GONE, "new/": "", "new/x": GONE}
    assert names(tmp_path, below, {**entries}) == ["etc", "etc/a", "new"]


def test_opaque_mark_becomes_whiteouts_of_what_it_hides(tmp_path: Path, below: list[Path]) -> None:
    entries = {"etc/": "opaque", "etc/a": "changed", "new/": "opaque", "new/in/": "opaque"}
    result = prune_entries(tmp_path, below, {**entries})
    assert result["etc/b"] == "gone"
    assert list(result) == ["etc", "etc/a", "etc/b", "new", "new/in"]
    assert not any("opaque" in result[name] for name in ("etc", "new", "new/in"))
    assert not is_opaque(str(tmp_path / "upper/etc"))


def test_identically_recreated_directory_is_not_a_change(tmp_path: Path, below: list[Path]) -> None:
    """A subdirectory of an opaque directory hides the lower one, too."""
    entries = {"etc/": "opaque", "etc/a": "1", "etc/b": "2"}
    assert "etc/a" not in names(tmp_path, below, {**entries})


def test_directory_of_an_opaque_one_hides_what_is_below_it(
    tmp_path: Path, below: list[Path]
) -> None:
    entries = {"usr/": "opaque", "usr/lib/": "", "usr/lib/y": "new"}
    result = prune_entries(tmp_path, below, {**entries})
    assert list(result) == ["usr", "usr/lib", "usr/lib/deep", "usr/lib/y"]
    assert result["usr/lib/deep"] == "gone"


def test_another_file_at_the_same_place_is_compared_again(
    tmp_path: Path, below: list[Path]
) -> None:
    assert names(tmp_path, below, {"etc/a": "1"}) == []
    assert names(tmp_path, below, {"etc/a": "2"}) == ["etc", "etc/a"]


def test_time_of_a_directory_is_not_a_change(tmp_path: Path, below: list[Path]) -> None:
    upper = write(tmp_path / "upper", {"etc/": ""})
    set_times(upper, 1000)
    prune_upper(upper, below, epoch=EPOCH)
    assert list(read(upper)) == []


def test_hard_links_of_a_new_file_are_kept(tmp_path: Path, below: list[Path]) -> None:
    upper = write(tmp_path / "upper", {"etc/a": "1"})
    os.link(upper / "etc/a", upper / "etc/again")
    set_times(upper)
    prune_upper(upper, below, epoch=EPOCH)
    assert list(read(upper)) == ["etc", "etc/a", "etc/again"]


def test_the_times_of_directories_are_kept(tmp_path: Path, below: list[Path]) -> None:
    upper = write(tmp_path / "upper", {"etc/a": "1", "etc/new": "n", "gone/x": GONE})
    set_times(upper, 1000)
    set_times(upper / "etc/a")
    prune_upper(upper, below, epoch=EPOCH)
    assert list(read(upper)) == ["etc", "etc/new", "gone"]
    assert [(upper / name).stat().st_mtime for name in ("", "etc", "gone")] == [1000] * 3


def test_lower_layers_are_not_read_through_links(tmp_path: Path, below: list[Path]) -> None:
    assert names(tmp_path, below, {"link/": "", "link/a": "1"}) == ["link", "link/a"]
