"""The hostile corpus as wheels: rejected, or unpacked only below the scheme's directories."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from danlu.errors import DanluError, UsageError
from danlu.oci.tar import write_layer
from tests.hostile_archives import (
    CASES,
    ArchiveEntry,
    ExtractionDirectory,
    HostileArchive,
    UnsupportedEntryError,
    is_readable_zip,
    wheel_of,
)
from tests.sources.test_pypi_unpacking import SITE, WheelUnpacker, _own_settings

__all__ = ["_own_settings"]

NOT_IN_A_WHEEL = {
    *("hard-link-out", "absolute-hard-link", "hard-link-through-link", "hard-link-to-link"),
    *("hard-link-to-missing", "hard-link-to-itself", "hard-link-to-directory"),
    *("overlay-xattr", "user-overlay-xattr", "capability-xattr"),
}
REFUSED = {
    *("parent-of-directory", "empty", "dot", "nul", "control-characters", "not-utf8", "long-name"),
    *("long-path", "trailing-slash-on-file", "link-out", "absolute-link-out", "link-to-file-out"),
    *("link-chain-out", "link-loop", "link-to-itself", "link-replaced-by-directory", "duplicate"),
    *("directory-replaced-by-link", "file-replaced-by-link", "file-below-file", "truncated"),
    *("claims-huge-size", "claims-negative-size"),
}
#: uv leaves out what would lie elsewhere.
LEFT_OUT = {
    *("parent", "parent-as-directory", "through-parent", "through-parent-below", "absolute"),
    *("doubly-absolute",),
}
#: What a wheel of these cases leaves in site-packages besides its package: all plain files.
KEPT = {
    "parent-that-stays-inside": {"b"},
    "backslashes": {"..\\..\\outside\\secret"},
    "drive": {"C:\\outside"},
    "deep-path": {"d/" * 450 + "f"},
    "case-collision": {"Readme", "README"},
    "link-out-alone": {"l"},
    "character-device": {"null"},
    "block-device": {"sda"},
    "fifo": {"pipe"},
    "setuid": {"su"},
    "unreadable": {"f"},
    "bomb": {"zeros"},
}
#: Names that mean a deletion in a layer: no layer is made of them.
NO_LAYER = {"whiteout", "whiteout-of-parent", "opaque-marker"}


def unpack(
    case: HostileArchive, place: Path, *, record: bool
) -> tuple[ExtractionDirectory, Path | None, str]:
    """The tree of the case's wheel, or None and why it was refused."""
    pit = ExtractionDirectory(place / "pit")
    unpacker = WheelUnpacker(pit.root)
    wheel = wheel_of(case, unpacker.links, record=record)
    try:
        return pit, unpacker.one(wheel), ""
    except DanluError as error:
        return pit, None, str(error)


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_hostile_wheel_writes_nothing_outside_its_scheme(
    tmp_path: Path, case: HostileArchive, record: bool
) -> None:
    try:
        pit, tree, reason = unpack(case, tmp_path, record=record)
    except UnsupportedEntryError:
        assert case.name in NOT_IN_A_WHEEL
        return
    assert case.name not in NOT_IN_A_WHEEL
    pit.check_outside_is_intact()
    if tree is None:
        assert case.name in REFUSED
        assert reason.isprintable()
    elif case.name in NO_LAYER:
        with pytest.raises(UsageError, match="cannot be part of an image"):
            check_tree(tree)
    else:
        check_tree(tree)
        site = tree / SITE
        names = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
        own = {name for name in names if name.startswith(("hostile/", "hostile-1.0.dist-info/"))}
        assert names - own == (set() if case.name in LEFT_OUT else KEPT[case.name])


def check_tree(tree: Path) -> None:
    """Assert that a tree has plain files in its scheme only, and that it can be a layer."""
    for path in tree.rglob("*"):
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode), path
        assert stat.S_IMODE(status.st_mode) in (0o644, 0o755), path
        assert not os.listxattr(path), path
        name = str(path.relative_to(tree))
        assert name.startswith("opt/venv/") or f"{SITE}/".startswith(f"{name}/"), name
    write_layer(tree, None)


def test_wheels_of_this_corpus_are_wheels(tmp_path: Path) -> None:
    """Each wheel is rejected for the entry of its case, not for another defect."""
    case = HostileArchive("plain", (ArchiveEntry("file", b"plain/a.py", b"x = 1\n"),))
    pit, tree, reason = unpack(case, tmp_path, record=True)
    assert tree is not None, reason
    assert (tree / SITE / "plain/a.py").read_bytes() == b"x = 1\n"
    assert is_readable_zip(pit.root / "links/hostile-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    "name",
    ["data/../../../../outside/x", "data//outside/x", "scripts/../../../outside/x",
     "purelib/../../../../../../outside/x", "unknown/x", "../x"],
)  # fmt: skip
def test_data_directory_of_a_wheel_does_not_lead_out(tmp_path: Path, name: str) -> None:
    case = HostileArchive(
        name, (ArchiveEntry("file", b"hostile-1.0.data/" + name.encode(), b"hostile"),)
    )
    pit, tree, _ = unpack(case, tmp_path, record=True)
    pit.check_outside_is_intact()
    if tree is not None:
        check_tree(tree)


def test_entry_points_are_names_and_not_paths(tmp_path: Path) -> None:
    for number, name in enumerate(("../../../outside/x", "/outside/x", "a/b", "..", "")):
        text = f"[console_scripts]\n{name} = hostile:main\n".encode()
        case = HostileArchive(
            "", (ArchiveEntry("file", b"hostile-1.0.dist-info/entry_points.txt", text),)
        )
        pit, tree, _ = unpack(case, tmp_path / str(number), record=True)
        pit.check_outside_is_intact()
        if tree is not None:
            check_tree(tree)


def test_ambiguous_zip_is_not_read_twice(tmp_path: Path) -> None:
    """The central directory and the local header name different files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("hostile-1.0.dist-info/WHEEL", "x")
    data = stream.getvalue().replace(
        b"hostile-1.0.dist-info/WHEEL", b"hostile-1.0.dist-info/OTHER", 1
    )
    pit = ExtractionDirectory(tmp_path / "pit")
    unpacker = WheelUnpacker(pit.root)
    wheel = unpacker.links / "hostile-1.0-py3-none-any.whl"
    wheel.write_bytes(data)
    with pytest.raises(DanluError):
        unpacker.one(wheel)
    pit.check_outside_is_intact()
