"""Rendering of a build's events by each of the renderers."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from collections.abc import Iterable

import pytest

from danlu.cli.progress import make_build_renderer
from danlu.cli.progress.live import ProgressRow, render_rows
from danlu.cli.progress.plain import PlainBuildRenderer
from danlu.cli.terminal import Terminal, text_width
from danlu.graph.progress import Ended, Event, Finished, Log, Message, Started, Transfer
from danlu.project.build_view_model import BuildState
from danlu.util.sanitize import strip_control_sequences


class ProgressTerminal(io.StringIO):
    """A terminal that keeps all that was written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def terminal(screen: io.StringIO | None = None, **environ: str) -> tuple[Terminal, io.StringIO]:
    stream = screen or io.StringIO()
    return Terminal(out=io.StringIO(), err=stream, environ=environ), stream


def make_start_event(name: str, branch: str = "python") -> Started:
    return Started(name, name, branch, 0.0)


def make_finish_event(
    name: str, branch: str = "python", *, cached: bool = False, error: str = ""
) -> Event:
    return Finished(name, name, branch, 0.0, 1.24, cached, 1_500_000, error)


class PlainRendererRun:
    """The plain renderer with a manual clock."""

    def __init__(self, *, verbosity: int = 0) -> None:
        self.now = 0.0
        self.terminal, self.stream = terminal()
        self.renderer = PlainBuildRenderer(
            self.terminal, verbosity=verbosity, clock=lambda: self.now
        )

    def play(self, *events: Event | float) -> str:
        for event in events:
            if isinstance(event, float):
                self.now += event
            else:
                self.renderer.handle(event)
        self.renderer.stop()
        return self.stream.getvalue()


def test_plain_records_which_output_it_has_printed() -> None:
    plain = PlainRendererRun()
    plain.play(
        make_start_event("run make", "steps"),
        Log("run make", "run make", "cc a.c", 0.0),
        make_start_event("apt", "system"),
        Log("apt", "apt", "Unpacking", 0.0),
    )
    assert plain.renderer.is_on_screen(("cc a.c",))
    assert not plain.renderer.is_on_screen(("cc a.c", "Unpacking"))
    assert not plain.renderer.is_on_screen(())


def test_plain_prints_nothing_if_everything_is_cached() -> None:
    assert (
        PlainRendererRun().play(*(make_finish_event(str(n), cached=True) for n in range(30))) == ""
    )


def test_plain_counts_cached_vertices_if_something_was_built() -> None:
    output = PlainRendererRun().play(
        make_finish_event("a", cached=True),
        make_start_event("numpy 2.4.0"),
        make_finish_event("numpy 2.4.0"),
    )
    assert output == "[python] numpy 2.4.0 1.2 s, 1.5 MB\n[python] 1 cached\n"


def test_plain_marks_each_cached_vertex_when_verbose() -> None:
    assert (
        PlainRendererRun(verbosity=1).play(make_finish_event("a", cached=True))
        == "[python] a cached\n"
    )


def test_plain_announces_only_long_running_vertices() -> None:
    output = PlainRendererRun().play(
        make_start_event("quick"),
        make_finish_event("quick"),
        make_start_event("slow"),
        2.0,
        Message("x", 0.0),
    )
    assert output.splitlines()[1:] == ["x", "[python] slow …"]


def test_plain_announces_many_vertices_in_one_line() -> None:
    events = [make_start_event(f"p{number}") for number in range(40)]
    output = PlainRendererRun().play(*events, 2.0, Message("x", 0.0))
    assert output == "x\n[python] p0 and 39 more …\n"


def test_plain_prefixes_the_output_of_steps() -> None:
    output = PlainRendererRun().play(
        make_start_event("run make", "steps"), Log("run make", "run make", "cc a.c", 0.0)
    )
    assert output == "[steps] run make …\n[steps] run make | cc a.c\n"


def test_plain_omits_output_of_installers_unless_verbose() -> None:
    events = (make_start_event("apt", "system"), Log("apt", "apt", "Unpacking", 0.0))
    assert PlainRendererRun().play(*events) == ""
    assert "Unpacking" in PlainRendererRun(verbosity=1).play(*events)


def test_plain_reports_downloads_of_several_files_together() -> None:
    events: list[Event | float] = [
        *map(make_start_event, ("einops", "torch", "numpy", "six")),
        Transfer("torch", "torch", 0, 800_000_000, 0.0),
        Transfer("numpy", "numpy", 0, 20_000_000, 0.0),
        Transfer("einops", "einops", 0, 2_000_000, 0.0),
        12.0,
        Transfer("numpy", "numpy", 20_000_000, 20_000_000, 0.0),
    ]
    output = PlainRendererRun().play(*events).splitlines()
    assert output[0] == "[python] 20 MB of 822 MB downloaded, 1.7 MB/s"


