"""Build files are formatted in place, and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from danlu.errors import BuildFileError, MachineError, UsageError
from danlu.project.fmt import format_files, format_text, list_build_files

UGLY = b"def build():\n\tbase( 'x',\n\t dev = True )\n"
TIDY = b'def build():\n    base("x", dev=True)\n'


def test_files_of_a_directory_are_formatted_once(tmp_path: Path) -> None:
    for name in ("build.envd", "build.py", "lib.envd"):
        (tmp_path / name).write_bytes(UGLY)
    (tmp_path / "train.py").write_bytes(UGLY)
    (tmp_path / "build.py").chmod(0o755)
    files = list_build_files([], tmp_path)
    checked = format_files(files, tmp_path, check=True)
    assert checked.changed == ("build.envd", "build.py", "lib.envd")
    assert (tmp_path / "build.envd").read_bytes() == UGLY
    assert format_files(files, tmp_path, check=False) == checked
    assert (tmp_path / "build.envd").read_bytes() == TIDY
    assert (tmp_path / "build.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "train.py").read_bytes() == UGLY
    assert format_files(files, tmp_path, check=True).changed == ()


def test_a_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real.envd").write_bytes(UGLY)
    (tmp_path / "build.envd").symlink_to("real.envd")
    format_files([tmp_path / "build.envd"], tmp_path, check=False)
    assert os.readlink(tmp_path / "build.envd") == "real.envd"
    assert (tmp_path / "real.envd").read_bytes() == TIDY


def test_a_syntax_error_names_the_line_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.envd").write_bytes(UGLY)
    (tmp_path / "b.envd").write_bytes(b"def build():\n    base(\n")
    with pytest.raises(BuildFileError, match="syntax error") as caught:
        format_files(list_build_files([], tmp_path), tmp_path, check=False)
    assert str(caught.value.span).startswith("b.envd:")
    assert (tmp_path / "a.envd").read_bytes() == UGLY


def test_line_ends_are_kept(tmp_path: Path) -> None:
    formatted = format_text(UGLY.replace(b"\n", b"\r\n"), "build.envd", directory=tmp_path)
    assert formatted == TIDY.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("danlu.lock", "not a build file"),
        ("missing.envd", "not found"),
        (".", "no build files"),
    ],
)
def test_names_of_other_files_are_rejected(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list_build_files([name], tmp_path)


def test_invalid_utf8_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot format"):
        format_text(b"\xff\xfe", "build.envd", directory=tmp_path)


def test_without_ruff_the_hint_installs_it_next_to_danlu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MachineError, match="ruff not found") as caught:
        format_text(UGLY, "build.envd", directory=tmp_path)
    assert "uv tool install ruff" in caught.value.hint
