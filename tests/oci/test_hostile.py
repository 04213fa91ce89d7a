"""Hostile archives as image layers: rejected, or extracted below the root and nowhere else."""

from __future__ import annotations

import io
import os
import stat
import struct
from pathlib import Path

import pytest

from danlu.errors import DanluError
from danlu.oci.tar import LayerLimits, extract_layer, extract_with_tar_split
from tests.hostile_archives import (
    CASES,
    SECRET,
    ArchiveEntry,
    ExtractionDirectory,
    HostileArchive,
    find_case,
    tar_of,
)

REFUSED = {
    "parent": "a path that leads outside",
    "parent-of-directory": "a path that leads outside",
    "parent-as-directory": "a path that leads outside",
    "through-parent": "a path that leads outside",
    "through-parent-below": "a path that leads outside",
    "parent-that-stays-inside": "a path that leads outside",
    "absolute": "absolute path",
    "doubly-absolute": "absolute path",
    "empty": "replace its root directory",
    "dot": "replace its root directory",
    "nul": "an invalid file name",
    "long-name": "an invalid file name",
    "long-path": "an invalid file name",
    "deep-path": "directories deep",
    "link-out": "leads outside its root",
    "link-chain-out": "leads outside its root",
    "link-loop": "a symbolic link loop",
    "link-to-itself": "a symbolic link loop",
    "hard-link-out": "a path that leads outside",
    "absolute-hard-link": "absolute path",
    "hard-link-through-link": "leads outside its root",
    "hard-link-to-missing": "which the layer does not contain",
    "hard-link-to-itself": "which the layer does not contain",
    "hard-link-to-directory": "which the layer does not contain",
    "directory-replaced-by-link": "leads outside its root",
    "character-device": "contains a device",
    "block-device": "contains a device",
    "file-below-file": "uses a file as a directory",
    "claims-huge-size": "exceeds the limit of",
    "claims-negative-size": "invalid size -",
    "truncated": "truncated",
    "bomb": "exceeds the limit of",
    "capability-xattr": "invalid value for the extended attribute",
    "whiteout-of-parent": "invalid whiteout",
}
#: Paths that are there afterwards, for cases that are content like any other.
KEPT = {
    "control-characters": {b"a\x1b[2Jb\r\nerror: c"},
    "not-utf8": {b"a\xff\xfeb"},
    "backslashes": {b"..\\..\\outside\\secret"},
    "drive": {b"C:\\outside"},
    "case-collision": {b"Readme", b"README"},
    "trailing-slash-on-file": {b"a"},
    # The root is "/" for links of a layer.
    "absolute-link-out": {b"l", b"outside", b"outside/secret"},
    "link-to-file-out": {b"l"},
    "link-out-alone": {b"l"},
    "link-replaced-by-directory": {b"l", b"l/secret"},
    "file-replaced-by-link": {b"f"},
    "hard-link-to-link": {b"l", b"h"},
    "fifo": {b"pipe"},
    "setuid": {b"su"},
    "unreadable": {b"f"},
    "duplicate": {b"f"},
    "overlay-xattr": {b"f"},
    "user-overlay-xattr": {b"f"},
    "whiteout": {b"gone"},
    "opaque-marker": {b"d"},
}


def paths(root: Path) -> set[bytes]:
    top = os.fsencode(root)
    return {
        os.path.join(directory, name)[len(top) + 1 :]
        for directory, directories, files in os.walk(top)
        for name in directories + files
    }


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("extract", [extract_layer, extract_with_tar_split])
def test_hostile_layer_writes_nothing_outside_its_root(
    tmp_path: Path, case: HostileArchive, extract: object
) -> None:
    pit = ExtractionDirectory(tmp_path)
    limits = LayerLimits(entries=100, size=32 << 20)
    stream = io.BytesIO(tar_of(case))
    if case.name in KEPT:
        extract(stream, pit.root, limits=limits)  # type: ignore[operator]
        assert paths(pit.root) == KEPT[case.name]
    else:
        with pytest.raises(DanluError, match=REFUSED[case.name]) as caught:
            extract(stream, pit.root, limits=limits)  # type: ignore[operator]
        assert str(caught.value).isprintable()
    pit.check_outside_is_intact()
    pit.check_no_secret()


def extract_case(pit: ExtractionDirectory, name: str) -> None:
    extract_layer(io.BytesIO(tar_of(find_case(name))), pit.root)


def test_setuid_bits_of_the_image_are_kept(tmp_path: Path) -> None:
    pit = ExtractionDirectory(tmp_path)
    extract_case(pit, "setuid")
    assert stat.S_IMODE((pit.root / "su").stat().st_mode) == 0o6755


def test_last_of_duplicate_entries_wins(tmp_path: Path) -> None:
    pit = ExtractionDirectory(tmp_path)
    extract_case(pit, "duplicate")
    assert (pit.root / "f").read_bytes() == b"second"


def test_overlay_attributes_are_dropped(tmp_path: Path) -> None:
    for number, name in enumerate(("overlay-xattr", "user-overlay-xattr")):
        pit = ExtractionDirectory(tmp_path / str(number))
        extract_case(pit, name)
        assert os.listxattr(pit.root / "f") == []


def test_file_over_a_link_or_hard_link_is_a_new_file(tmp_path: Path) -> None:
    for number, name in enumerate(("file-replaced-by-link", "link-to-file-out")):
        pit = ExtractionDirectory(tmp_path / str(number))
        extract_case(pit, name)
        (result,) = pit.root.iterdir()
        assert result.read_bytes() == b"hostile"
        assert (pit.outside / "secret").read_bytes() == SECRET
    pit = ExtractionDirectory(tmp_path / "hard")
    extract_case(pit, "hard-link-to-link")
    assert (pit.root / "l").is_symlink()
    assert not (pit.root / "h").is_symlink()


@pytest.mark.needs("root")
def test_file_capabilities_survive_the_change_of_owner(tmp_path: Path) -> None:
    # struct vfs_cap_data, revision 2, with CAP_NET_RAW (linux/capability.h)
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    item = ArchiveEntry(
        "file", b"ping", b"", 0o4755, {"security.capability": capability}, owner=1000
    )
    extract_layer(io.BytesIO(tar_of(HostileArchive("capability", (item,)))), tmp_path)
    status = (tmp_path / "ping").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (1000, 0o4755)
    assert os.getxattr(tmp_path / "ping", "security.capability") == capability


def test_replaced_directory_is_resolved_again(tmp_path: Path) -> None:
    items = (
        ArchiveEntry("file", b"d/e/1"),
        ArchiveEntry("dir", b"d/e", mode=0o700),
        ArchiveEntry("file", b"d"),
        ArchiveEntry("file", b"x/1"),
    )
    extract_layer(io.BytesIO(tar_of(HostileArchive("replaced", items))), tmp_path)
    assert paths(tmp_path) == {b"d", b"x", b"x/1"}
    items = (
        ArchiveEntry("file", b"d/e/1"),
        ArchiveEntry("dir", b"d/e", mode=0o700),
        ArchiveEntry("link", b"d", b"x"),
        ArchiveEntry("file", b"d/e/2"),
    )
    root = tmp_path / "again"
    root.mkdir()
    extract_layer(io.BytesIO(tar_of(HostileArchive("replaced", items))), root)
    assert paths(root) == {b"d", b"x", b"x/e", b"x/e/2"}
    # What was said of the directory that is gone does not count for the new one.
    assert stat.S_IMODE((root / "x/e").stat().st_mode) == 0o755
