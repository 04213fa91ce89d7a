"""What a job looks like: prefixes, colours, the table, the live view on a terminal."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest

from danlu.cli.jobs import make
from danlu.cli.jobs.lines import Prefixes, colour, rendered
from danlu.cli.jobs.live import Live
from danlu.cli.jobs.table import bar, board
from danlu.cli.terminal import Terminal, columns
from danlu.jobs.types import JobView, Progress, ReplicaView
from tests.commands.fakejobs import START, line, replica, view


class Screen(io.StringIO):
    """A terminal that keeps all that was written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def plain(*, unicode: bool = True) -> Prefixes:
    return Prefixes(lambda text, style: text, unicode=unicode)


def text_of(view: JobView, *, width: int = 80, height: int = 20) -> list[str]:
    lines = board(view, now=START + timedelta(seconds=12), width=width, height=height)
    return ["".join(span.text for span in one).rstrip() for one in lines]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[2J\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b" 10%\r 50%\r100%", "100%"),
        (b"done\r", "done"),
        (b"\xff\xfe\x00", "��"),
        (b"a\tb", "a\tb"),
        (b"", ""),
        ("\u202eevil".encode(), "evil"),
        (b"bell\x07\x08", "bell"),
    ],
)
def test_no_program_moves_the_cursor(data: bytes, shown: str) -> None:
    assert rendered(line(data), plain()) == f"worker-0 │ {shown}".rstrip()


def test_prefixes_are_as_wide_as_the_widest_replica() -> None:
    prefixes = plain(unicode=False)
    prefixes.know([replica(0), replica(10)])
    assert rendered(line("x", 3), prefixes) == "worker-3  | x"


def test_neighbours_differ_in_colour_and_keep_it() -> None:
    assert [colour(replica(index)) for index in range(3)] == [
        colour(replica(index)) for index in range(3)
    ]
    assert len({colour(replica(index)) for index in range(6)}) == 6


def test_colours_are_left_out_where_there_is_no_terminal_or_nobody_wants_them() -> None:
    for environ, expected in (
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ):
        out = Screen()
        renderer = make("plain", Terminal(out=out, err=io.StringIO(), environ=environ))
        renderer.line(line("x"))
        assert ("\x1b[" in out.getvalue()) == expected


def test_the_table_has_what_a_person_wants_to_know() -> None:
    running = ReplicaView(
        replica(0), "Running", restarts=1, cpu=0.987, memory=512_000_000, gpus=(0, 2)
    )
    waiting = ReplicaView(replica(1), "Waiting", waits="for a GPU")
    failed = ReplicaView(replica(2), "Failed", exit_code=137, reason="OOMKilled")
    shown = text_of(
        view("Running", running, waiting, failed, progress=Progress(50, 90, {"loss": 0.125}))
    )
    assert shown == [
        "demo PyTorchJob Running 12 s",
        "REPLICA   STATE               RESTARTS  EXIT  CPU   MEMORY  GPU",
        "worker-0  Running                    1     -  0.99  512 MB  0,2",
        "worker-1  Waiting: for a GPU         0     -     -       -  -",
        "worker-2  Failed (OOMKilled)         0   137     -       -  -",
        f"{bar(50, width=20)} 50 %  1 min 30 s left  loss 0.125",
    ]


def test_a_large_job_keeps_to_the_terminal_and_shows_what_failed() -> None:
    many = [ReplicaView(replica(index), "Running") for index in range(200)]
    many[150] = ReplicaView(replica(150), "Failed", exit_code=1)
    shown = text_of(view("Running", *many), width=40, height=10)
    assert len(shown) == 10
    assert max(map(columns, shown)) < 40
    assert any(one.startswith("worker-150") for one in shown)
    assert shown[-1] == "… and 193 more: 193 Running"


def test_the_live_view_puts_lines_above_the_table_and_takes_it_off() -> None:
    err, out = Screen(), Screen()
    terminal = Terminal(out=out, err=err, environ={"TERM": "xterm"})
    live = Live(terminal)
    live.view(view())
    live.line(line("first\x1b[2J"))
    terminal.say("talk")
    live.stop()
    live.stop()
    written = err.getvalue()
    assert "PyTorchJob" in written
    assert "talk" in written
    assert "first" in written
    assert "\x1b[2J" not in written
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") > 0
    assert written.index("first") > written.index("PyTorchJob")
    assert terminal.above is None
    assert out.getvalue() == ""


def test_lines_go_to_a_stdout_that_is_a_file_while_the_table_is_live() -> None:
    out = io.StringIO()
    terminal = Terminal(out=out, err=Screen(), environ={"TERM": "xterm"})
    live = Live(terminal)
    live.view(view())
    live.line(line("first"))
    live.stop()
    assert out.getvalue() == "worker-0 | first\n"


def test_nothing_is_live_without_a_terminal() -> None:
    renderer = make("auto", Terminal(out=io.StringIO(), err=io.StringIO(), environ={}))
    assert type(renderer).__name__ == "Plain"
