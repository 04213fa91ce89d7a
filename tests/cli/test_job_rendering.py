"""Rendering of a job: prefixes, colours, the table, the live view on a terminal."""

from __future__ import annotations

import io
from datetime import timedelta

import msgspec
import pytest

from danlu.cli.job_output import LogPrefixes, format_log_line, replica_color
from danlu.cli.job_output.foreground import make_job_renderer
from danlu.cli.job_output.live import LiveJobRenderer
from danlu.cli.job_output.table import render_job_table
from danlu.cli.terminal import Terminal, text_width
from danlu.jobs.report import ProgressBarFilter, decode_log_line
from danlu.jobs.types import MAX_LINE_BYTES, JobView, ReplicaView
from danlu.submission.job_view_model import progress_bar
from danlu.training.progress import TrainingProgress
from tests.jobs.fake_jobs import START, line, replica, view


class JobsTerminal(io.StringIO):
    """A terminal that keeps all that was written to it."""

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def plain(*, unicode: bool = True) -> LogPrefixes:
    return LogPrefixes(lambda text, style: text, unicode=unicode)


def text_of(view: JobView, *, width: int = 80, height: int = 20) -> list[str]:
    lines = render_job_table(view, now=START + timedelta(seconds=12), width=width, height=height)
    return ["".join(span.text for span in line).rstrip() for line in lines]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[2J\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b" 10%\r 50%\r100%", "100%"),
        (b"done\r", "done"),
        # As on a terminal: what is not overwritten stays, unless it is erased.
        (b"epoch 1: 0.7\r  2", "  2ch 1: 0.7"),
        (b"epoch 1: 0.7\r\x1b[Kdone", "done"),
        (b"\x1b[32mepoch 1\x1b[0m\r\x1b[2K\rdone\r", "done"),
        (b"\x1b[32mlonger\x1b[0m\r\x1b[31mred\x1b[0m", "redger"),
        (b"\xff\xfe\x00", "��"),
        (b"a\tb", "a\tb"),
        (b"", ""),
        ("\u202eevil".encode(), "evil"),
        (b"bell\x07\x08", "bell"),
    ],
)
def test_control_sequences_are_stripped_from_log_lines(data: bytes, shown: str) -> None:
    assert format_log_line(line(data), plain()) == f"worker-0 │ {shown}".rstrip()


def shown_states(*states: tuple[float, bytes]) -> list[str]:
    """Return what the filter shows of parts at some seconds; those with a newline are whole."""
    bars, shown = ProgressBarFilter(), []
    for seconds, data in states:
        at = START + timedelta(seconds=seconds)
        whole = data.endswith(b"\n")
        shown += bars.feed(
            msgspec.structs.replace(line(data.removesuffix(b"\n")), time=at, whole=whole)
        )
    return [decode_log_line(line) for line in (*shown, *bars.flush())]


def test_states_of_a_progress_bar_are_shown_every_second_and_the_last_one() -> None:
    states = [(number / 10, b"\r%d%%" % number) for number in range(24)]
    assert shown_states(*states, (2.4, b"done\n")) == ["0%", "10%", "20%", "23%", "done"]
    # An end that overwrites the last state, a newline alone, and no end at all.
    assert shown_states(*states, (2.4, b"\r24%\n")) == ["0%", "10%", "20%", "24%"]
    assert shown_states(*states, (2.4, b"\n"), (2.4, b"\n")) == ["0%", "10%", "20%", "23%", ""]
    assert shown_states(*states) == ["0%", "10%", "20%", "23%"]


def test_states_of_a_long_progress_bar_are_shown_less_often() -> None:
    states = [(number, b"\x1b[2K" if number % 2 else b"\r%d" % number) for number in range(3600)]
    assert 30 < len(shown_states(*states)) < 90


def test_the_parts_of_a_long_line_are_marked() -> None:
    begin = msgspec.structs.replace(line(b"a" * MAX_LINE_BYTES), whole=False)
    assert format_log_line(begin, plain()).endswith("aaa [line continues]")
    # A program's last line that has no newline is also not whole.
    assert (
        format_log_line(msgspec.structs.replace(line(b"end"), whole=False), plain())
        == "worker-0 │ end"
    )


