"""The live view: how often it draws, what it keeps of a flood, what it says at the end."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from danlu.jobs.types import LogLine, Progress
from danlu.notebook.board import Board, Line
from danlu.notebook.live import Live, links, read
from danlu.notebook.screens import CellScreen, TerminalView
from tests.commands.fakejobs import START, line, replica, view


class Screen:
    def __init__(self) -> None:
        self.boards: list[Board] = []

    def draw(self, board: Board) -> None:
        self.boards.append(board)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def live(screen: Screen, clock: Clock | None = None, **options: Any) -> Live:
    return Live(screen, clock=clock or Clock(), **options)


def test_views_and_lines_are_drawn_four_times_a_second_at_most() -> None:
    screen, clock = Screen(), Clock()
    shown = live(screen, clock)
    for step in range(1000):
        clock.now = step / 1000
        shown.line(line(f"{step}", number=step))
        shown.view(view())
        shown.tick()
    assert len(screen.boards) == 4


def test_a_flood_is_kept_short_and_read_only_when_it_is_shown() -> None:
    screen = Screen()
    shown = live(screen, lines=50)
    unreadable: Any = object()
    flood = LogLine(replica(0), 0, 0, START, unreadable)
    for number in range(50_000):
        shown.line(replace(flood, number=number))
    last = [line(f"line {number}", number=number) for number in range(50_000, 50_050)]
    for one in last:
        shown.line(one)
    board = shown.board()
    assert [one.text for one in board.lines] == [
        f"line {number}" for number in range(50_000, 50_050)
    ]
    assert board.written == 50_050


def test_lines_before_those_that_were_given_are_counted() -> None:
    shown = live(Screen())
    shown.line(line("a", number=9))
    shown.line(line("b", 1, number=4))
    assert shown.board().written == 15


def test_time_alone_is_drawn_once_a_second_and_later_more_rarely() -> None:
    screen, clock = Screen(), Clock()
    shown = live(screen, clock)
    shown.view(view())
    drawn = len(screen.boards)
    for step in range(100):
        clock.now = step / 10
        shown.tick()
    assert len(screen.boards) - drawn <= 10
    drawn = len(screen.boards)
    for step in range(600):
        clock.now = 3600 + step / 10
        shown.tick()
    assert 5 <= len(screen.boards) - drawn <= 7


def test_what_is_done_to_a_job_is_said_at_once_and_until_it_is_over() -> None:
    screen = Screen()
    shown = live(screen)
    shown.view(view())
    shown.phase("Stopping")
    shown.view(view("Failed"))
    assert shown.board().state == "Stopping"
    shown.ended("Stopped", "demo was interrupted")
    shown.tick()
    assert (screen.boards[-1].state, screen.boards[-1].ended) == ("Stopped", "demo was interrupted")


def test_metrics_become_curves_by_the_time_of_their_report() -> None:
    shown = live(Screen())
    for seconds, loss in ((1, 4.0), (1, 4.0), (3, 2.0)):
        at = START + timedelta(seconds=seconds)
        shown.view(view(progress=Progress(metrics={"loss": loss}, updated=at)))
    (series,) = shown.board().series
    assert series.points == ((1.0, 4.0), (3.0, 2.0))


def test_warnings_are_shown_once() -> None:
    shown = live(Screen())
    shown.view(view(warnings=("not enforced",)))
    shown.view(view(warnings=("not enforced", "no GPU")))
    assert shown.board().notes == ("not enforced", "no GPU")


def test_a_long_line_is_read_only_so_far() -> None:
    data = b"x" * 60_000
    assert len(read(line(data)).text) == 4096
    assert read(line(b"5 %\r" * 9000 + b"100 %")) == Line("worker-0", "100 %")


def test_a_line_is_cleaned_of_colours_and_of_what_is_no_text() -> None:
    assert read(line(b"\x1b[31mred\x1b[0m \xff\x00")) == Line("worker-0", "red \ufffd")


def test_the_time_of_a_finished_job_stands_still() -> None:
    shown = live(Screen())
    shown.view(view("Succeeded", seconds=2.5))
    assert shown.board().seconds == 2.5
    shown.view(replace(view(), created=datetime.now(UTC)))
    assert (shown.board().seconds or 0.0) < 2


def test_logs_below_the_notebook_are_linked_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for place in ("jobs/my job/logs", ".home/jobs/x/logs"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "worker-0.log").touch()
    found = links(tmp_path / "jobs/my job/logs", tmp_path)
    assert found == {"worker-0": "jobs/my%20job/logs/worker-0.log"}
    assert links(tmp_path / ".home/jobs/x/logs", tmp_path) == {}
    assert links(tmp_path / "jobs/my job/logs", tmp_path / ".home") == {}
    assert links(tmp_path / "jobs/my job/logs", None) == {}


def test_a_cell_has_one_output_that_is_replaced() -> None:
    published: list[dict[str, Any]] = []

    class Publisher:
        def publish(self, **message: Any) -> None:
            published.append(message)

    screen = CellScreen(Publisher())
    screen.draw(Board(name="demo", state="Running"))
    screen.draw(Board(name="demo", state="Succeeded"))
    first, second = published
    assert first["transient"] == second["transient"]
    assert (first["update"], second["update"]) == (False, True)
    assert set(first["data"]) == {"text/html", "text/plain"}


def test_a_terminal_gets_lines_states_and_the_end() -> None:
    out = io.StringIO()
    shown = TerminalView(out)
    shown.phase("Submitting", name="demo")
    shown.view(view(warnings=("not enforced",)))
    shown.line(line("hello \x1b[31mred"))
    shown.view(view())
    shown.tick()
    shown.ended("Succeeded", "demo succeeded in 2.5 s")
    assert out.getvalue().splitlines() == [
        "demo: Submitting",
        "! not enforced",
        "demo: Running",
        "worker-0 │ hello red",
        "demo succeeded in 2.5 s",
    ]
