"""Requirements files are read as pip reads them, as far as danlu must."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import ResolveError
from danlu.sources.pypi.requirements import (
    included_files,
    project_files,
    read_requirements,
    reference_of,
)

BASE = Path("/p")


def test_lines_are_joined_and_comments_dropped(tmp_path: Path) -> None:
    file = tmp_path / "r.txt"
    digest = "a" * 64
    file.write_text(
        "# comment\n\nnumpy \\\n  >=2  # why\n"
        f"six==1 --hash=sha256:{digest} \\\n   --hash sha256:{digest}\n"
        "url @ https://h/x#frag.whl\n"
    )
    entries = read_requirements(file)
    assert [(entry.value.split(), entry.line) for entry in entries] == [
        (["numpy", ">=2"], 3),
        (["six==1"], 5),
        (["url", "@", "https://h/x#frag.whl"], 7),
    ]
    assert entries[1].hashes == (f"sha256:{digest}",) * 2


@pytest.mark.parametrize(
    "line", ["-e .", "-e.", "--editable=.", "--editable .", "  -e  .  ", "-e\t.", '-e "."']
)
def test_every_spelling_of_editable_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\n")
    (entry,) = read_requirements(tmp_path / "r.txt")
    assert (entry.option, entry.value) == ("--editable", ".")


def test_files_are_included_once_and_relative_to_theirs(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "r.txt").write_text("-r sub/a.txt\n-c sub/c.txt\n./w.whl\n")
    (tmp_path / "sub" / "a.txt").write_text("-r ../r.txt\nsix\n-r a.txt\n./pkg\n")
    (tmp_path / "sub" / "c.txt").write_text("six<2\n")
    names = ["r.txt", "sub/a.txt", "sub/c.txt"]
    assert included_files(tmp_path / "r.txt") == tuple(tmp_path / name for name in names)
    assert set(project_files(tmp_path / "r.txt")) == {
        *(tmp_path / name for name in names),
        tmp_path / "w.whl",
        tmp_path / "sub/pkg",
    }


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-r gone.txt\n")
    with pytest.raises(ResolveError, match=r"gone\.txt"):
        read_requirements(tmp_path / "r.txt")


@pytest.mark.parametrize(
    ("text", "kind", "name", "location"),
    [
        ("git+https://h/r.git@v1", "git", "", "https://h/r.git"),
        ("p @ git+ssh://git@h/r@main#subdirectory=x", "git", "p", "ssh://git@h/r"),
        ("git+https://h/r#egg=p", "git", "p", "https://h/r"),
        ("hg+https://h/r", "vcs", "", "https://h/r"),
        ("p @ https://h/p-1.tar.gz", "archive", "p", "https://h/p-1.tar.gz"),
        ("https://h/p-1-py3-none-any.whl", "wheel", "", "https://h/p-1-py3-none-any.whl"),
        ("./p", "directory", "", "./p"),
        (".", "directory", "", "."),
        (".[extra]", "directory", "", "."),
        ("p-1-py3-none-any.whl", "wheel", "", "p-1-py3-none-any.whl"),
        ("p-1.tar.gz", "archive", "", "p-1.tar.gz"),
        ("p @ file:///abs/p-1.zip", "archive", "p", "file:///abs/p-1.zip"),
    ],
)
def test_places_are_told_apart(text: str, kind: str, name: str, location: str) -> None:
    found = reference_of(text, BASE)
    assert found is not None
    assert (found.kind, found.name, found.location) == (kind, name, location)


@pytest.mark.parametrize(
    "text", ["numpy", "numpy>=2,<3", "torch==2.13.0+cpu", "a[b,c]~=1.0 ; python_version<'3'"]
)
def test_ordinary_requirements_name_no_place(text: str) -> None:
    assert reference_of(text, BASE) is None


def test_refs_subdirectories_and_markers_are_kept() -> None:
    found = reference_of(
        "p[x] @ git+https://u:p@h/r@feature#subdirectory=a/b ; os_name=='posix'", BASE
    )
    assert found is not None
    assert (found.reference, found.subdirectory, found.extras) == ("feature", "a/b", "[x]")
    assert found.location == "https://u:p@h/r"
    assert found.marker == "os_name=='posix'"
