"""Unchanged files are not read again, changed files always are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.sources import file_digests
from danlu.sources.build_context import digest_path
from danlu.sources.file_digests import FileDigests


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("first")
    (project / "b").write_text("other")
    return project


@pytest.fixture
def trust_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat files written a moment ago as old ones."""
    monkeypatch.setattr(file_digests, "_RACY_NANOSECONDS", -1_000_000_000)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors of files that were read."""
    results: list[int] = []
    original = file_digests.hash_descriptor

    def hash_descriptor(descriptor: int) -> bytes:
        results.append(descriptor)
        return original(descriptor)

    monkeypatch.setattr(file_digests, "hash_descriptor", hash_descriptor)
    return results


def digest(project: Path) -> str:
    digests = FileDigests.of_project(project, project.parent / "cache")
    result = digest_path(project, ".", digests)
    digests.save()
    assert result == digest_path(project, "."), "with what is remembered and without"
    return result


@pytest.mark.usefixtures("trust_new_files")
def test_files_that_stayed_are_not_read_again(project: Path, read: list[int]) -> None:
    first = digest(project)
    assert len(read) == 2
    assert digest(project) == first
    assert len(read) == 2


def _edit_in_place(file: Path) -> None:
    before = file.stat()
    file.write_text("FIRST")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace_file(file: Path) -> None:
    before = file.stat()
    other = file.with_name("new")
    other.write_text("FIRST")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(file)


@pytest.mark.usefixtures("trust_new_files")
@pytest.mark.parametrize(
    "change",
    [
        _edit_in_place,
        _replace_file,
        lambda file: file.chmod(0o755),
        lambda file: file.write_text("x"),
    ],
)
def test_a_change_is_detected_if_size_and_time_are_equal(
    project: Path, read: list[int], change: Callable[[Path], object]
) -> None:
    first = digest(project)
    change(project / "a")
    assert digest(project) != first
    assert len(read) == 3, "only the one that changed"


def test_a_file_that_changed_just_before_it_was_read_is_read_again(
    project: Path, read: list[int]
) -> None:
    # Within the granularity of its times it could change once more without showing it.
    digest(project)
    digest(project)
    assert len(read) == 4


@pytest.mark.usefixtures("trust_new_files")
@pytest.mark.parametrize("damage", [b"", b"\x93", b"not msgpack at all"])
def test_a_damaged_digest_cache_is_rebuilt(project: Path, damage: bytes) -> None:
    first = digest(project)
    (kept,) = (project.parent / "cache/file-digests").iterdir()
    kept.write_bytes(damage)
    assert digest(project) == first


@pytest.mark.usefixtures("trust_new_files")
def test_digests_of_removed_files_are_dropped_eventually(project: Path) -> None:
    for number in range(1200):
        (project / f"f{number}").write_text("x")
    digest(project)
    (kept,) = (project.parent / "cache/file-digests").iterdir()
    large = kept.stat().st_size
    for number in range(1200):
        (project / f"f{number}").unlink()
    (project / "a").write_text("second")
    digest(project)
    assert kept.stat().st_size < large / 10