def test_prefixes_are_as_wide_as_the_widest_replica() -> None:
    prefixes = plain(unicode=False)
    prefixes.register([replica(0), replica(10)])
    assert format_log_line(line("x", 3), prefixes) == "worker-3  | x"


def test_replica_colors_differ_between_neighbours_and_are_stable() -> None:
    first = [replica_color(replica(index)) for index in range(6)]
    assert len(set(first)) == 6
    # Neither what came before nor which attempt it is changes a replica's colour.
    again = {index: replica_color(replica(index)) for index in (5, 0, 3)}
    assert again == {index: first[index] for index in (5, 0, 3)}
    out = JobsTerminal()
    renderer = make_job_renderer(
        "plain", Terminal(out=out, err=io.StringIO(), environ={"TERM": "xterm"})
    )
    for index in (0, 1, 2, 0):
        renderer.line(line("x", index))
    lines = out.getvalue().splitlines()
    assert lines[0] == lines[3]
    assert len(set(lines)) == 3


def test_log_prefixes_are_not_colored_without_a_terminal() -> None:
    for environ, expected in (
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
    ):
        out = JobsTerminal()
        renderer = make_job_renderer("plain", Terminal(out=out, err=io.StringIO(), environ=environ))
        renderer.line(line("x"))
        assert ("\x1b[" in out.getvalue()) == expected


def test_job_table_shows_state_resources_and_progress() -> None:
    running = ReplicaView(
        replica(0), "Running", restarts=1, cpu=0.987, memory=512_000_000, gpus=(0, 2)
    )
    waiting = ReplicaView(replica(1), "Waiting", waits="for a GPU")
    failed = ReplicaView(replica(2), "Failed", exit_code=137, reason="OOMKilled")
    output = text_of(
        view(
            "Running", running, waiting, failed, progress=TrainingProgress(50, 90, {"loss": 0.125})
        )
    )
    assert output == [
        "demo PyTorchJob Running 12.0 s",
        "REPLICA   STATE               RESTARTS  EXIT  CPU   MEMORY  GPU",
        "worker-0  Running                    1     -  0.99  512 MB  0,2",
        "worker-1  Waiting: for a GPU         0     -     -       -  -",
        "worker-2  Failed (OOMKilled)         0   137     -       -  -",
        f"{progress_bar(50, width=20)} 50 %  1 min 30 s left  loss 0.125",
    ]


def test_job_table_of_a_large_job_fits_and_shows_failed_replicas() -> None:
    many = [ReplicaView(replica(index), "Running") for index in range(200)]
    many[150] = ReplicaView(replica(150), "Failed", exit_code=1)
    output = text_of(view("Running", *many), width=40, height=10)
    assert len(output) == 10
    assert max(map(text_width, output)) + len("^C") < 40
    assert any(entry.startswith("worker-150") for entry in output)
    assert output[-1] == "… and 193 more: 193 Running"


def test_live_job_prints_lines_above_the_table_and_removes_it() -> None:
    err, out = JobsTerminal(), JobsTerminal()
    terminal = Terminal(out=out, err=err, environ={"TERM": "xterm"})
    live = LiveJobRenderer(terminal)
    live.view(view())
    live.line(line("first\x1b[2J"))
    terminal.info("talk")
    live.stop()
    live.stop()
    content = err.getvalue()
    assert "PyTorchJob" in content
    assert "talk" in content
    assert "first" in content
    assert "\x1b[2J" not in content
    assert content.count("\x1b[?25l") == content.count("\x1b[?25h") > 0
    assert content.index("first") > content.index("PyTorchJob")
    assert terminal.write_above is None
    assert out.getvalue() == ""


def test_live_job_writes_lines_to_a_redirected_stdout() -> None:
    out = io.StringIO()
    terminal = Terminal(out=out, err=JobsTerminal(), environ={"TERM": "xterm"})
    live = LiveJobRenderer(terminal)
    live.view(view())
    live.line(line("first"))
    live.stop()
    assert out.getvalue() == "worker-0 | first\n"


def test_auto_progress_of_a_job_is_plain_without_a_terminal() -> None:
    renderer = make_job_renderer("auto", Terminal(out=io.StringIO(), err=io.StringIO(), environ={}))
    assert type(renderer).__name__ == "PlainJobRenderer"
