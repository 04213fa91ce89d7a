"""Cached answers are found by their question until they expire."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from danlu.util.disk_cache import read_cache, write_cache


class CachedAnswer(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    number: int = 0


def age(directory: Path, seconds: float) -> None:
    for path in directory.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def test_cached_answer_is_found_by_its_question_only(tmp_path: Path) -> None:
    write_cache(tmp_path / "notes", ["a", {"x": 1, "y": 2}], CachedAnswer(("n",), 3))
    assert read_cache(tmp_path / "notes", ["a", {"y": 2, "x": 1}], CachedAnswer) == CachedAnswer(
        ("n",), 3
    )
    assert read_cache(tmp_path / "notes", ["a", {"y": 2, "x": 2}], CachedAnswer) is None
    assert read_cache(tmp_path / "nowhere", "a", CachedAnswer) is None


def test_expired_entry_is_ignored_and_removed_by_the_next_write(tmp_path: Path) -> None:
    write_cache(tmp_path, "a", 1)
    age(tmp_path, 61)
    assert read_cache(tmp_path, "a", int, seconds=60) is None
    assert read_cache(tmp_path, "a", int, seconds=62) == 1
    write_cache(tmp_path, "b", 2, seconds=60)
    assert len(list(tmp_path.iterdir())) == 1


def test_entry_from_the_future_is_ignored(tmp_path: Path) -> None:
    write_cache(tmp_path, "a", 1)
    age(tmp_path, -3600)
    assert read_cache(tmp_path, "a", int) is None


@pytest.mark.parametrize("text", ["", "{", '{"names": 1}', "\x00"])
def test_damaged_entry_is_ignored(tmp_path: Path, text: str) -> None:
    write_cache(tmp_path, "a", CachedAnswer(()))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert read_cache(tmp_path, "a", CachedAnswer) is None
