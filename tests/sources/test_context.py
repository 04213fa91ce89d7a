"""Which files of a project count, and their digests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.sources.context import digest_of_path, members_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src/pkg").mkdir(parents=True)
    (tmp_path / "src/a.py").write_text("a")
    (tmp_path / "src/pkg/b.py").write_text("b")
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref")
    return tmp_path


def inside(project: Path, source: str) -> list[str]:
    return [member.inside for member in members_of(project, source)]


def test_a_directory_gives_what_is_below_it(project: Path) -> None:
    assert inside(project, "src") == ["a.py", "pkg", "pkg/b.py"]


def test_a_file_gives_itself(project: Path) -> None:
    assert [(m.inside, m.alone) for m in members_of(project, "data.csv")] == [("data.csv", True)]


def test_a_pattern_gives_what_it_matches(project: Path) -> None:
    assert inside(project, "*.csv") == ["data.csv"]


def test_the_repository_itself_never_counts(project: Path) -> None:
    assert ".git" not in inside(project, ".")


@pytest.mark.parametrize(
    ("name", "lines", "gone"),
    [
        (".danluignore", "*.py\n!b.py", ["src/a.py"]),
        (".gitignore", "pkg/", ["src/pkg", "src/pkg/b.py"]),
        (".dockerignore", "*.csv\n# note\nsrc/pkg", ["data.csv", "src/pkg", "src/pkg/b.py"]),
        (".dockerignore", "a.py", []),
    ],
)
def test_ignored_files_do_not_count(project: Path, name: str, lines: str, gone: list[str]) -> None:
    before = inside(project, ".")
    (project / name).write_text(lines)
    assert sorted({*before, name} - set(inside(project, "."))) == gone


def test_our_own_ignore_file_wins(project: Path) -> None:
    (project / ".gitignore").write_text("*.csv")
    (project / ".danluignore").write_text("*.py")
    assert "data.csv" in inside(project, ".")


def test_times_do_not_change_the_digest_but_content_does(project: Path) -> None:
    before = digest_of_path(project, "src")
    os.utime(project / "src/a.py", (1, 1))
    assert digest_of_path(project, "src") == before
    (project / "src/a.py").write_text("A")
    assert digest_of_path(project, "src") != before


def test_the_executable_bit_changes_the_digest_and_the_rest_of_the_mode_does_not(
    project: Path,
) -> None:
    file = project / "src/a.py"
    file.chmod(0o644)
    before = digest_of_path(project, "src")
    file.chmod(0o600)
    assert digest_of_path(project, "src") == before
    file.chmod(0o755)
    assert digest_of_path(project, "src") != before


def test_a_renamed_file_changes_the_digest(project: Path) -> None:
    before = digest_of_path(project, "src")
    (project / "src/a.py").rename(project / "src/c.py")
    assert digest_of_path(project, "src") != before


def test_a_link_counts_by_its_target(project: Path) -> None:
    link = project / "src/link"
    link.symlink_to("a.py")
    before = digest_of_path(project, "src")
    link.unlink()
    link.symlink_to("pkg/b.py")
    assert digest_of_path(project, "src") != before


@pytest.mark.parametrize("source", ["../x", "/etc/passwd", "src/../../x"])
def test_nothing_outside_the_project_is_read(project: Path, source: str) -> None:
    with pytest.raises(UsageError, match="outside the project"):
        members_of(project, source)


@pytest.mark.parametrize("source", ["nope", "*.nope"])
def test_what_is_not_there_is_an_error(project: Path, source: str) -> None:
    with pytest.raises(UsageError, match="there is no"):
        members_of(project, source)
