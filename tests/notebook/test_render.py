"""Boards as HTML and as text: what is shown, that nothing gets out of its place, how large."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.jobs.types import Progress, ReplicaView
from danlu.notebook.board import Board, Line, chosen
from danlu.notebook.curve import Series
from danlu.notebook.render import MOST, bundle, html, size
from tests.commands.fakejobs import replica
from tests.notebook.boards import ATTRIBUTES, TAGS, full, read

GOLDEN = Path(__file__).parent / "golden"

ENDED = replace(full(), state="Failed", ended="digits failed after 72.4 s: worker-1 failed first")


def broad(html: str) -> str:
    """The same with a line for each element, for people who compare."""
    return html.replace("><", ">\n<") + "\n"


@pytest.mark.parametrize(("name", "board"), [("running", full()), ("ended", ENDED)])
def test_boards_look_as_they_did(name: str, board: Board) -> None:
    shown = bundle(board)
    for suffix, text in ((".html", broad(shown["text/html"])), (".txt", shown["text/plain"])):
        golden = GOLDEN / f"board-{name}{suffix}"
        if os.environ.get("DANLU_GOLDEN") == "write":
            golden.write_text(text)
        assert golden.read_text() == text


def test_html_is_such_as_a_sanitizer_leaves() -> None:
    reader = read(html(ENDED))
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert all(one.startswith("data:image/svg+xml;base64,") for one in reader.attributes["src"])
    assert reader.attributes["href"] == ["jobs/digits/logs/worker-0.log"]


def test_nothing_of_a_job_becomes_html() -> None:
    bad = "<script>alert(1)</script>'\"><img src=x onerror=y>&lt;"
    board = Board(
        name=bad,
        kind=bad,
        state=bad,
        replicas=(ReplicaView(replica(0), "Waiting", waits=bad, reason=bad),),
        progress=Progress(5, None, {bad: 1.0}),
        series=(Series(bad, ((0.0, 1.0),), 1.0),),
        lines=(Line(bad, bad),),
        written=1,
        notes=(bad,),
        ended=bad,
        logs=bad,
        links={"worker-0": f"javascript{bad}"},
    )
    reader = read(html(board))
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert reader.attributes["src"] == [reader.attributes["src"][0]]
    assert reader.text.count("<script>alert(1)</script>") >= 8


def test_colours_and_cursor_moves_of_programs_are_taken_out() -> None:
    board = full()
    board = replace(board, notes=("\x1b[31mred\x1b[0m \x1b[2Jcleared \x07bell \u202edlrow",))
    assert "⚠ red cleared bell dlrow" in read(html(board)).text
    assert "! red cleared bell dlrow" in bundle(board)["text/plain"]


@pytest.mark.parametrize("letter", ["x", '"', "\\", "<", "丹", "🔥", "\t"])
def test_no_board_is_larger_than_a_message_may_be(letter: str) -> None:
    text = letter * 5000
    metrics = {f"{letter}{number}": 1 / 3 for number in range(50)}
    points = tuple((number / 7, number / 3) for number in range(256))
    board = Board(
        name="demo",
        kind="PyTorchJob",
        state="Running",
        seconds=1.0,
        replicas=tuple(
            ReplicaView(replica(index), "Waiting", waits=text, reason=text, gpus=(0, 1, 2, 3))
            for index in range(1000)
        ),
        progress=Progress(5, None, metrics),
        series=tuple(Series(name, points, 1.0) for name in metrics),
        lines=tuple(Line("worker-10", text) for _ in range(500)),
        written=10**9,
        notes=(text,) * 50,
        ended=text,
        logs=text,
    )
    shown = bundle(board)
    assert len(json.dumps(shown, ensure_ascii=False).encode()) <= MOST
    read(shown["text/html"])


def test_of_too_many_lines_the_newest_are_shown_and_the_others_counted() -> None:
    lines = tuple(Line("worker-0", f"line {number} {'x' * 500}") for number in range(1000))
    board = replace(full(), lines=lines, written=5000)
    text = read(html(board)).text
    shown = text.count("line ")
    assert 20 < shown < 100
    assert "line 999 " in text
    assert f"… {5000 - shown:,} lines before" in text


def test_of_too_many_replicas_those_that_failed_have_a_row() -> None:
    replicas = [ReplicaView(replica(index), "Running") for index in range(100)]
    replicas[77] = ReplicaView(replica(77), "Failed", exit_code=1)
    shown = chosen(replicas)
    assert len(shown) == 40
    assert replicas[77] in shown
    text = read(html(replace(full(), replicas=tuple(replicas)))).text
    assert "… and 60 more: 60 Running" in text


def test_the_box_of_lines_stands_at_its_end() -> None:
    # A column that is filled from below begins to be read where its last item ends.
    drawn = html(full())
    assert "flex-direction:column-reverse" in drawn
    assert "max-height:20em;overflow:auto" in drawn


def test_sizes_are_those_of_messages() -> None:
    assert size('"') == 4
    assert size("丹") == 5
