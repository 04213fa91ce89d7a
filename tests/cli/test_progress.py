"""What a build's events look like, in each of the renderers."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Iterable

import pytest

from danlu.cli.progress import make
from danlu.cli.progress.board import Board, Row
from danlu.cli.progress.plain import Plain
from danlu.cli.terminal import Terminal, clean, columns
from danlu.graph.progress import Ended, Event, Finished, Log, Message, Started, Transfer


class Screen(io.StringIO):
    """A terminal that keeps all that was written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def terminal(screen: io.StringIO | None = None, **environ: str) -> tuple[Terminal, io.StringIO]:
    stream = screen or io.StringIO()
    return Terminal(out=io.StringIO(), err=stream, environ=environ), stream


def started(name: str, branch: str = "python") -> Started:
    return Started(name, name, branch, 0.0)


def finished(name: str, branch: str = "python", *, cached: bool = False, error: str = "") -> Event:
    return Finished(name, name, branch, 0.0, 1.24, cached, 1_500_000, error)


class Plainly:
    """The plain renderer with a clock that stands until it is moved."""

    def __init__(self, *, verbosity: int = 0) -> None:
        self.now = 0.0
        self.terminal, self.stream = terminal()
        self.renderer = Plain(self.terminal, verbosity=verbosity, clock=lambda: self.now)

    def play(self, *events: Event | float) -> str:
        for event in events:
            if isinstance(event, float):
                self.now += event
            else:
                self.renderer.handle(event)
        self.renderer.stop()
        return self.stream.getvalue()


def test_plain_says_nothing_where_all_is_cached() -> None:
    assert Plainly().play(*(finished(str(n), cached=True) for n in range(30))) == ""


def test_plain_counts_what_is_cached_once_something_was_built() -> None:
    shown = Plainly().play(
        finished("a", cached=True), started("numpy 2.4.0"), finished("numpy 2.4.0")
    )
    assert shown == "[python] numpy 2.4.0 1.2 s, 1.5 MB\n[python] 1 cached\n"


def test_plain_marks_each_cached_vertex_when_verbose() -> None:
    assert Plainly(verbosity=1).play(finished("a", cached=True)) == "[python] a cached\n"


def test_plain_announces_what_takes_long_and_only_that() -> None:
    shown = Plainly().play(
        started("quick"), finished("quick"), started("slow"), 2.0, Message("x", 0.0)
    )
    assert shown.splitlines()[1:] == ["x", "[python] slow …"]


def test_plain_announces_many_in_one_line() -> None:
    events = [started(f"p{number}") for number in range(40)]
    shown = Plainly().play(*events, 2.0, Message("x", 0.0))
    assert shown == "x\n[python] p0 and 39 more …\n"


def test_plain_prefixes_the_output_of_steps() -> None:
    shown = Plainly().play(started("run make", "steps"), Log("run make", "run make", "cc a.c", 0.0))
    assert shown == "[steps] run make …\n[steps] run make | cc a.c\n"


def test_plain_leaves_the_chatter_of_installers_out_unless_verbose() -> None:
    events = (started("apt", "system"), Log("apt", "apt", "Unpacking", 0.0))
    assert Plainly().play(*events) == ""
    assert "Unpacking" in Plainly(verbosity=1).play(*events)


def test_plain_tells_of_a_long_transfer_now_and_then() -> None:
    tick = [Transfer("torch", "torch", 10**6 * n, 10**8, 0.0) for n in range(25)]
    events: list[Event | float] = [started("torch")]
    for one in tick:
        events += [one, 1.0]
    shown = Plainly().play(*events).splitlines()
    assert shown[0] == "[python] torch …"
    assert [line for line in shown if "of 100 MB" in line] == [
        "[python] torch … 10.0 MB of 100 MB",
        "[python] torch … 20.0 MB of 100 MB",
    ]


def test_plain_says_what_failed() -> None:
    assert Plainly().play(finished("make", "steps", error="code 2\nmore")) == (
        "[steps] make failed after 1.2 s: code 2\n"
    )


def test_json_is_one_event_a_line_with_the_events_fields() -> None:
    view, stream = terminal()
    renderer = make("json", view)
    for event in (
        started("a"),
        finished("a"),
        Transfer("a", "a", 1, 2, 0.5),
        Log("a", "a", "\x1b", 1),
    ):
        renderer.handle(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one["type"] for one in lines] == ["started", "finished", "transfer", "log"]
    assert lines[0] == {
        "type": "started",
        "vertex": "a",
        "name": "a",
        "branch": "python",
        "time": 0.0,
    }
    assert lines[1]["cached"] is False
    assert lines[3]["line"] == "\x1b"


