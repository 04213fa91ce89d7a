from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings

from danlu.errors import UsageError
from danlu.oci.tar import LayerSummary, NormalizeOptions, extract_layer, write_layer
from tests.oci.trees import TreeNode, child_trees, describe, make

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and owners")

PLAIN = NormalizeOptions()


def tar_of(root: Path, normalise: NormalizeOptions = PLAIN) -> tuple[bytes, LayerSummary]:
    stream = io.BytesIO()
    summary = write_layer(root, stream.write, normalise=normalise)
    return stream.getvalue(), summary


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive.getmembers()}


@needs_root
@settings(deadline=None, max_examples=150)
@given(child_trees())
def test_extracting_a_written_layer_restores_tree_and_digest(
    tree: Mapping[bytes, TreeNode],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory, "1"), Path(directory, "2")
        first.mkdir()
        second.mkdir()
        make(first, tree)
        data, content = tar_of(first)
        read = extract_layer(io.BytesIO(data), second)
        assert describe(second) == describe(first)
        assert read == content
        assert tar_of(second) == (data, content)
        assert content.diff_id == "sha256:" + hashlib.sha256(data).hexdigest()
        assert content.size == len(data)
        assert write_layer(first, None) == content


@needs_root
@settings(deadline=None, max_examples=60)
@given(child_trees())
def test_tarfile_reads_every_name_and_content(tree: Mapping[bytes, TreeNode]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "1")
        root.mkdir()
        make(root, tree)
        data, summary = tar_of(root)
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
            infos = archive.getmembers()
            assert len(infos) == summary.files
            for info in infos:
                path = os.fsencode(root) + b"/" + info.name.encode("utf-8", "surrogateescape")
                if ".wh." in info.name.rpartition("/")[2]:
                    continue
                status = os.lstat(path)
                assert (info.mode, info.uid, info.gid) == (
                    status.st_mode & 0o7777,
                    status.st_uid,
                    status.st_gid,
                )
                if info.isreg():
                    content = archive.extractfile(info)
                    assert content is not None
                    with open(path, "rb") as file:
                        assert content.read() == file.read()


@needs_root
def test_gnu_tar_extracts_our_layers(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    make(
        root,
        {
            b"a": TreeNode("file", content=b"1", xattrs=(("user.x", b"\0y=\n"),), mtime=-5),
            b"b": TreeNode("same"),
            "d\xe9".encode(): TreeNode(
                "dir", children={b"n" * 200: TreeNode("file", uid=3_000_000)}
            ),
            b"l": TreeNode("link", target=b"t" * 300),
            b"p" * 90: TreeNode("dir", children={b"q" * 90: TreeNode("file", content=b"2" * 600)}),
        },
    )
    data, _ = tar_of(root)
    subprocess.run(
        ["tar", "--xattrs", "--numeric-owner", "-xpf", "-", "-C", str(out)],
        input=data,
        check=True,
    )
    assert describe(out) == describe(root)


def test_times_are_clamped_or_replaced(tmp_path: Path) -> None:
    for name, time in (("old", 50), ("new", 500)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))

    def times(normalise: NormalizeOptions) -> dict[str, float]:
        return {
            name: member.mtime for name, member in members(tar_of(tmp_path, normalise)[0]).items()
        }

    assert times(NormalizeOptions()) == {"old": 50, "new": 500}
    assert times(NormalizeOptions(clamp=100)) == {"old": 50, "new": 100}
    assert times(NormalizeOptions(mtime=7)) == {"old": 7, "new": 7}


def test_owners_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "d").mkdir()
    for member in members(tar_of(tmp_path, NormalizeOptions(uid=12, gid=34))[0]).values():
        assert (member.uid, member.gid, member.uname, member.gname) == (12, 34, "", "")


def test_only_a_second_path_inside_the_tree_is_a_hard_link(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "cache").write_text("x")
    os.link(tmp_path / "cache", root / "a")
    linked, _ = tar_of(root)
    (root / "a").unlink()
    (root / "a").write_text("x")
    os.utime(root / "a", ns=(0, (tmp_path / "cache").stat().st_mtime_ns))
    assert tar_of(root)[0] == linked

    os.link(root / "a", root / "b")
    both = members(tar_of(root)[0])
    assert both["a"].isreg()
    assert both["b"].islnk()
    assert both["b"].linkname == "a"


def test_full_disk_at_the_tars_destination_is_not_blamed_on_the_layer(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")

    def write(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_layer(tmp_path, write)


def test_sockets_are_left_out(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "s"))
        assert members(tar_of(tmp_path)[0]) == {}


def test_name_reserved_for_whiteouts_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".wh.x").touch()
    with pytest.raises(UsageError, match=r"/\.wh\.x cannot be part of an image"):
        tar_of(tmp_path)


DEVICE = TreeNode("gone")
ATTRIBUTE = TreeNode("file", xattrs=(("user.overlay.whiteout", b"y"),))


@needs_root
@pytest.mark.parametrize("gone", [DEVICE, ATTRIBUTE], ids=["device", "attribute"])
def test_overlayfs_whiteouts_become_oci_whiteouts(tmp_path: Path, gone: TreeNode) -> None:
    make(tmp_path, {b"d": TreeNode("dir", mode=0o755, opaque=True, children={b"x": gone})})
    os.setxattr(tmp_path, "user.overlay.opaque", b"y")
    result = members(tar_of(tmp_path)[0])
    assert list(result) == [".wh..wh..opq", "d", "d/.wh..wh..opq", "d/.wh.x"]
    assert all(
        member.isreg() and member.size == 0 for name, member in result.items() if ".wh." in name
    )
    assert not any("overlay" in key for member in result.values() for key in member.pax_headers)


def test_both_forms_of_a_whiteout_give_the_same_layer(tmp_path: Path) -> None:
    for name, gone in (("1", DEVICE), ("2", ATTRIBUTE)):
        (tmp_path / name).mkdir()
        inside = {b"x": gone, b"y": TreeNode("file")}
        make(tmp_path / name, {b"d": TreeNode("dir", mode=0o755, children=inside)})
    os.setxattr(tmp_path / "2/d", "user.overlay.opaque", b"x")
    assert tar_of(tmp_path / "2") == tar_of(tmp_path / "1")


def test_file_with_content_is_not_a_whiteout(tmp_path: Path) -> None:
    make(tmp_path, {b"x": TreeNode("file", b"1", xattrs=ATTRIBUTE.xattrs)})
    assert list(members(tar_of(tmp_path)[0])) == ["x"]
