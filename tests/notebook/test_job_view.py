"""The live view: drawing intervals, bounded logs, final state."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from danlu.jobs.types import LogLine
from danlu.notebook.job_view import (
    CellOutput,
    LiveJobView,
    TerminalJobView,
    log_links,
    output_line,
)
from danlu.notebook.rendering import render_mime_bundle
from danlu.submission.job_view_model import JobSnapshot, OutputLine
from danlu.training.progress import TrainingProgress
from tests.jobs.fake_jobs import START, line, replica, view


class FakeScreen:
    def __init__(self) -> None:
        self.boards: list[JobSnapshot] = []


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def live(screen: FakeScreen, clock: ManualClock | None = None, **options: Any) -> LiveJobView:
    return LiveJobView(screen.boards.append, clock=clock or ManualClock(), **options)


def test_live_view_draws_at_most_four_times_a_second() -> None:
    screen, clock = FakeScreen(), ManualClock()
    output = live(screen, clock)
    for step in range(1000):
        clock.now = step / 1000
        output.line(line(f"{step}", number=step))
        output.view(view())
        output.tick()
    assert len(screen.boards) == 4


def test_log_flood_is_bounded_and_decoded_only_when_drawn() -> None:
    screen = FakeScreen()
    text = live(screen, lines=50)
    unreadable: Any = object()
    flood = LogLine(replica(0), 0, 0, START, unreadable)
    for number in range(50_000):
        text.line(replace(flood, number=number))
    last = [line(f"line {number}", number=number) for number in range(50_000, 50_050)]
    for log_line in last:
        text.line(log_line)
    board = text.snapshot()
    assert [output.text for output in board.lines] == [
        f"line {number}" for number in range(50_000, 50_050)
    ]
    assert board.written == 50_050


def test_lines_before_the_tail_are_counted() -> None:
    output = live(FakeScreen())
    output.line(line("a", number=9))
    output.line(line("b", 1, number=4))
    assert output.snapshot().written == 15


def test_idle_redraws_become_less_frequent() -> None:
    screen, clock = FakeScreen(), ManualClock()
    output = live(screen, clock)
    output.view(view())
    drawn = len(screen.boards)
    for step in range(100):
        clock.now = step / 10
        output.tick()
    assert len(screen.boards) - drawn <= 10
    drawn = len(screen.boards)
    for step in range(600):
        clock.now = 3600 + step / 10
        output.tick()
    assert 5 <= len(screen.boards) - drawn <= 7


def test_phase_is_drawn_immediately_and_kept() -> None:
    screen = FakeScreen()
    output = live(screen)
    output.view(view())
    output.phase("Stopping")
    output.view(view("Failed"))
    assert output.snapshot().state == "Stopping"
    output.finish("Stopped", "demo was interrupted")
    output.tick()
    assert (screen.boards[-1].state, screen.boards[-1].summary) == (
        "Stopped",
        "demo was interrupted",
    )


def test_metrics_become_charts_by_report_time() -> None:
    output = live(FakeScreen())
    for seconds, loss in ((1, 4.0), (1, 4.0), (3, 2.0)):
        at = START + timedelta(seconds=seconds)
        output.view(view(progress=TrainingProgress(metrics={"loss": loss}, updated=at)))
    (series,) = output.snapshot().series
    assert series.points == ((1.0, 4.0), (3.0, 2.0))


def test_warnings_are_shown_once() -> None:
    output = live(FakeScreen())
    output.view(view(warnings=("not enforced",)))
    output.view(view(warnings=("not enforced", "no GPU")))
    assert output.snapshot().notes == ("not enforced", "no GPU")


def test_long_log_line_is_truncated() -> None:
    data = b"x" * 60_000
    assert len(output_line(line(data)).text) == 4096
    assert output_line(line(b"5 %\r" * 9000 + b"100 %")) == OutputLine("worker-0", "100 %")


def test_log_line_is_stripped_of_control_sequences() -> None:
    assert output_line(line(b"\x1b[31mred\x1b[0m \xff\x00")) == OutputLine("worker-0", "red \ufffd")


def test_elapsed_time_of_a_finished_job_is_constant() -> None:
    output = live(FakeScreen())
    output.view(view("Succeeded", seconds=2.5))
    assert output.snapshot().seconds == 2.5
    output.view(replace(view(), created=datetime.now(UTC)))
    assert (output.snapshot().seconds or 0.0) < 2


def test_log_links_exist_only_below_the_notebook(tmp_path: Path) -> None:
    for log_directory in ("jobs/my job/logs", ".home/jobs/x/logs"):
        (tmp_path / log_directory).mkdir(parents=True)
        (tmp_path / log_directory / "worker-0.log").touch()
    result = log_links(tmp_path / "jobs/my job/logs", tmp_path)
    assert result == {"worker-0": "jobs/my%20job/logs/worker-0.log"}
    assert log_links(tmp_path / ".home/jobs/x/logs", tmp_path) == {}
    assert log_links(tmp_path / "jobs/my job/logs", tmp_path / ".home") == {}
    assert log_links(tmp_path / "jobs/my job/logs", None) == {}


def test_cell_output_is_replaced_in_place() -> None:
    published: list[dict[str, Any]] = []

    class RecordingPublisher:
        def publish(self, **message: Any) -> None:
            published.append(message)

    output = CellOutput(RecordingPublisher())
    output.show(render_mime_bundle(JobSnapshot(name="demo", state="Running")))
    output.show(render_mime_bundle(JobSnapshot(name="demo", state="Succeeded")))
    first, second = published
    assert first["transient"] == second["transient"]
    assert (first["update"], second["update"]) == (False, True)
    assert set(first["data"]) == {"text/html", "text/plain"}


def test_terminal_view_writes_lines_states_and_end() -> None:
    out = io.StringIO()
    output = TerminalJobView(out)
    output.phase("Submitting", name="demo")
    output.view(view(warnings=("not enforced",)))
    output.line(line("hello \x1b[31mred"))
    output.view(view())
    output.tick()
    output.finish("Succeeded", "demo succeeded in 2.5 s")
    assert out.getvalue().splitlines() == [
        "demo: Submitting",
        "! not enforced",
        "demo: Running",
        "worker-0 │ hello red",
        "demo succeeded in 2.5 s",
    ]
