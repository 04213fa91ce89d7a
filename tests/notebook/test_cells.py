"""Cells that run as jobs, in real processes of this Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.errors import UsageError
from danlu.jobs.backends import result_limit_note
from danlu.notebook import background_loop, cells
from danlu.notebook.errors import CellFailed
from danlu.notebook.parser import parse_cell, parse_distributed
from tests.notebook.cell_context import FakeCellContext, RecordingView
from tests.notebook.interrupts import interrupt_when, until

#: A loop that no end comes to, and that says where it is.
ENDLESS = """
import os, pathlib, time
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCellContext]:
    monkeypatch.chdir(tmp_path)
    yield FakeCellContext(tmp_path)
    until(lambda: not background_loop.has_pending_cleanup(), limit=60)


def run(context: FakeCellContext, options: str, code: str) -> None:
    cells.run_cell(parse_distributed(f"--framework pytorch {options}", code), context)


def alive(place: Path) -> set[int]:
    """Return the running processes that wrote their process ID."""
    pids = {int(file.stem) for file in place.glob("*.pid")}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}/cmdline")}


def state_of(context: FakeCellContext, name: str) -> str:
    return anyio.run(context.jobs().view, name).state


def test_cell_receives_and_returns_variables(context: FakeCellContext) -> None:
    context.names["x"] = [1, 2]
    run(
        context,
        "--worker 2 --send x --return y,rank",
        "import os\nrank=os.environ['RANK']\ny=x*2\n",
    )
    assert context.names["y"] == [1, 2, 1, 2]
    assert context.names["rank"] == "0"
    assert context.last_view.phases == ["Preparing", "Submitting", "Pending"]
    ((state, words),) = context.last_view.ends
    assert state == "Succeeded"
    assert " succeeded in " in words


def test_undefined_name_hints_at_sending_the_variable(context: FakeCellContext) -> None:
    context.names.update(x=1, json=json)
    for code, hint in (
        ("print(x)\n", "the notebook has a variable x: send it with --send x (%send=x)"),
        ("json.dumps(1)\n", "the notebook imports json: import it in the cell too"),
        ("print(y)\n", "to get a command that reruns only"),
        ("raise NameError('x')\n", "to get a command that reruns only"),
    ):
        with pytest.raises(CellFailed) as error:
            run(context, "", code)
        assert error.value.hint.startswith(hint)


