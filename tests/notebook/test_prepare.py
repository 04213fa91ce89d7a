"""What is built and pulled before a cell's job, by a danlu of its own."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from danlu.commands.trainorder import TrainOrder
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.notebook import background, programs
from danlu.notebook.prepare import submittable
from danlu.store import Store
from tests.notebook.desks import TestDesk
from tests.notebook.interrupts import interrupted, until

BUILD = 'def build():\n    base(image="nobody.example/none")\n'

#: Stands for danlu: tells what it was asked, in a file and in a line.
PROGRAM = """
import json, pathlib, sys
words = sys.argv[1:]
print("asked", *words[:2], flush=True)
pathlib.Path("asked.json").write_text(json.dumps(words))
"""

HANGS = PROGRAM + "import time\ntime.sleep(60)\n"
REFUSES = PROGRAM + "print('no such package', flush=True)\nsys.exit(2)\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestDesk:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.envd").write_text(BUILD)
    return TestDesk(tmp_path)


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(programs, "danlu", lambda *words: [sys.executable, "-c", code, *words])


def prepared(desk: TestDesk, **fields: Any) -> Submission:
    order = TrainOrder(
        directory=desk.directory, command=("python", "x.py"), framework="pytorch", **fields
    )
    view = desk.view()
    act = partial(submittable, order, desk.settings, view, jobs=desk.jobs())
    return background.run(act)


def asked(desk: TestDesk) -> list[str]:
    words = json.loads((desk.directory / "asked.json").read_text())
    assert isinstance(words, list)
    return words


def test_nothing_runs_where_nothing_is_to_be_made(
    desk: TestDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, PROGRAM)
    prepared(desk, python=sys.executable)
    assert desk.seen.phases == ["Preparing"]
    assert not (desk.directory / "asked.json").exists()


def test_an_environment_is_built_by_a_danlu_of_its_own_whose_lines_are_shown(
    desk: TestDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, REFUSES)
    with pytest.raises(UsageError, match="danlu build -f ended with exit code 2") as raised:
        prepared(desk, env="build.envd")
    assert asked(desk)[:2] == ["build", "-f"]
    assert asked(desk)[2] == f"{desk.directory}/build.envd:build"
    assert desk.seen.phases == ["Preparing", "Building"]
    assert desk.seen.lines == ["build │ asked build -f", "build │ no such package"]
    assert raised.value.details[-1] == "no such package"
    assert desk.seen.ends[0][0] == "Failed"


def test_an_image_that_is_not_here_is_pulled(
    desk: TestDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, REFUSES)
    with Store.open(desk.settings.paths.store):
        pass
    with pytest.raises(UsageError):
        prepared(desk, image="nobody.example/none:1")
    assert asked(desk) == ["image", "pull", "nobody.example/none:1"]
    assert desk.seen.phases == ["Preparing", "Pulling"]


def test_an_interrupt_ends_the_building(desk: TestDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, HANGS)
    with interrupted(lambda: desk.seen.lines):
        prepared(desk, env="build.envd")
    until(lambda: not background.is_ending())
    assert desk.seen.ends == [("Stopped", "interrupted before anything was submitted")]
