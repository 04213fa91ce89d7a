"""Trees with every kind of file: created from a description, and described again."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st

Kind = Literal["file", "dir", "link", "fifo", "gone", "same"]


@dataclass(frozen=True)
class TreeNode:
    kind: Kind
    content: bytes = b""
    target: bytes = b""
    mode: int = 0o644
    mtime: int = 1_700_000_000
    uid: int = 0
    gid: int = 0
    opaque: bool = False
    xattrs: tuple[tuple[str, bytes], ...] = ()
    children: Mapping[bytes, TreeNode] = field(default_factory=dict)


def make(root: Path, children: Mapping[bytes, TreeNode]) -> None:
    """Make ``children`` below ``root``; a ``same`` node is a hard link to the file before it."""
    _make_nodes(os.fsencode(root), children, [])


def _make_nodes(place: bytes, children: Mapping[bytes, TreeNode], files: list[bytes]) -> None:
    for name, node in sorted(children.items()):
        path = place + b"/" + name
        if node.kind == "dir":
            os.mkdir(path)
            _make_nodes(path, node.children, files)
            if node.opaque:
                os.setxattr(path, "user.overlay.opaque", b"y")
        elif node.kind == "file" or (node.kind == "same" and not files):
            with open(path, "wb") as file:
                file.write(node.content)
            files.append(path)
        elif node.kind == "same":
            os.link(files[-1], path)
            continue
        elif node.kind == "link":
            os.symlink(node.target, path)
        elif node.kind == "fifo":
            os.mkfifo(path)
        else:
            os.mknod(path, stat.S_IFCHR, 0)
            continue
        if os.geteuid() == 0:
            os.chown(path, node.uid, node.gid, follow_symlinks=False)
        if node.kind != "link":
            os.chmod(path, node.mode)
        if node.kind in ("file", "same", "dir"):
            for key, value in node.xattrs:
                os.setxattr(path, key, value)
        os.utime(path, (node.mtime, node.mtime), follow_symlinks=False)


def describe(root: Path) -> dict[str, object]:
    """Everything of the tree that a layer keeps, hard links as equal numbers."""
    results: dict[str, object] = {}
    numbers: dict[tuple[int, int], int] = {}
    top = os.fsencode(root)
    for directory, directories, files in os.walk(top):
        directories.sort()
        for name in sorted(directories + files):
            path = directory + b"/" + name
            results[os.fsdecode(path[len(top) + 1 :])] = _describe_node(path, numbers)
    return results


def _describe_node(path: bytes, numbers: dict[tuple[int, int], int]) -> object:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFCHR and status.st_rdev == 0:
        return "gone"
    common: tuple[object, ...] = (status.st_mode, status.st_uid, status.st_gid)
    common += (status.st_mtime_ns // 1_000_000_000,)
    if kind == stat.S_IFLNK:
        return (*common, os.readlink(path))
    if kind == stat.S_IFDIR or kind == stat.S_IFREG:
        common += (tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))),)
    if kind == stat.S_IFREG:
        number = numbers.setdefault((status.st_dev, status.st_ino), len(numbers))
        with open(path, "rb") as file:
            return (*common, file.read(), number if status.st_nlink > 1 else -1)
    return common


def names() -> st.SearchStrategy[bytes]:
    """File names: short, very long, not ASCII, not even UTF-8."""
    character = st.integers(1, 255).filter(lambda code: code != 0x2F)
    anything = st.lists(character, min_size=1, max_size=12).map(bytes)
    ordinary = st.text("ab.-_ é丹", min_size=1, max_size=5).map(lambda name: name.encode())
    long = st.integers(60, 250).map(lambda length: b"n" * length)
    return st.one_of(ordinary, anything, long).filter(
        lambda name: name not in (b".", b"..") and not name.startswith(b".wh.")
    )


_times = st.one_of(st.integers(0, 1 << 33), st.integers(-1000, 0))
_owners = st.sampled_from([0, 1, 1000, 65534, 3_000_000])
_attributes = st.lists(
    st.tuples(st.sampled_from(["user.a", "user.é.b"]), st.binary(max_size=40)),
    max_size=2,
    unique_by=lambda entry: entry[0],
).map(tuple)


def nodes(depth: int = 3) -> st.SearchStrategy[TreeNode]:
    """Any node, directories up to ``depth``."""
    modes = st.sampled_from([0o644, 0o755, 0o600, 0o4755, 0o2755, 0o1777, 0o000])
    file = st.builds(
        TreeNode,
        kind=st.just("file"),
        content=st.one_of(st.binary(max_size=1100), st.sampled_from([b"x" * 512, b"y" * 70000])),
        mode=modes,
        mtime=_times,
        uid=_owners,
        gid=_owners,
        xattrs=_attributes,
    )
    target = st.binary(min_size=1, max_size=150).filter(lambda path: b"\0" not in path)
    link = st.builds(TreeNode, kind=st.just("link"), target=target, mtime=_times, uid=_owners)
    plain = st.sampled_from([TreeNode("gone"), TreeNode("same"), TreeNode("fifo", mode=0o600)])
    if not depth:
        return st.one_of(file, link, plain)
    directory = st.builds(
        TreeNode,
        kind=st.just("dir"),
        mode=modes,
        mtime=_times,
        gid=_owners,
        opaque=st.booleans(),
        xattrs=_attributes,
        children=child_trees(depth - 1),
    )
    return st.one_of(file, link, plain, directory)


def child_trees(depth: int = 3) -> st.SearchStrategy[Mapping[bytes, TreeNode]]:
    """The content of a directory."""
    return st.dictionaries(names(), nodes(depth), max_size=5)
