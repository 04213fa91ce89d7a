"""A cell in the environment of a build file, which is built before the job runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.settings import Settings, load_settings
from danlu.graph.progress import Finished
from danlu.notebook import cells
from danlu.notebook.parser import parse_distributed
from danlu.util.paths import Paths
from tests.notebook.cell_context import FakeCellContext

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


class EnvironmentContext(FakeCellContext):
    """One with the home that real tests share."""

    def __init__(self, directory: Path, home: Path) -> None:
        super().__init__(directory)
        self._home = home

    @property
    def settings(self) -> Settings:
        return load_settings(Paths.of({"DANLU_HOME": str(self._home)}))


@pytest.mark.parametrize("file", ["build.envd", "build.py"])
def test_cell_runs_in_the_environment_it_names(
    file: str, tmp_path: Path, real_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    head = "from danlu import base\n\n\n" if file.endswith(".py") else ""
    (tmp_path / file).write_text(head + BUILD)
    context = EnvironmentContext(tmp_path, real_home)
    context.names["x"] = 21
    line = f"--framework pytorch --env {file} --send x --return where,python,twice"
    cells.run_cell(parse_distributed(line, CODE), context)
    assert "bookworm" in context.names["where"]
    assert context.names["python"] == "3.11"
    assert context.names["twice"] == 42
    assert context.last_view.phases == ["Preparing", "Building", "Submitting", "Pending"]
    assert Finished in map(type, context.last_view.build_events)
    cells.run_cell(parse_distributed(line, CODE), context)
    again = ["Building"] if file.endswith(".py") else []
    assert context.last_view.phases == ["Preparing", *again, "Submitting", "Pending"]