def test_the_largest_download_is_the_first_row() -> None:
    state = BuildState()
    for name in ("a", "b", "torch", "numpy"):
        state.handle(make_start_event(name), 1.0)
    state.handle(Transfer("numpy", "numpy", 0, 20_000_000, 0.0), 2.0)
    state.handle(Transfer("torch", "torch", 0, 800_000_000, 0.0), 2.0)
    branch, *vertices = state.rows(3.0)
    assert branch.detail == "0 B of 820 MB downloaded"
    assert [row.name for row in vertices] == ["torch", "numpy", "a", "b"]
    rows = render_rows(state, 3.0, width=80, height=10)
    assert rows[1].left == "  python   0 B of 820 MB downloaded"
    assert rows[2].left == "    torch  800 MB"


def test_plain_reports_long_transfers_periodically() -> None:
    tick = [Transfer("torch", "torch", 10**6 * n, 10**8, 0.0) for n in range(25)]
    events: list[Event | float] = [make_start_event("torch")]
    for entry in tick:
        events += [entry, 1.0]
    output = PlainRendererRun().play(*events).splitlines()
    assert output[0] == "[python] torch …"
    assert [line for line in output if "of 100 MB" in line] == [
        "[python] torch … 10 MB of 100 MB",
        "[python] torch … 20 MB of 100 MB",
    ]


def test_plain_reports_how_many_packages_are_done() -> None:
    events: list[Event | float] = [make_start_event("base", "base")]
    for number in range(25):
        events += [Transfer("base", "base", number, 81, 0.0, "configured"), 1.0]
    output = PlainRendererRun().play(*events).splitlines()
    assert output == [
        "[base] base …",
        "[base] base … 10 of 81 configured",
        "[base] base … 20 of 81 configured",
    ]


def test_plain_reports_failures() -> None:
    assert PlainRendererRun().play(make_finish_event("make", "steps", error="code 2\nmore")) == (
        "[steps] make failed after 1.2 s: code 2\n"
    )


