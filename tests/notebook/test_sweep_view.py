"""The table of a sweep: visible rows and size."""

from __future__ import annotations

import io
import json

from msgspec.structs import replace

from danlu.notebook.rendering import MAX_BYTES
from danlu.notebook.sweeps import LiveSweepView, TerminalSweepView, render_sweep
from danlu.submission.job_view_model import OutputLine
from danlu.sweeps.report import SweepObjective, SweepReport, SweepTrial
from danlu.training.progress import TrainingProgress
from tests.notebook.job_snapshots import ATTRIBUTES, TAGS, read

REPORT = SweepReport(
    SweepObjective("loss", asked=True),
    (
        SweepTrial(1, {"lr": "0.1"}, "demo-1", "Succeeded", 0.25, 1.5),
        SweepTrial(2, {"lr": "0.2"}, "demo-2", "Failed", None, 0.5, "worker-0: exit code 1"),
        SweepTrial(3, {"lr": "0.3"}, "demo-3", progress=TrainingProgress(40, None, {"loss": 0.5})),
    ),
    total=4,
)


class RecordingDisplay:
    def __init__(self) -> None:
        self.pieces: list[dict[str, str]] = []


def test_every_trial_has_a_row() -> None:
    assert render_sweep(REPORT, name="demo", state="Running")["text/plain"].splitlines() == [
        "demo Running 2 of 4 finished",
        "job     lr   state                          loss  duration",
        "demo-1  0.1  Succeeded                      0.25  1.5 s",
        "demo-2  0.2  Failed: worker-0: exit code 1  -     500 ms",
        "demo-3  0.3  Running 40 %                   0.5   -",
    ]


def test_best_trial_is_bold() -> None:
    html = render_sweep(REPORT, name="demo", state="Running")["text/html"]
    assert "<b>demo-1</b>" in html
    assert "<b>demo-2</b>" not in html


def test_text_of_a_sweep_is_escaped_in_html() -> None:
    bad = "<script>'\""
    trial = SweepTrial(1, {bad: bad}, bad, "Failed", 1.0, 1.0, bad)
    report = SweepReport(SweepObjective(bad), (trial,), 1)
    output = render_sweep(report, name=bad, state=bad, summary=bad, lines=[OutputLine(bad, bad)])
    reader = read(output["text/html"])
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert reader.text.count(bad) >= 9


def test_sweep_never_exceeds_the_message_size() -> None:
    text = "<丹" * 100
    point = {f"{text}{number}": text for number in range(30)}
    trials = tuple(SweepTrial(n, point, text, "Failed", 1.0, 1.0, text) for n in range(1, 500))
    report = SweepReport(SweepObjective(text), trials, 10_000)
    output = render_sweep(report, name="demo", state="Running", summary=text * 20)
    assert len(json.dumps(output, ensure_ascii=False).encode()) <= MAX_BYTES
    assert "… and " in read(output["text/html"]).text


def test_running_and_best_trials_are_shown_first() -> None:
    trials = [
        SweepTrial(n, {"lr": str(n)}, f"demo-{n}", "Succeeded", n / 7, 1.0) for n in range(1, 201)
    ]
    trials[99] = replace(trials[99], state="Running", value=None)
    text = render_sweep(
        SweepReport(SweepObjective(), tuple(trials), 200), name="demo", state="Running"
    )["text/plain"]
    assert "demo-100 " in text
    assert "demo-1 " in text
    assert "demo-199 " not in text
    assert "… and 140 more" in text


def test_live_sweep_draws_at_most_four_times_a_second() -> None:
    output, now = RecordingDisplay(), [0.0]
    live = LiveSweepView(output.pieces.append, clock=lambda: now[0])
    live.phase("Running", name="demo")
    for step in range(1000):
        now[0] = step / 1000
        live.update(REPORT)
    assert 1 < len(output.pieces) <= 5
    live.finish("Succeeded", "best: demo-1")
    assert output.pieces[-1]["text/plain"].endswith("best: demo-1")


def test_terminal_sweep_writes_each_state_change() -> None:
    out = io.StringIO()
    view = TerminalSweepView(out)
    view.update(REPORT)
    view.update(REPORT)
    result = replace(REPORT.trials[2], state="Succeeded", value=0.5, seconds=2.0)
    view.update(replace(REPORT, trials=(*REPORT.trials[:2], result)))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["demo-1", "demo-2", "demo-3", "demo-3"]