def test_transfer_limit_applies_in_both_directions(
    context: FakeCellContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.names["x"] = bytes(70 << 20)
    run(context, "--send x --return x", "x = x[1:]\n")
    assert len(context.names["x"]) == (70 << 20) - 1
    with pytest.raises(UsageError, match=r"it takes 70\.0 MiB, but the limit is 57\.2 MiB"):
        run(context, "--send x --limit 60MB", "x\n")
    monkeypatch.setenv("DANLU_TRANSFER_LIMIT", "1MB")
    with pytest.raises(UsageError, match=r"cannot send x: .*, but the limit is 976\.6 KiB"):
        run(context, "--send x", "x\n")
    with pytest.raises(CellFailed, match="cannot return y: it takes"):
        run(context, "--return y", "y = bytes(2_000_000)\n")


def test_result_limit_of_a_cluster_is_shown_before_the_job(context: FakeCellContext) -> None:
    assert "700 KiB" in result_limit_note("kubernetes")
    assert result_limit_note("local") == result_limit_note("") == ""


def test_cell_with_directives_runs_unchanged(context: FakeCellContext) -> None:
    cell = parse_cell("%framework=pytorch\n%worker=2\n\nprint('ciao')\n")
    assert cell is not None
    cells.run_cell(cell, context)
    assert sorted(context.last_view.lines) == ["worker-0 │ ciao", "worker-1 │ ciao"]


def test_values_of_every_replica_are_returned_by_name(context: FakeCellContext) -> None:
    code = "import os\nrank = int(os.environ['RANK'])\n"
    run(context, "--worker 2 --return rank --every", code)
    assert context.names["rank"] == {"worker-0": 0, "worker-1": 1}


def test_failed_job_fails_the_cell_and_sets_nothing(context: FakeCellContext) -> None:
    with pytest.raises(CellFailed) as error:
        run(context, "--return y", "y = 1\nraise LookupError('no way')\n")
    assert error.value.line == 3
    assert isinstance(error.value.__cause__, LookupError)
    assert "y" not in context.names
    ((state, words),) = context.last_view.ends
    assert state == "Failed"
    assert "LookupError: no way (line 3 of the cell)" in words


def test_invalid_code_fails_before_submission(context: FakeCellContext) -> None:
    with pytest.raises(UsageError, match="invalid Python on line 2 of the cell") as caught:
        run(context, "--worker 2", "if True\n    pass\n")
    assert caught.value.details[-1] == "SyntaxError: expected ':'"
    assert context.last_view.phases == []


def test_unknown_context_is_an_error(context: FakeCellContext) -> None:
    with pytest.raises(UsageError, match="context moon not found"):
        run(context, "--on moon", "pass\n")


@pytest.mark.real
def test_cell_can_be_run_again_with_the_same_name(context: FakeCellContext) -> None:
    run(context, "--name again", "print(1)\n")
    run(context, "--name again", "print(2)\n")
    assert context.last_view.lines == ["worker-0 │ 2"]


def test_running_job_of_the_same_name_is_an_error(context: FakeCellContext, tmp_path: Path) -> None:
    run(context, "--name mine --detach", ENDLESS)
    with pytest.raises(UsageError, match="job mine already exists"):
        run(context, "--name mine", "print(2)\n")
    assert context.last_view.ends == [("Failed", "job mine already exists and is still running")]
    anyio.run(partial(context.jobs().stop, "mine", grace=0))


def test_attaching_to_a_detached_job_returns_its_value(context: FakeCellContext) -> None:
    run(context, "--name left --detach --return y", "print('hello')\ny = 3\n")
    assert context.last_view.ends[0][0] == "Submitted"
    assert "%jobs attach left" in context.last_view.ends[0][1]
    cells.attach_cell("left", context)
    assert context.names["y"] == 3
    assert context.last_view.lines == ["worker-0 │ hello"]


def test_attaching_to_an_unknown_job_lists_existing_jobs(context: FakeCellContext) -> None:
    with pytest.raises(UsageError, match="job 'nobody' not found"):
        cells.attach_cell("nobody", context)


def test_interrupt_stops_the_job_and_its_processes(
    context: FakeCellContext, tmp_path: Path
) -> None:
    with interrupt_when(lambda: len(alive(tmp_path)) == 2):
        run(context, "--name gone --worker 2", ENDLESS)
    until(lambda: context.last_view.ends)
    assert context.last_view.ends == [("Stopped", "gone was interrupted and has stopped")]
    assert "Stopping" in context.last_view.phases
    assert alive(tmp_path) == set()


@pytest.mark.real
def test_name_of_an_interrupted_job_can_be_reused(context: FakeCellContext, tmp_path: Path) -> None:
    with interrupt_when(lambda: alive(tmp_path)):
        run(context, "--name mine", ENDLESS)
    run(context, "--name mine", "print('again')\n")
    assert context.last_view.lines == ["worker-0 │ again"]


def test_interrupt_while_attached_leaves_the_job_running(
    context: FakeCellContext, tmp_path: Path
) -> None:
    run(context, "--name left --detach", ENDLESS)
    until(lambda: alive(tmp_path))
    context.last_view = RecordingView()
    with interrupt_when(lambda: context.last_view.views):
        cells.attach_cell("left", context)
    until(lambda: context.last_view.ends)
    assert context.last_view.ends == [("Detached", "detached from left, which keeps running")]
    assert state_of(context, "left") == "Running"
    anyio.run(partial(context.jobs().stop, "left", grace=0))


def test_interrupt_during_submission_leaves_no_job(context: FakeCellContext) -> None:
    with interrupt_when(lambda: "Submitting" in context.last_view.phases):
        run(context, "--name early --worker 2", ENDLESS)
    until(lambda: context.last_view.ends)
    assert context.last_view.ends[-1][0] == "Stopped"
    names = anyio.run(context.jobs().names)
    assert [state_of(context, name) for name in names] in ([], ["Failed"])


def test_sweep_returns_the_variables_of_the_best_job(context: FakeCellContext) -> None:
    code = "best = lr\nprint('loss', (lr - 2) ** 2)\n"
    run(context, "--name sw --sweep lr=1,2 --pattern 'loss (.*)' --return best", code)
    assert context.names["best"] == 2
    ((state, words),) = context.last_view.ends
    assert (state, words) == ("Succeeded", "best: sw-2  lr=2  loss 0")
    assert len(context.last_view.reports[-1].trials) == 2


def test_sweep_with_a_failed_job_fails_the_cell(context: FakeCellContext) -> None:
    with pytest.raises(CellFailed, match="1 of 2 jobs of the sweep failed") as error:
        run(context, "--name sw --sweep lr=0,1 --return y", "y = 1 / lr\n")
    assert "sw-1 Failed" in error.value.details[0]
    assert "y" not in context.names


def test_interrupt_stops_the_jobs_of_a_sweep(context: FakeCellContext, tmp_path: Path) -> None:
    with interrupt_when(lambda: alive(tmp_path)):
        run(context, "--name sw --sweep lr=0,1,2 --parallel 1", ENDLESS)
    until(lambda: context.last_view.ends)
    assert context.last_view.ends == [
        ("Stopped", "interrupted: the running jobs have been stopped")
    ]
    assert "Stopping" in context.last_view.phases
    assert alive(tmp_path) == set()
