"""Maintenance handles the newest image once, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from danlu.engine.settings import Settings
from danlu.project.maintenance import start_sweep
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.locks import file_lock
from danlu.util.paths import Paths

PROGRAM = """
import sys
from danlu.project import maintenance
maintenance.maintain_store = lambda digest, settings: print(digest)
sys.exit(maintenance.main(delay=0))
"""


def upkeep(home: Path) -> str:
    environment = {**os.environ, "DANLU_HOME": str(home)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout


def test_maintenance_runs_once_for_the_newest_image(tmp_path: Path) -> None:
    (tmp_path / "upkeep.next").write_text("sha256:b")
    assert upkeep(tmp_path) == "sha256:b\n"
    assert upkeep(tmp_path) == ""


def test_maintenance_runs_in_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "upkeep.next").write_text("sha256:b")
    with file_lock(tmp_path / "upkeep.lock"):
        assert upkeep(tmp_path) == ""
    assert (tmp_path / "upkeep.next").exists()


SWEEP = """
import sys
from danlu.project import maintenance
sys.argv = ["upkeep", "sweep"]
sys.exit(maintenance.main())
"""


def leave_behind(root: Path) -> Path:
    """Create a staging directory whose owner was killed."""
    leftover = root / "tmp" / "left"
    (leftover / "below").mkdir(parents=True)
    (leftover / "below" / "file").write_bytes(bytes(1000))
    return leftover


def test_sweep_removes_leftovers_of_killed_builds_only(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "store") as store:
        leftover = leave_behind(store.root)
        with store.staging() as used:
            environment = {**os.environ, "DANLU_HOME": str(tmp_path)}
            subprocess.run([sys.executable, "-c", SWEEP], env=environment, check=True)
            assert used.is_dir()
            assert not leftover.exists()
            assert not store.has_leftovers()


@pytest.mark.parametrize("wanted", ["background", "off"])
def test_sweep_starts_only_for_leftovers_and_unless_disabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Literal["background", "off"]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))
    settings = Settings(Paths.of({"DANLU_HOME": str(tmp_path)}), Configuration(upkeep=wanted))
    with Store.open(tmp_path / "store") as store:
        with store.staging():
            start_sweep(store, settings)
        assert started == []
        leave_behind(store.root)
        start_sweep(store, settings)
    assert [words[-1] for words in started] == (["sweep"] if wanted != "off" else [])


def test_sweep_starts_for_an_interrupted_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))
    settings = Settings(Paths.of({"DANLU_HOME": str(tmp_path)}), Configuration())
    (settings.paths.cache / "uv" / ".tmpXyz123").mkdir(parents=True)
    with Store.open(tmp_path / "store") as store:
        start_sweep(store, settings)
    assert [words[-1] for words in started] == ["sweep"]
