"""Building and pulling images in a subprocess before a cell's job."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from danlu.commands.train.options import TrainOptions
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.notebook import background_loop, submission
from danlu.notebook.submission import prepare_submission
from danlu.store import Store
from tests.notebook.contexts import FakeCellContext
from tests.notebook.interrupts import interrupted, until

BUILD = 'def build():\n    base(image="nobody.example/none")\n'

#: A fake danlu that records its arguments in a file and prints them.
PROGRAM = """
import json, pathlib, sys
words = sys.argv[1:]
print("asked", *words[:2], flush=True)
pathlib.Path("asked.json").write_text(json.dumps(words))
"""

HANGS = PROGRAM + "import time\ntime.sleep(60)\n"
REFUSES = PROGRAM + "print('no such package', flush=True)\nsys.exit(2)\n"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCellContext:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.envd").write_text(BUILD)
    return FakeCellContext(tmp_path)


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(
        submission, "danlu_command", lambda *words: [sys.executable, "-c", code, *words]
    )


def prepared(context: FakeCellContext, **fields: Any) -> Submission:
    order = TrainOptions(
        directory=context.directory, command=("python", "x.py"), framework="pytorch", **fields
    )
    view = context.view()
    act = partial(prepare_submission, order, context.settings, view, jobs=context.jobs())
    return background_loop.run(act)


def asked(context: FakeCellContext) -> list[str]:
    words = json.loads((context.directory / "asked.json").read_text())
    assert isinstance(words, list)
    return words


def test_nothing_is_built_if_no_image_is_needed(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, PROGRAM)
    prepared(context, python=sys.executable)
    assert context.last_view.phases == ["Preparing"]
    assert not (context.directory / "asked.json").exists()


def test_environment_is_built_in_a_subprocess_with_visible_output(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, REFUSES)
    with pytest.raises(UsageError, match="danlu build -f failed with exit code 2") as raised:
        prepared(context, env="build.envd")
    assert asked(context)[:2] == ["build", "-f"]
    assert asked(context)[2] == f"{context.directory}/build.envd:build"
    assert context.last_view.phases == ["Preparing", "Building"]
    assert context.last_view.lines == ["build │ asked build -f", "build │ no such package"]
    assert raised.value.details[-1] == "no such package"
    assert context.last_view.ends[0][0] == "Failed"


def test_missing_image_is_pulled(context: FakeCellContext, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, REFUSES)
    with Store.open(context.settings.paths.store):
        pass
    with pytest.raises(UsageError):
        prepared(context, image="nobody.example/none:1")
    assert asked(context) == ["image", "pull", "nobody.example/none:1"]
    assert context.last_view.phases == ["Preparing", "Pulling"]


def test_interrupt_stops_the_build(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, HANGS)
    with interrupted(lambda: context.last_view.lines):
        prepared(context, env="build.envd")
    until(lambda: not background_loop.has_pending_cleanup())
    assert context.last_view.ends == [("Stopped", "interrupted before the job was submitted")]
