"""Rendering a job as HTML and text: content, escaping and size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.jobs.types import ReplicaView
from danlu.notebook.rendering import MAX_BYTES, json_size, render_html, render_mime_bundle
from danlu.submission.job_view_model import JobSnapshot, MetricSeries, OutputLine, visible_replicas
from danlu.training.progress import TrainingProgress
from tests.golden import write_on_request
from tests.jobs.fake_jobs import replica
from tests.notebook.job_snapshots import ATTRIBUTES, TAGS, full, read

GOLDEN = Path(__file__).parent / "golden"

ENDED = replace(full(), state="Failed", summary="digits failed after 72.4 s: worker-1 failed first")


def make_wide_view(html: str) -> str:
    """Put each element on a separate line, for readable diffs."""
    return html.replace("><", ">\n<") + "\n"


@pytest.mark.parametrize(("name", "board"), [("running", full()), ("ended", ENDED)])
def test_rendering_matches_golden_files(name: str, board: JobSnapshot) -> None:
    output = render_mime_bundle(board)
    for suffix, text in (
        (".html", make_wide_view(output["text/html"])),
        (".txt", output["text/plain"]),
    ):
        golden = GOLDEN / f"board-{name}{suffix}"
        write_on_request(golden, text)
        assert golden.read_text() == text


def test_html_passes_jupyters_sanitizer() -> None:
    reader = read(render_html(ENDED))
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert all(src.startswith("data:image/svg+xml;base64,") for src in reader.attributes["src"])
    assert reader.attributes["href"] == ["jobs/digits/logs/worker-0.log"]


def test_text_of_a_job_is_escaped_in_html() -> None:
    bad = "<script>alert(1)</script>'\"><img src=x onerror=y>&lt;"
    board = JobSnapshot(
        name=bad,
        kind=bad,
        state=bad,
        replicas=(ReplicaView(replica(0), "Waiting", waits=bad, reason=bad),),
        progress=TrainingProgress(5, None, {bad: 1.0}),
        series=(MetricSeries(bad, ((0.0, 1.0),), 1.0),),
        lines=(OutputLine(bad, bad),),
        written=1,
        notes=(bad,),
        summary=bad,
        logs=bad,
        links={"worker-0": f"javascript{bad}"},
    )
    reader = read(render_html(board))
    assert reader.tags <= TAGS
    assert set(reader.attributes) <= ATTRIBUTES
    assert reader.attributes["src"] == [reader.attributes["src"][0]]
    assert reader.text.count("<script>alert(1)</script>") >= 8


def test_control_sequences_are_stripped() -> None:
    board = full()
    board = replace(board, notes=("\x1b[31mred\x1b[0m \x1b[2Jcleared \x07bell \u202edlrow",))
    assert "⚠ red cleared bell dlrow" in read(render_html(board)).text
    assert "! red cleared bell dlrow" in render_mime_bundle(board)["text/plain"]


@pytest.mark.parametrize("letter", ["x", '"', "\\", "<", "丹", "🔥", "\t"])
def test_rendering_never_exceeds_the_message_size(letter: str) -> None:
    text = letter * 5000
    metrics = {f"{letter}{number}": 1 / 3 for number in range(50)}
    points = tuple((number / 7, number / 3) for number in range(256))
    board = JobSnapshot(
        name="demo",
        kind="PyTorchJob",
        state="Running",
        seconds=1.0,
        replicas=tuple(
            ReplicaView(replica(index), "Waiting", waits=text, reason=text, gpus=(0, 1, 2, 3))
            for index in range(1000)
        ),
        progress=TrainingProgress(5, None, metrics),
        series=tuple(MetricSeries(name, points, 1.0) for name in metrics),
        lines=tuple(OutputLine("worker-10", text) for _ in range(500)),
        written=10**9,
        notes=(text,) * 50,
        summary=text,
        logs=text,
    )
    output = render_mime_bundle(board)
    assert len(json.dumps(output, ensure_ascii=False).encode()) <= MAX_BYTES
    read(output["text/html"])


def test_newest_log_lines_are_shown_and_others_counted() -> None:
    lines = tuple(OutputLine("worker-0", f"line {number} {'x' * 500}") for number in range(1000))
    board = replace(full(), lines=lines, written=5000)
    text = read(render_html(board)).text
    output = text.count("line ")
    assert 20 < output < 100
    assert "line 999 " in text
    assert f"… {5000 - output:,} earlier lines" in text


def test_failed_replicas_are_shown_first() -> None:
    replicas = [ReplicaView(replica(index), "Running") for index in range(100)]
    replicas[77] = ReplicaView(replica(77), "Failed", exit_code=1)
    output = visible_replicas(replicas, 40)
    assert len(output) == 40
    assert replicas[77] in output
    text = read(render_html(replace(full(), replicas=tuple(replicas)))).text
    assert "… and 60 more: 60 Running" in text


def test_log_box_is_scrolled_to_its_end() -> None:
    # A column that is filled from below begins to be read where its last item ends.
    drawn = render_html(full())
    assert "flex-direction:column-reverse" in drawn
    assert "max-height:20em;overflow:auto" in drawn


def test_json_size_counts_utf8_bytes_of_json() -> None:
    assert json_size('"') == 4
    assert json_size("丹") == 5
