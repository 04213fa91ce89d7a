"""A cell in an environment that a build file describes: built beside the kernel, then run in."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.settings import Settings, load_settings
from danlu.notebook import cells
from danlu.notebook.grammar import read_options
from danlu.util.paths import Paths
from tests.notebook.desks import TestDesk

pytestmark = pytest.mark.real

BUILD = """\
def build():
    base(os="debian12", language="python3.11")
"""

CODE = """
import os, sys
where = open("/etc/os-release").read()
python = ".".join(map(str, sys.version_info[:2]))
twice = 2 * x
"""


class Desk(TestDesk):
    """One with the home that real tests share."""

    def __init__(self, directory: Path, home: Path) -> None:
        super().__init__(directory)
        self._home = home

    @property
    def settings(self) -> Settings:
        return load_settings(Paths.of({"DANLU_HOME": str(self._home)}))


@pytest.mark.parametrize("file", ["build.envd", "build.py"])
def test_a_cell_runs_in_the_environment_that_it_names(
    file: str, tmp_path: Path, real_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    monkeypatch.setenv("DANLU_UPKEEP", "off")
    head = "from danlu import base\n\n\n" if file.endswith(".py") else ""
    (tmp_path / file).write_text(head + BUILD)
    desk = Desk(tmp_path, real_home)
    desk.names["x"] = 21
    line = f"--framework pytorch --env {file} --send x --return where,python,twice"
    cells.run(read_options(line, CODE), desk)
    assert "bookworm" in desk.names["where"]
    assert desk.names["python"] == "3.11"
    assert desk.names["twice"] == 42
    assert desk.seen.phases == ["Preparing", "Building", "Submitting", "Pending"]
    cells.run(read_options(line, CODE), desk)
    again = ["Building"] if file.endswith(".py") else []
    assert desk.seen.phases == ["Preparing", *again, "Submitting", "Pending"]
