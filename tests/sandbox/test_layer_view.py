from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.sandbox import users
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import MountPoint, create_mount_points
from tests.sandbox.trees import GONE, write


def stack(tmp_path: Path, *below: dict[str, object]) -> LayerView:
    return LayerView([write(tmp_path / f"l{number}", tree) for number, tree in enumerate(below)])


def text(view: LayerView, target: str) -> str | None:
    data = view.read(target)
    return None if data is None else data.decode()


def test_topmost_file_wins_and_whiteouts_hide(tmp_path: Path) -> None:
    view = stack(tmp_path, {"a": "1", "d/x": "x", "d/y": "y"}, {"a": "2", "d/x": GONE})
    assert text(view, "/a") == "2"
    assert text(view, "/d/x") is None
    assert text(view, "/d/y") == "y"


def test_opaque_directory_hides_what_is_below(tmp_path: Path) -> None:
    view = stack(tmp_path, {"d/x": "x"}, {"d/": "opaque", "d/y": "y"})
    assert (text(view, "/d/x"), text(view, "/d/y")) == (None, "y")


def test_file_over_a_directory_hides_it_and_vice_versa(tmp_path: Path) -> None:
    view = stack(tmp_path, {"d/x": "x", "f": "1"}, {"d": "file", "f/": ""}, {"f/y": "y"})
    assert text(view, "/d") == "file"
    assert text(view, "/d/x") is None
    assert text(view, "/f/y") == "y"
    assert view.entry(("f",)) == str(tmp_path / "l2/f")


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    view = stack(
        tmp_path,
        {"etc/host": "->../../../../etc/name", "etc/name": "mine", "abs": "->/etc", "up": "->.."},
    )
    assert text(view, "/etc/host") == "mine"
    assert text(view, "/abs/name") == "mine"
    assert text(view, "/up/up/etc/name") == "mine"


def test_only_files_can_be_read_without_waiting(tmp_path: Path) -> None:
    view = stack(
        tmp_path,
        {
            "file": "x",
            "link": "->/file",
            "device": "->/dev/zero",
            "dangling": "->nowhere",
            "d/": "",
        },
    )
    os.mkfifo(tmp_path / "l0" / "pipe")
    (tmp_path / "l0" / "to-pipe").symlink_to("/pipe")
    names = (
        "file",
        "link",
        "missing",
        "missing/file",
        "pipe",
        "to-pipe",
        "device",
        "dangling",
        "d",
    )
    blocking = [name for name in names if view.blocks_reading(f"/{name}")]
    assert blocking == ["pipe", "to-pipe", "device", "dangling", "d"]


def test_symlink_loop_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="symbolic links"):
        stack(tmp_path, {"a": "->b", "b": "->a"}).resolve("/a/x")


def test_mount_points_that_exist_need_no_layer(tmp_path: Path) -> None:
    view = stack(tmp_path, {"proc/": "", "etc/hosts": ""})
    layer = tmp_path / "points"
    layer.mkdir()
    points = [MountPoint("/proc", True), MountPoint("/etc/hosts", False), MountPoint("/", True)]
    assert not create_mount_points(view, points, layer)
    assert list(layer.iterdir()) == []


def test_missing_mount_points_copy_their_parents_metadata(tmp_path: Path) -> None:
    view = stack(tmp_path, {"etc/x": "", "run/": "", "var/run": "->/run"})
    os.chmod(tmp_path / "l0/run", 0o1777)
    os.setxattr(tmp_path / "l0/run", "user.note", b"x")
    layer = tmp_path / "points"
    layer.mkdir()
    points = [
        MountPoint("/etc/hosts", False),
        MountPoint("/var/run/deep/one", True),
        MountPoint("/run/deep/two", False),
        MountPoint("/run/deep/two", False),
    ]
    assert create_mount_points(view, points, layer)
    result = sorted(str(path.relative_to(layer)) for path in layer.rglob("*"))
    assert result == ["etc", "etc/hosts", "run", "run/deep", "run/deep/one", "run/deep/two"]
    assert (layer / "run").stat().st_mode & 0o7777 == 0o1777
    assert os.listxattr(layer / "run") == ["user.note"]


PASSWD = """\
root:x:0:0::/root:/bin/sh
worker:x:1000:1001::/home/worker:/bin/sh
bad line
broken:x:7:many::/:/bin/sh
"""
GROUP = "root:x:0:\nworker:x:1001:\ndocker:x:50:other,worker\n"


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("", users.ResolvedUser(0, 0, (), "/root")),
        ("worker", users.ResolvedUser(1000, 1001, (50,), "/home/worker")),
        ("1000", users.ResolvedUser(1000, 1001, (50,), "/home/worker")),
        ("worker:docker", users.ResolvedUser(1000, 50, (), "/home/worker")),
        ("7:8", users.ResolvedUser(7, 8, (), "/")),
    ],
)
def test_users_are_looked_up_in_the_root(
    tmp_path: Path, name: str, user: users.ResolvedUser
) -> None:
    view = stack(tmp_path, {"etc/passwd": PASSWD, "etc/group": GROUP})
    assert users.find_user(view, name) == user


@pytest.mark.parametrize("name", ["nobody", "worker:nobody", "99999999999", "-1", "broken"])
def test_unknown_user_is_rejected(tmp_path: Path, name: str) -> None:
    view = stack(tmp_path, {"etc/passwd": PASSWD, "etc/group": GROUP})
    with pytest.raises(UsageError):
        users.find_user(view, name)