def test_quiet_is_quiet() -> None:
    view, stream = terminal()
    renderer = make("quiet", view)
    renderer.handle(started("a"))
    renderer.stop()
    assert stream.getvalue() == ""


def test_auto_is_plain_where_nobody_watches_and_live_on_a_terminal() -> None:
    assert type(make("auto", terminal()[0])).__name__ == "Plain"
    assert type(make("auto", terminal(Screen(), TERM="xterm")[0])).__name__ == "Live"
    assert type(make("auto", terminal(Screen(), TERM="dumb")[0])).__name__ == "Plain"


def rows(board: Board, *, width: int = 80, height: int = 20, now: float = 5.0) -> list[Row]:
    return board.rows(now, width=width, height=height)


def played(events: Iterable[Event]) -> Board:
    board = Board()
    for event in events:
        board.take(event, 1.0)
    return board


def test_the_tree_shows_branches_in_the_order_of_a_build() -> None:
    board = played(
        [started("s", "steps"), started("n", "python"), finished("b", "base", cached=True)]
    )
    left = [row.left for row in rows(board)]
    assert left == ["building", "  base     1 cached", "  python", "    n", "  steps", "    s"]


@pytest.mark.parametrize("height", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("width", [20, 33, 200])
def test_the_tree_fits_every_terminal(width: int, height: int) -> None:
    events: list[Event] = [
        started(f"package-{n} 丹炉 with a long name", "python") for n in range(60)
    ]
    events += [started("apt", "system"), Log("apt", "apt", "x" * 300, 0.0)]
    shown = rows(played(events), width=width, height=height)
    assert len(shown) <= height
    for row in shown:
        assert columns(row.left) + len(row.right) + 2 <= max(width, 20)


def test_what_does_not_fit_is_counted() -> None:
    board = played([started(f"p{n}") for n in range(60)])
    assert rows(board)[-1].left == "    … and 52 more"


def test_the_tree_shows_bytes_and_the_last_lines_of_what_runs() -> None:
    moved = Transfer("torch", "torch", 5 * 10**6, 10**7, 0.0)
    lines = [Log("torch", "torch", f"line {n}", 0.0) for n in range(9)]
    board = played([started("torch"), moved, *lines])
    left = [row.left.strip() for row in rows(board)]
    assert "torch  5.0 MB of 10.0 MB" in left
    assert left[-1] == "line 8"


def test_bytes_of_a_push_are_shown_although_it_is_no_vertex() -> None:
    board = played([Transfer("r/a:1", "r/a:1", 5, 10, 0.0)])
    assert any("r/a:1  5 B of 10 B" in row.left for row in rows(board))


def test_a_programs_output_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2J\x1b]0;t\x07b\rc\x00\u202e") == "abc"


def live(screen: Screen) -> tuple[Terminal, object]:
    view, _ = terminal(screen, TERM="xterm", COLUMNS="80", LINES="24")
    return view, make("live", view)


def until(condition: object, seconds: float = 10.0) -> bool:
    assert callable(condition)
    end = threading.Event()
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        end.wait(0.02)
    return bool(condition())


def test_live_draws_nothing_where_nothing_runs() -> None:
    screen = Screen()
    _, renderer = live(screen)
    for number in range(30):
        renderer.handle(finished(str(number), cached=True))  # type: ignore[attr-defined]
    renderer.stop()  # type: ignore[attr-defined]
    assert screen.getvalue() == ""


def test_live_leaves_the_terminal_as_it_found_it() -> None:
    screen = Screen()
    _, renderer = live(screen)
    renderer.handle(started("numpy 2.4.0"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy 2.4.0" in screen.getvalue())
    renderer.handle(Ended(0.0))  # type: ignore[attr-defined]
    shown = screen.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert re.search(r"\x1b\[2K(\x1b\[\?25h)?[^a-z]*$", shown)


def test_live_gives_the_screen_free_when_nothing_runs_any_more() -> None:
    screen = Screen()
    _, renderer = live(screen)
    renderer.handle(started("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy" in screen.getvalue())
    renderer.handle(finished("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: screen.getvalue().count("\x1b[?25h") == 1)
    renderer.handle(started("pandas"))  # type: ignore[attr-defined]
    assert until(lambda: "pandas" in screen.getvalue())
    renderer.stop()  # type: ignore[attr-defined]


def test_words_said_while_the_tree_is_drawn_stay_above_it() -> None:
    screen = Screen()
    view, renderer = live(screen)
    renderer.handle(started("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy" in screen.getvalue())
    view.say("a warning")
    renderer.stop()  # type: ignore[attr-defined]
    assert "a warning" in screen.getvalue()
