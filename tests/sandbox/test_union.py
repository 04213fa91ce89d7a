from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.sandbox import scaffold, users
from danlu.sandbox.scaffold import MountPoint
from danlu.sandbox.union import Union
from tests.sandbox.trees import GONE, write


def stack(tmp_path: Path, *below: dict[str, object]) -> Union:
    return Union([write(tmp_path / f"l{number}", tree) for number, tree in enumerate(below)])


def text(union: Union, target: str) -> str | None:
    data = union.read(target)
    return None if data is None else data.decode()


def test_the_topmost_file_wins_and_deletions_hide(tmp_path: Path) -> None:
    union = stack(tmp_path, {"a": "1", "d/x": "x", "d/y": "y"}, {"a": "2", "d/x": GONE})
    assert text(union, "/a") == "2"
    assert text(union, "/d/x") is None
    assert text(union, "/d/y") == "y"


def test_an_opaque_directory_hides_what_is_below(tmp_path: Path) -> None:
    union = stack(tmp_path, {"d/x": "x"}, {"d/": "opaque", "d/y": "y"})
    assert (text(union, "/d/x"), text(union, "/d/y")) == (None, "y")


def test_a_file_over_a_directory_hides_it_and_the_other_way_round(tmp_path: Path) -> None:
    union = stack(tmp_path, {"d/x": "x", "f": "1"}, {"d": "file", "f/": ""}, {"f/y": "y"})
    assert text(union, "/d") == "file"
    assert text(union, "/d/x") is None
    assert text(union, "/f/y") == "y"


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    union = stack(
        tmp_path,
        {"etc/host": "->../../../../etc/name", "etc/name": "mine", "abs": "->/etc", "up": "->.."},
    )
    assert text(union, "/etc/host") == "mine"
    assert text(union, "/abs/name") == "mine"
    assert text(union, "/up/up/etc/name") == "mine"


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="symbolic links"):
        stack(tmp_path, {"a": "->b", "b": "->a"}).resolve("/a/x")


def test_mount_points_that_exist_need_no_layer(tmp_path: Path) -> None:
    union = stack(tmp_path, {"proc/": "", "etc/hosts": ""})
    layer = tmp_path / "points"
    layer.mkdir()
    points = [MountPoint("/proc", True), MountPoint("/etc/hosts", False), MountPoint("/", True)]
    assert not scaffold.build(union, points, layer)
    assert list(layer.iterdir()) == []


def test_missing_mount_points_repeat_their_parents(tmp_path: Path) -> None:
    union = stack(tmp_path, {"etc/x": "", "run/": "", "var/run": "->/run"})
    os.chmod(tmp_path / "l0/run", 0o1777)
    layer = tmp_path / "points"
    layer.mkdir()
    points = [
        MountPoint("/etc/hosts", False),
        MountPoint("/var/run/deep/one", True),
        MountPoint("/run/deep/two", False),
        MountPoint("/run/deep/two", False),
    ]
    assert scaffold.build(union, points, layer)
    found = sorted(str(path.relative_to(layer)) for path in layer.rglob("*"))
    assert found == ["etc", "etc/hosts", "run", "run/deep", "run/deep/one", "run/deep/two"]
    assert (layer / "run").stat().st_mode & 0o7777 == 0o1777


PASSWD = "root:x:0:0::/root:/bin/sh\nworker:x:1000:1001::/home/worker:/bin/sh\nbad line\n"
GROUP = "root:x:0:\nworker:x:1001:\ndocker:x:50:other,worker\n"


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("", users.User(0, 0, (), "/root")),
        ("worker", users.User(1000, 1001, (50,), "/home/worker")),
        ("1000", users.User(1000, 1001, (50,), "/home/worker")),
        ("worker:docker", users.User(1000, 50, (), "/home/worker")),
        ("7:8", users.User(7, 8, (), "/")),
    ],
)
def test_users_are_those_of_the_root(tmp_path: Path, name: str, user: users.User) -> None:
    union = stack(tmp_path, {"etc/passwd": PASSWD, "etc/group": GROUP})
    assert users.find(union, name) == user


@pytest.mark.parametrize("name", ["nobody", "worker:nobody", "99999999999", "-1"])
def test_an_unknown_user_is_told(tmp_path: Path, name: str) -> None:
    union = stack(tmp_path, {"etc/passwd": PASSWD, "etc/group": GROUP})
    with pytest.raises(UsageError):
        users.find(union, name)
