"""Building and pulling images in a subprocess before a cell's job."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import Span, UsageError
from danlu.graph.progress import Finished, Message, Started
from danlu.jobs.types import Submission
from danlu.notebook import background_loop, submission
from danlu.notebook.submission import prepare_submission
from danlu.store import Store
from danlu.submission.options import TrainOptions
from tests.notebook.cell_context import FakeCellContext
from tests.notebook.interrupts import interrupt_when, until

BUILD = 'def build():\n    base(image="nobody.example/none")\n'

#: A fake danlu that records its arguments in a file and prints them.
PROGRAM = """
import json, pathlib, sys
words = sys.argv[1:]
print("asked", *words[:2], flush=True)
pathlib.Path("asked.json").write_text(json.dumps(words))
"""

HANGS = PROGRAM + "import time\ntime.sleep(60)\n"
#: Builds a vertex, prints a line that is not an event, and reports an error.
REPORTS = (
    PROGRAM
    + r"""
started = dict(vertex="sha256:1", name="numpy 2.4.0", branch="python", time=0.5)
events = [
    dict(type="started", **started),
    dict(type="finished", **started, seconds=1.5, cached=False, size=3 << 20, error=""),
    dict(type="message", text="pulling", time=2.0),
    dict(type="ended", time=2.0),
    dict(type="built", config="sha256:1"),
    dict(type="error", message="no such package", hint="did you mean numpy?", details=["a", "b"],
         file="build.envd", line=2, column=5, exit_code=2),
]
for event in events:
    print(json.dumps(event), file=sys.stderr, flush=True)
print("{not an event}", flush=True)
sys.exit(2)
"""
)
REFUSES = PROGRAM + "print('no such package', flush=True)\nsys.exit(2)\n"


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCellContext:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.envd").write_text(BUILD)
    return FakeCellContext(tmp_path)


def replace_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(
        submission, "danlu_command", lambda *words: [sys.executable, "-c", code, *words]
    )


def prepare_job(context: FakeCellContext, **fields: Any) -> Submission:
    order = TrainOptions(
        directory=context.directory, command=("python", "x.py"), framework="pytorch", **fields
    )
    view = context.view()
    act = partial(prepare_submission, order, context.settings, view, jobs=context.jobs())
    return background_loop.run(act)


def read_command(context: FakeCellContext) -> list[str]:
    words = json.loads((context.directory / "asked.json").read_text())
    assert isinstance(words, list)
    return words


def test_nothing_is_built_if_no_image_is_needed(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_program(monkeypatch, PROGRAM)
    prepare_job(context, python=sys.executable)
    assert context.last_view.phases == ["Preparing"]
    assert not (context.directory / "asked.json").exists()


def test_environment_is_built_in_a_subprocess_with_visible_output(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_program(monkeypatch, REFUSES)
    with pytest.raises(UsageError, match="danlu build -f failed with exit code 2") as error:
        prepare_job(context, env="build.envd")
    assert read_command(context)[:2] == ["build", "-f"]
    assert read_command(context)[2] == f"{context.directory}/build.envd:build"
    assert context.last_view.phases == ["Preparing", "Building"]
    assert context.last_view.lines == ["build │ asked build -f", "build │ no such package"]
    assert error.value.details[-1] == "no such package"
    assert context.last_view.ends[0][0] == "Failed"


def test_build_reports_its_progress_and_its_error(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_program(monkeypatch, REPORTS)
    with pytest.raises(UsageError, match=r"^no such package$") as error:
        prepare_job(context, env="build.envd")
    assert error.value.hint == "did you mean numpy?"
    assert error.value.details == ("a", "b")
    assert error.value.span == Span("build.envd", 2, 5)
    view = context.last_view
    assert [type(event) for event in view.build_events] == [Started, Finished, Message]
    assert view.lines == [
        "build │ asked build -f",
        "build │ {not an event}",
    ]
    assert view.ends == [("Failed", "no such package")]


def test_missing_image_is_pulled(context: FakeCellContext, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_program(monkeypatch, REFUSES)
    with Store.open(context.settings.paths.store):
        pass
    with pytest.raises(UsageError):
        prepare_job(context, image="nobody.example/none:1")
    assert read_command(context) == ["image", "pull", "--progress", "json", "nobody.example/none:1"]
    assert context.last_view.phases == ["Preparing", "Pulling"]


def test_interrupt_stops_the_build(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_program(monkeypatch, HANGS)
    with interrupt_when(lambda: context.last_view.lines):
        prepare_job(context, env="build.envd")
    until(lambda: not background_loop.has_pending_cleanup())
    assert context.last_view.ends == [("Stopped", "interrupted before the job was submitted")]
