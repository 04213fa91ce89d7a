"""Errors of ``danlu build`` before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.build import BuildOptions, build
from danlu.commands.project import Project
from danlu.commands.settings import load_settings
from danlu.errors import NotBuiltYet
from danlu.util.paths import Paths
from tests.commands.unsupported import forget_functions

FILE = """\
def build():
    base(os="debian12")
    runtime.expose(8000)
    runtime.init(["true"])
"""


def test_unsupported_function_is_an_error_before_locking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_functions(monkeypatch, "runtime.init")
    (tmp_path / "build.envd").write_text(FILE)
    settings = load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))
    project = Project.open(None, directory=tmp_path)
    with pytest.raises(NotBuiltYet, match=r"runtime\.init is not supported yet") as caught:
        build(project, settings=settings, options=BuildOptions(), progress=lambda event: None)
    assert caught.value.span is not None
    assert caught.value.span.line == 4
    assert not project.lock_path.exists()


def test_all_unsupported_calls_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_functions(monkeypatch, "runtime.init", "config.gpu")
    (tmp_path / "build.envd").write_text(FILE + "    config.gpu(1)\n")
    settings = load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))
    project = Project.open(None, directory=tmp_path)
    with pytest.raises(NotBuiltYet, match="2 calls are not supported yet") as caught:
        build(project, settings=settings, options=BuildOptions(), progress=lambda event: None)
    assert caught.value.details == (
        "build.envd:4:5: runtime.init",
        "build.envd:5:5: config.gpu",
    )
    assert not project.lock_path.exists()
