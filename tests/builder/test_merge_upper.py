"""Changes in an upper directory are merged into the tree below."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.sandbox.merge_upper import merge_upper


def fill(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root.mkdir(exist_ok=True)
    return root


def content(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


def test_new_and_changed_files_are_merged(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", same="1", changed="1", sub__same="1")
    upper = fill(tmp_path / "upper", changed="2", sub__new="2", other__new="2")
    merge_upper(upper, tree)
    assert content(tree) == {
        "same": "1", "changed": "2", "sub/same": "1", "sub/new": "2", "other/new": "2",
    }  # fmt: skip


def test_hard_links_are_kept(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", one="1")
    upper = fill(tmp_path / "upper", one="2")
    os.link(upper / "one", upper / "two")
    merge_upper(upper, tree)
    assert (tree / "one").samefile(tree / "two")


def test_files_links_and_directories_replace_each_other(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", a__x="1", b="1", c__x="1")
    upper = fill(tmp_path / "upper", a="2", b__x="2")
    (upper / "c").symlink_to("/etc")
    (tree / "d").symlink_to(tmp_path / "outside")
    fill(tmp_path / "outside", kept="1")
    fill(upper, d__x="2")
    merge_upper(upper, tree)
    assert (tree / "a").read_text() == "2"
    assert (tree / "b" / "x").read_text() == "2"
    assert os.readlink(tree / "c") == "/etc"
    assert not (tree / "d").is_symlink()
    assert content(tmp_path / "outside") == {"kept": "1"}


def test_opaque_directory_hides_the_lower_one(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", sub__old="1")
    upper = fill(tmp_path / "upper", sub__new="2")
    os.setxattr(upper / "sub", "user.overlay.opaque", b"y")
    merge_upper(upper, tree)
    assert content(tree) == {"sub/new": "2"}
    assert os.listxattr(tree / "sub") == []


def test_directory_modes_and_times_are_merged(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", sub__x="1")
    upper = fill(tmp_path / "upper", sub__y="1")
    (upper / "sub").chmod(0o2750)
    os.utime(upper / "sub", (5, 5))
    merge_upper(upper, tree)
    status = (tree / "sub").stat()
    assert (status.st_mode & 0o7777, int(status.st_mtime)) == (0o2750, 5)
