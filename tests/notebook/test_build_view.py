"""The build before a job, as cells show it."""

from __future__ import annotations

import io

import msgspec
import pytest

from danlu.graph.progress import Ended, Event, Finished, Log, Message, Started, Transfer
from danlu.notebook.build_view import BuildTracker
from danlu.notebook.job_view import LiveJobView, TerminalJobView
from danlu.notebook.rendering import MAX_BYTES, json_size, render_mime_bundle
from danlu.notebook.sweeps import LiveSweepView, TerminalSweepView
from danlu.project.build_view_model import BuildRow, event_fields, parse_event
from danlu.submission.job_view_model import JobSnapshot


class ManualClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def start(name: str, branch: str = "python") -> Started:
    return Started(f"id of {name}", name, branch, 0.0)


def finish(name: str, branch: str = "python", *, cached: bool = False, error: str = "") -> Finished:
    size = 0 if cached else 3 << 20
    return Finished(f"id of {name}", name, branch, 1.0, 1.5, cached, size, error)


EVENTS: list[Event] = [
    start("numpy 2.4.0"),
    finish("numpy 2.4.0"),
    Log("v", "step", "a line", 0.5),
    Transfer("v", "layer", 10, 100, 0.5),
    Message("resolving", 0.1),
]


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_their_way_from_the_build(event: Event) -> None:
    assert parse_event(msgspec.json.encode(event_fields(event)).decode()) == event


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", '{"type": "started"}', '{"type": ["log"]}', '{"text": "a", "time": 1.0}'],
)
def test_other_lines_are_not_events(line: str) -> None:
    assert parse_event(line) is None


def test_rows_show_branches_and_what_runs() -> None:
    clock = ManualClock()
    build = BuildTracker(clock)
    assert build.rows() == ()
    for name in ("a", "b"):
        build.handle(finish(name, cached=True))
    build.handle(start("torch 2.13.0"))
    clock.now += 2
    build.handle(Transfer("id of torch 2.13.0", "torch 2.13.0", 25 << 20, 100 << 20, 2.0))
    build.handle(Log("id of torch 2.13.0", "torch 2.13.0", "un\x1b[1mpacking", 2.0))
    python, torch = build.rows()
    assert python == BuildRow("python", "2 cached", 2.0)
    assert torch == BuildRow(
        "torch 2.13.0",
        "26 MB of 105 MB",
        2.0,
        is_vertex=True,
        fraction=0.25,
        lines=("unpacking",),
    )
    build.handle(finish("torch 2.13.0"))
    assert build.reset() == "python 1 built, 2 cached, 3.1 MB"
    assert build.rows() == ()


def test_cell_shows_the_build_until_the_next_step() -> None:
    snapshots: list[JobSnapshot] = []
    view = LiveJobView(snapshots.append, clock=ManualClock())
    view.phase("Building")
    view.build_event(start("<b>numpy</b> 2.4.0"))
    output = render_mime_bundle(view.snapshot())
    assert "&lt;b&gt;numpy&lt;/b&gt; 2.4.0" in output["text/html"]
    assert "<b>numpy" not in output["text/html"]
    assert "python" in output["text/plain"]
    view.build_event(finish("<b>numpy</b> 2.4.0"))
    view.phase("Submitting")
    after = view.snapshot()
    assert after.build == ()
    assert [line.text for line in after.lines] == ["python 1 built, 3.1 MB"]


def test_large_build_fits_into_a_message() -> None:
    view = LiveJobView(lambda snapshot: None, clock=ManualClock())
    for branch in range(12):
        for number in range(30):
            name = f"{branch}-{number} " + "é" * 400
            view.build_event(Started(name, name, f"branch {branch}", 0.0))
            for line in range(9):
                view.build_event(Log(name, name, f"{line} " + "<" * 400, 0.0))
    data = render_mime_bundle(view.snapshot())
    assert sum(map(json_size, data.values())) <= MAX_BYTES


def test_terminal_prints_built_vertices_and_failures() -> None:
    out = io.StringIO()
    view = TerminalJobView(out)
    events: list[Event] = [start("a"), finish("a"), finish("b", cached=True)]
    for event in events:
        view.build_event(event)
    view.build_event(finish("c", error="no space\nleft"))
    view.build_event(Ended(2.0))
    view.tick()
    assert out.getvalue().splitlines() == [
        "build │ [python] a 1.5 s, 3.1 MB",
        "build │ [python] c failed after 1.5 s: no space",
    ]


def test_sweeps_show_the_build_before_them() -> None:
    output: list[dict[str, str]] = []
    clock = ManualClock()
    view = LiveSweepView(output.append, clock=clock)
    view.phase("Building")
    view.build_event(start("numpy 2.4.0"))
    clock.now += 1
    view.tick()
    assert "numpy 2.4.0" in output[-1]["text/plain"]
    assert "numpy 2.4.0" in output[-1]["text/html"]
    view.phase("Running")
    assert "numpy" not in output[-1]["text/html"]


def test_sweeps_on_a_terminal_print_built_vertices() -> None:
    out = io.StringIO()
    view = TerminalSweepView(out)
    events: list[Event] = [start("a"), finish("a"), finish("b", cached=True)]
    for event in events:
        view.build_event(event)
    assert out.getvalue() == "build │ [python] a 1.5 s, 3.1 MB\n"