def test_json_progress_writes_an_event_per_line() -> None:
    view, stream = terminal()
    renderer = make_build_renderer("json", view)
    for event in (
        make_start_event("a"),
        make_finish_event("a"),
        Transfer("a", "a", 1, 2, 0.5),
        Log("a", "a", "\x1b", 1),
    ):
        renderer.handle(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["started", "finished", "transfer", "log"]
    assert lines[0] == {
        "type": "started",
        "vertex": "a",
        "name": "a",
        "branch": "python",
        "time": 0.0,
    }
    assert lines[1]["cached"] is False
    assert lines[3]["line"] == "\x1b"


def test_quiet_progress_writes_nothing() -> None:
    view, stream = terminal()
    renderer = make_build_renderer("quiet", view)
    renderer.handle(make_start_event("a"))
    renderer.stop()
    assert stream.getvalue() == ""


def test_auto_progress_is_live_on_a_terminal_and_plain_elsewhere() -> None:
    assert type(make_build_renderer("auto", terminal()[0])).__name__ == "PlainBuildRenderer"
    assert (
        type(make_build_renderer("auto", terminal(ProgressTerminal(), TERM="xterm")[0])).__name__
        == "LiveBuildRenderer"
    )
    assert (
        type(make_build_renderer("auto", terminal(ProgressTerminal(), TERM="dumb")[0])).__name__
        == "PlainBuildRenderer"
    )


def rows(
    board: BuildState, *, width: int = 80, height: int = 20, now: float = 5.0
) -> list[ProgressRow]:
    return render_rows(board, now, width=width, height=height)


def replay_events(events: Iterable[Event]) -> BuildState:
    board = BuildState()
    for event in events:
        board.handle(event, 1.0)
    return board


def test_the_tree_shows_branches_in_the_order_of_a_build() -> None:
    board = replay_events(
        [
            make_start_event("s", "steps"),
            make_start_event("n", "python"),
            make_finish_event("b", "base", cached=True),
        ]
    )
    labels = [row.left for row in rows(board)]
    assert labels == ["building", "  base     1 cached", "  python", "    n", "  steps", "    s"]


@pytest.mark.parametrize("height", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("width", [20, 33, 200])
def test_the_tree_fits_every_terminal(width: int, height: int) -> None:
    events: list[Event] = [
        make_start_event(f"package-{n} 丹炉 with a long name", "python") for n in range(60)
    ]
    events += [make_start_event("apt", "system"), Log("apt", "apt", "x" * 300, 0.0)]
    output = rows(replay_events(events), width=width, height=height)
    assert len(output) <= height
    for row in output:
        assert text_width(row.left) + len(row.right) + 2 <= max(width, 20)


def test_the_echo_of_an_interrupt_does_not_wrap_a_row_of_the_tree() -> None:
    events = [make_start_event(f"package-{n} with a long name {'x' * 99}") for n in range(3)]
    events += [make_start_event("a", f"branch-{n}") for n in range(3)]
    for row in rows(replay_events(events), width=80):
        cells = 2 * row.spins + text_width(row.left) + (1 + len(row.right) if row.right else 0)
        assert cells + len("^C") < 80


def test_tree_counts_hidden_vertices() -> None:
    board = replay_events([make_start_event(f"p{n}") for n in range(60)])
    assert rows(board)[-1].left == "    … and 52 more"


def test_tree_shows_transfers_and_last_log_lines() -> None:
    moved = Transfer("torch", "torch", 5 * 10**6, 10**7, 0.0)
    lines = [Log("torch", "torch", f"line {n}", 0.0) for n in range(9)]
    board = replay_events([make_start_event("torch"), moved, *lines])
    labels = [row.left.strip() for row in rows(board)]
    bar = "━" * 10 + "┄" * 10
    assert f"torch                     {bar}  5.0 MB of 10 MB" in labels
    assert labels[-1] == "line 8"


def test_tree_shows_how_many_packages_are_done() -> None:
    moved = Transfer("debs", "debs", 40, 80, 0.0, "unpacked")
    labels = [row.left for row in rows(replay_events([make_start_event("debs", "base"), moved]))]
    assert labels[-1].endswith("━" * 10 + "┄" * 10 + "  40 of 80 unpacked")


@pytest.mark.parametrize("branch", ["base", "system"])
def test_tree_hides_dpkg_output_of_running_vertices(branch: str) -> None:
    log = Log("debs", "debs", "Setting up libc6 (2.36-9) ...", 0.0)
    labels = [
        row.left.strip() for row in rows(replay_events([make_start_event("debs", branch), log]))
    ]
    assert labels[-1] == "debs"


def test_tree_shows_a_push_without_a_vertex() -> None:
    board = replay_events([Transfer("r/a:1", "r/a:1", 5, 10, 0.0)])
    assert any(row.left.endswith("┄  5 B of 10 B") for row in rows(board))
    assert any("r/a:1  5 B of 10 B" in row.left for row in rows(board, width=60))


def test_control_sequences_are_stripped_from_progress() -> None:
    assert strip_control_sequences("a\x1b[2J\x1b]0;t\x07b\rc\x00\u202e") == "abc"


def live(screen: ProgressTerminal) -> tuple[Terminal, object]:
    view, _ = terminal(screen, TERM="xterm", COLUMNS="80", LINES="24")
    return view, make_build_renderer("live", view)


def until(condition: object, seconds: float = 60.0) -> bool:
    assert callable(condition)
    end = threading.Event()
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        end.wait(0.02)
    return bool(condition())


def test_live_build_draws_nothing_if_nothing_runs() -> None:
    screen = ProgressTerminal()
    _, renderer = live(screen)
    for number in range(30):
        renderer.handle(make_finish_event(str(number), cached=True))  # type: ignore[attr-defined]
    renderer.stop()  # type: ignore[attr-defined]
    assert screen.getvalue() == ""


def test_live_build_restores_the_terminal() -> None:
    screen = ProgressTerminal()
    _, renderer = live(screen)
    renderer.handle(make_start_event("numpy 2.4.0"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy 2.4.0" in screen.getvalue())
    renderer.handle(Ended(0.0))  # type: ignore[attr-defined]
    output = screen.getvalue()
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    assert re.search(r"\x1b\[2K(\x1b\[\?25h)?[^a-z]*$", output)


def test_live_build_clears_the_screen_while_nothing_runs() -> None:
    screen = ProgressTerminal()
    _, renderer = live(screen)
    renderer.handle(make_start_event("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy" in screen.getvalue())
    renderer.handle(make_finish_event("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: screen.getvalue().count("\x1b[?25h") == 1)
    renderer.handle(make_start_event("pandas"))  # type: ignore[attr-defined]
    assert until(lambda: "pandas" in screen.getvalue())
    renderer.stop()  # type: ignore[attr-defined]


def test_messages_are_printed_above_the_live_build() -> None:
    screen = ProgressTerminal()
    view, renderer = live(screen)
    renderer.handle(make_start_event("numpy"))  # type: ignore[attr-defined]
    assert until(lambda: "numpy" in screen.getvalue())
    view.info("a warning")
    renderer.stop()  # type: ignore[attr-defined]
    assert "a warning" in screen.getvalue()
