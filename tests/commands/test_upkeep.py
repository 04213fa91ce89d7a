"""Upkeep looks after the newest image, once, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from danlu.util.locks import file_lock

PROGRAM = """
import sys
from danlu.commands import upkeep
upkeep.work = lambda digest, settings: print(digest)
sys.exit(upkeep.main(patience=0))
"""


def upkeep(home: Path) -> str:
    environment = {**os.environ, "DANLU_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_image_that_was_built_last_is_looked_after_once(tmp_path: Path) -> None:
    (tmp_path / "upkeep.next").write_text("sha256:b")
    assert upkeep(tmp_path) == "sha256:b\n"
    assert upkeep(tmp_path) == ""


def test_it_is_left_to_the_process_that_is_at_it(tmp_path: Path) -> None:
    (tmp_path / "upkeep.next").write_text("sha256:b")
    with file_lock(tmp_path / "upkeep.lock"):
        assert upkeep(tmp_path) == ""
    assert (tmp_path / "upkeep.next").exists()
