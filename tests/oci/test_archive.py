"""Archives of programs: every format, one layout, and nothing outside the target."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard

from danlu.errors import OutsideError
from danlu.oci.archive import ArchiveLayout, unpack_archive
from tests.oci.test_extract import archive

FILES = (
    ("dir", "tool-1.0"),
    ("file", "tool-1.0/bin/tool", "#!/bin/sh\n"),
    ("file", "tool-1.0/share/doc", "text"),
    ("link", "tool-1.0/lib", "share"),
    ("hard", "tool-1.0/share/same", "tool-1.0/share/doc"),
)
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.zst": zstandard.compress,
}


def unpack(tmp_path: Path, data: bytes, **layout: object) -> Path:
    file = tmp_path / "tool.archive"
    file.write_bytes(data)
    root = tmp_path / "root"
    root.mkdir()
    unpack_archive(file, root, ArchiveLayout(**layout), name="tool.archive")  # type: ignore[arg-type]
    return root


def make_zip(*members: tuple[str, str, int]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text, mode in members:
            info = zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 10))
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, text)
    return stream.getvalue()


@pytest.mark.parametrize("kind", PACKERS)
def test_every_tar_format_unpacks_without_its_first_directory(tmp_path: Path, kind: str) -> None:
    root = unpack(tmp_path, PACKERS[kind](archive(FILES)), strip_components=1)
    assert sorted(os.listdir(root)) == ["bin", "lib", "share"]
    assert (root / "lib/same").read_text() == "text"
    assert (root / "share/same").samefile(root / "share/doc")


def test_a_zip_keeps_links_and_programs(tmp_path: Path) -> None:
    data = make_zip(
        ("t/bin/tool", "#!", stat.S_IFREG | 0o700),
        ("t/data", "x" * 5000, 0),
        ("t/bin/alias", "tool", stat.S_IFLNK | 0o777),
    )
    root = unpack(tmp_path, data, strip_components=1)
    assert (root / "bin/alias").readlink() == Path("tool")
    assert stat.S_IMODE((root / "bin/tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "data").stat().st_mode) == 0o644
    assert (root / "data").stat().st_mtime == 1714979290


def test_a_zip_without_a_date_is_from_1980(tmp_path: Path) -> None:
    data = make_zip(("tool", "#!", 0)).replace(struct.pack("<H", 0x58A6), b"\0\0")
    root = unpack(tmp_path, data)
    assert (root / "tool").stat().st_mtime == datetime(1980, 1, 1, 7, 8, 10, tzinfo=UTC).timestamp()


def test_modes_and_owners_of_the_archive_are_not_kept(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        info = tarfile.TarInfo("tool")
        info.mode, info.uid, info.gid, info.mtime = 0o6711, 1234, 1234, 86400
        tar.addfile(info, io.BytesIO())
    status = (unpack(tmp_path, stream.getvalue()) / "tool").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, os.geteuid())
    assert status.st_mtime == 86400


def test_include_and_rename_choose_and_move_paths(tmp_path: Path) -> None:
    data = make_zip(
        ("extension/package.json", "{}", 0),
        ("extension/dist/main.js", ";", 0),
        ("extension.vsixmanifest", "<xml/>", 0),
        ("[Content_Types].xml", "<xml/>", 0),
    )
    root = unpack(
        tmp_path,
        data,
        include=("extension", "extension.vsixmanifest"),
        rename={"extension": "", "extension.vsixmanifest": ".vsixmanifest"},
    )
    assert sorted(os.listdir(root)) == [".vsixmanifest", "dist", "package.json"]


HOSTILE = {
    "absolute path": (("file", "/etc/passwd", "x"),),
    "parent path": (("file", "a/../../x", "x"),),
    "absolute link": (("link", "a/etc", "/etc"),),
    "link outside": (("link", "a/up", "../../.."),),
    "through a link": (
        ("link", "a/b/up", ".."),
        ("link", "a/c", "b/up/../.."),
        ("file", "a/c/x", ""),
    ),
    "device": (("char", "a/null", ""),),
    "pipe": (("fifo", "a/pipe", ""),),
    "whiteout": (("file", "a/.wh.passwd", ""),),
    "opaque directory": (("file", "a/.wh..wh..opq", ""),),
    "hard link outside": (("hard", "a/x", "../../etc/passwd"),),
    "hard link to what is left out": (("file", "top", "x"), ("hard", "a/x", "top")),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_tars_are_rejected_and_write_nothing_outside(tmp_path: Path, what: str) -> None:
    with pytest.raises(OutsideError, match=r"cannot unpack tool\.archive: ") as error:
        unpack(tmp_path, archive(HOSTILE[what]), strip_components=1)
    assert error.value.exit_code == 3
    assert "layer" not in error.value.message.replace("image layers", "")
    assert sorted(os.listdir(tmp_path)) == ["root", "tool.archive"]


@pytest.mark.parametrize(
    "members",
    [
        [("../../x", "x", 0)],
        [("/etc/passwd", "x", 0)],
        [("a", "../../etc", stat.S_IFLNK | 0o777)],
        [("a", "b" * 5000, stat.S_IFLNK | 0o777)],
        [("null", "", stat.S_IFCHR | 0o666)],
    ],
)
def test_hostile_zips_are_rejected(tmp_path: Path, members: list[tuple[str, str, int]]) -> None:
    with pytest.raises(OutsideError, match="cannot unpack"):
        unpack(tmp_path, make_zip(*members))
    assert sorted(os.listdir(tmp_path)) == ["root", "tool.archive"]


@pytest.mark.parametrize("kind", [*PACKERS, "zip"])
def test_truncated_archives_are_rejected(tmp_path: Path, kind: str) -> None:
    content = "".join(chr(33 + n * n % 90) for n in range(40000))
    data = (
        make_zip(("a", content, 0))
        if kind == "zip"
        else PACKERS[kind](archive([("file", "a", content)]))
    )
    with pytest.raises(OutsideError, match="cannot unpack") as error:
        unpack(tmp_path, data[: len(data) * 2 // 3])
    assert "damaged" in error.value.hint


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", b"PK\x03\x04", b"\x1f\x8b\x08\0"])
def test_file_that_is_not_an_archive_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(OutsideError, match="cannot unpack"):
        unpack(tmp_path, data)


def test_an_archive_that_expands_too_much_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.oci.archive._SIZE_FLOOR", 1 << 16)
    bomb = "\0" * (8 << 20)
    for number, data in enumerate(
        (gzip.compress(archive([("file", "a", bomb)])), make_zip(("a", bomb, 0)))
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        with pytest.raises(OutsideError, match="exceeds the limit"):
            unpack(directory, data)
