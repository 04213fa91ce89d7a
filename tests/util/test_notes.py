"""Notes answer the question they were made for, while they are young, and are never in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from danlu.util.notes import note, noted


class Answer(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    number: int = 0


def age(directory: Path, seconds: float) -> None:
    for one in directory.iterdir():
        os.utime(one, (time.time() - seconds,) * 2)


def test_a_note_answers_its_question_and_no_other(tmp_path: Path) -> None:
    note(tmp_path / "notes", ["a", {"x": 1, "y": 2}], Answer(("n",), 3))
    assert noted(tmp_path / "notes", ["a", {"y": 2, "x": 1}], Answer) == Answer(("n",), 3)
    assert noted(tmp_path / "notes", ["a", {"y": 2, "x": 2}], Answer) is None
    assert noted(tmp_path / "nowhere", "a", Answer) is None


def test_an_old_note_is_not_taken_and_goes_with_the_next(tmp_path: Path) -> None:
    note(tmp_path, "a", 1)
    age(tmp_path, 61)
    assert noted(tmp_path, "a", int, seconds=60) is None
    assert noted(tmp_path, "a", int, seconds=62) == 1
    note(tmp_path, "b", 2, seconds=60)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_note_from_the_future_is_not_taken(tmp_path: Path) -> None:
    note(tmp_path, "a", 1)
    age(tmp_path, -3600)
    assert noted(tmp_path, "a", int) is None


@pytest.mark.parametrize("text", ["", "{", '{"names": 1}', "\x00"])
def test_a_damaged_note_is_none(tmp_path: Path, text: str) -> None:
    note(tmp_path, "a", Answer(()))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert noted(tmp_path, "a", Answer) is None
