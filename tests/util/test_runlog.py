from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from danlu.util.runlog import KEPT, RunLog, newest


def test_log_begins_with_what_was_typed(tmp_path: Path) -> None:
    now = [1000.0]
    with RunLog(tmp_path / "logs", ["build", "-f", "my file"], clock=lambda: now[0]) as log:
        now[0] += 1.25
        log.line("one\ntwo")
    assert log.path is not None
    assert log.path.read_text().splitlines() == [
        "    0.000 danlu build -f 'my file'",
        "    1.250 one",
        "    1.250 two",
    ]
    assert log.path.stat().st_mode & 0o077 == 0
    assert re.fullmatch(r"19700101T001640-\d+-[0-9a-f]{4}\.log", log.path.name)


def test_only_the_newest_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for number in range(KEPT + 5):
        RunLog(tmp_path, [str(number)], clock=partial(float, 1e9 + number)).close()
    left = newest(tmp_path)
    assert len(left) == KEPT
    assert left[0].read_text().endswith(f"danlu {KEPT + 4}\n")
    assert left[-1].read_text().endswith("danlu 5\n")
    assert (tmp_path / "notes.txt").exists()


def test_log_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with RunLog(tmp_path / "file" / "logs", ["build"]) as log:
        log.line("x")
    assert log.path is None


def test_line_after_the_end_is_dropped(tmp_path: Path) -> None:
    log = RunLog(tmp_path, ["build"])
    log.close()
    log.line("x")
    log.close()
    assert log.path is not None
    assert log.path.read_text().count("\n") == 1


def test_undecodable_text_is_written_all_the_same(tmp_path: Path) -> None:
    with RunLog(tmp_path, ["build"]) as log:
        log.line("bad \udcff")
    assert log.path is not None
    assert log.path.read_bytes().endswith(b"bad ?\n")
