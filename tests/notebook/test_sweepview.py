"""The table of a sweep: what is shown of it, and how large that is."""

from __future__ import annotations

import io
import json

from msgspec.structs import replace

from danlu.commands.sweepreport import Measure, SweepReport, Trial
from danlu.jobs.types import Progress
from danlu.notebook.board import Line
from danlu.notebook.render import MOST
from danlu.notebook.sweepview import SweepLive, TerminalSweep, best_sentence, bundle
from tests.notebook.boards import ATTRIBUTES, TAGS, read

REPORT = SweepReport(
    Measure("loss", asked=True),
    (
        Trial(1, {"lr": "0.1"}, "demo-1", "Succeeded", 0.25, 1.5),
        Trial(2, {"lr": "0.2"}, "demo-2", "Failed", None, 0.5, "worker-0: exit code 1"),
        Trial(3, {"lr": "0.3"}, "demo-3", progress=Progress(40, None, {"loss": 0.5})),
    ),
    total=4,
)


class Shown:
    def __init__(self) -> None:
        self.pieces: list[dict[str, str]] = []

    def show(self, data: dict[str, str]) -> None:
        self.pieces.append(data)


def test_each_trial_has_a_row_with_its_point_and_what_it_reports() -> None:
    assert bundle(REPORT, name="demo", state="Running")["text/plain"].splitlines() == [
        "demo Running 2 of 4 ended",
        "job     lr   state                          loss  time",
        "demo-1  0.1  Succeeded                      0.25  1.5 s",
        "demo-2  0.2  Failed: worker-0: exit code 1  -     500 ms",
        "demo-3  0.3  Running 40 %                   0.5   -",
    ]


def test_the_best_trial_stands_out() -> None:
    html = bundle(REPORT, name="demo", state="Running")["text/html"]
    assert "<b>demo-1</b>" in html
    assert "<b>demo-2</b>" not in html


def test_nothing_of_a_sweep_becomes_html() -> None:
    bad = "<script>'\""
    trial = Trial(1, {bad: bad}, bad, "Failed", 1.0, 1.0, bad)
    report = SweepReport(Measure(bad), (trial,), 1)
    shown = bundle(report, name=bad, state=bad, words=bad, lines=[Line(bad, bad)])
    reader = read(shown["text/html"])
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert reader.text.count(bad) >= 9


def test_no_sweep_is_larger_than_a_message_may_be() -> None:
    text = "<丹" * 100
    point = {f"{text}{number}": text for number in range(30)}
    trials = tuple(Trial(n, point, text, "Failed", 1.0, 1.0, text) for n in range(1, 500))
    report = SweepReport(Measure(text), trials, 10_000)
    shown = bundle(report, name="demo", state="Running", words=text * 20)
    assert len(json.dumps(shown, ensure_ascii=False).encode()) <= MOST
    assert "… and " in read(shown["text/html"]).text


def test_of_many_trials_those_that_run_and_the_best_are_shown() -> None:
    trials = [Trial(n, {"lr": str(n)}, f"demo-{n}", "Succeeded", n / 7, 1.0) for n in range(1, 201)]
    trials[99] = replace(trials[99], state="Running", value=None)
    text = bundle(SweepReport(Measure(), tuple(trials), 200), name="demo", state="Running")[
        "text/plain"
    ]
    assert "demo-100 " in text
    assert "demo-1 " in text
    assert "demo-199 " not in text
    assert "… and 140 more" in text


def test_a_sweep_is_drawn_four_times_a_second_at_most() -> None:
    shown, now = Shown(), [0.0]
    live = SweepLive(shown, clock=lambda: now[0])
    live.phase("Running", name="demo")
    for step in range(1000):
        now[0] = step / 1000
        live.changed(REPORT)
    assert 1 < len(shown.pieces) <= 5
    live.ended("Succeeded", "best: demo-1")
    assert shown.pieces[-1]["text/plain"].endswith("best: demo-1")


def test_a_terminal_is_told_of_each_trial_when_it_begins_and_ends() -> None:
    out = io.StringIO()
    view = TerminalSweep(out)
    view.changed(REPORT)
    view.changed(REPORT)
    ended = replace(REPORT.trials[2], state="Succeeded", value=0.5, seconds=2.0)
    view.changed(replace(REPORT, trials=(*REPORT.trials[:2], ended)))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["demo-1", "demo-2", "demo-3", "demo-3"]


def test_the_end_names_the_best_trial_or_why_there_is_none() -> None:
    assert best_sentence(REPORT) == "best: demo-1 (lr=0.1) with loss 0.25"
    other = replace(REPORT, trials=(replace(REPORT.trials[0], value=None),))
    assert best_sentence(other) == "no job reported loss"
    found = replace(other, measure=Measure("loss", pattern="x(.*)"))
    assert best_sentence(found) == "no log has a line that 'x(.*)' finds a number in"
    assert best_sentence(replace(REPORT, trials=REPORT.trials[1:2])) == "none of 1 jobs succeeded"
