"""What ``danlu build`` says before it builds anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.build import BuildOptions, build
from danlu.commands.project import Project
from danlu.commands.settings import load_settings
from danlu.errors import NotBuiltYet
from danlu.util.paths import Paths

FILE = """\
def build():
    base(os="debian12")
    runtime.expose(8000)
    install.julia()
"""


def test_a_planned_function_is_refused_by_its_line_before_anything_is_locked(
    tmp_path: Path,
) -> None:
    (tmp_path / "build.envd").write_text(FILE)
    settings = load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))
    project = Project.open(None, directory=tmp_path)
    with pytest.raises(NotBuiltYet, match=r"install\.julia is understood but not built") as caught:
        build(project, settings=settings, options=BuildOptions(), progress=lambda event: None)
    assert caught.value.span is not None
    assert caught.value.span.line == 4
    assert not project.lock_path.exists()
