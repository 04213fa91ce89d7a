"""The exception of a cell whose job failed: whose failure it tells, and how."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import pytest

from danlu.commands.jobreport import Outcome
from danlu.errors import JobFailed
from danlu.jobs.types import JobView, ReplicaView, Result
from danlu.notebook.failure import CellFailed, failed
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from tests.guest.sent import run, sent

WORKERS = [ReplicaId(ReplicaType("Worker"), number) for number in range(3)]


def ended(
    first: int | None,
    *states: Literal["Failed", "Stopped", "Succeeded"],
    raised: dict[int, dict[str, Any]] | None = None,
) -> CellFailed:
    replicas = tuple(ReplicaView(one, state) for one, state in zip(WORKERS, states, strict=False))
    view = JobView("job", "PyTorchJob", "pytorch", "Failed", JobStatus(), replicas=replicas)
    told = Outcome(
        "job",
        "Failed",
        3.2,
        None if first is None else WORKERS[first],
        "exit code 1",
        "too bad",
        ("its last line",),
    )
    each = {str(WORKERS[one]): pickle.dumps(what) for one, what in (raised or {}).items()}
    return failed(told, Result(view, raised=each))


@pytest.fixture
def raised(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "notebook").mkdir()
    code = "\n\nclass Odd(ValueError): pass\n\nraise Odd('no good\\nat all')\n"
    return run(sent(tmp_path / "notebook", code)).raised


def test_it_says_which_replica_failed_first_why_and_at_which_line(raised: dict[str, Any]) -> None:
    error = ended(1, "Stopped", "Failed", raised={1: raised})
    assert isinstance(error, JobFailed)
    assert (
        str(error)
        == error.message
        == ("job failed after 3.2 s: worker-1 failed first: Odd: no good (line 5 of the cell)")
    )
    assert (error.job, error.replica, error.line) == ("job", "worker-1", 5)
    assert error.details[:2] == (
        "Traceback (most recent call last):",
        "  cell, line 5, in <module>",
    )
    assert error.traceback.endswith("Odd: no good\nat all")
    assert error.hint == "that replica alone: danlu jobs show job --command worker-1"


def test_its_cause_is_the_exception_itself(raised: dict[str, Any]) -> None:
    cause = ended(1, "Stopped", "Failed", raised={1: raised}).__cause__
    assert isinstance(cause, ValueError)
    assert (type(cause).__name__, cause.args) == ("Odd", ("no good\nat all",))


def test_an_exception_that_cannot_be_made_here_is_told_by_its_text(raised: dict[str, Any]) -> None:
    for wrong in (None, {**raised["error"], "data": b"junk"}):
        error = ended(1, "Stopped", "Failed", raised={1: {**raised, "error": wrong}})
        assert error.__cause__ is None
        assert "no good" in error.traceback
    other = ended(1, "Stopped", "Failed", raised={1: {**raised, "python": "3.99.0"}})
    assert other.__cause__ is None


def test_the_earliest_of_those_that_raised_is_the_cause(raised: dict[str, Any]) -> None:
    late = {**raised, "time": raised["time"] + 1, "type": "RuntimeError", "message": "peer gone"}
    error = ended(0, "Failed", "Failed", raised={0: late, 1: raised})
    assert (error.replica, error.reason) == ("worker-1", "Odd: no good")


def test_what_a_replica_raised_that_did_not_fail_in_the_end_does_not_count(
    raised: dict[str, Any],
) -> None:
    old = {**raised, "time": raised["time"] - 100, "message": "long ago"}
    error = ended(1, "Succeeded", "Failed", raised={0: old, 1: raised})
    assert error.replica == "worker-1"


def test_a_replica_that_was_killed_is_told_by_its_last_lines(raised: dict[str, Any]) -> None:
    error = ended(0, "Failed", "Failed", raised={1: raised})
    assert str(error) == "job failed after 3.2 s: worker-0 failed first: exit code 1"
    assert (error.replica, error.reason) == ("worker-0", "exit code 1")
    assert error.details == ("worker-0 │ its last line",)
    assert (error.traceback, error.line, error.__cause__) == ("", None, None)


def test_a_job_that_failed_without_a_replica_says_its_last_word() -> None:
    assert str(ended(None)) == "job failed after 3.2 s: too bad"


def test_a_cell_that_exits_says_so(raised: dict[str, Any]) -> None:
    left = {**raised, "type": "SystemExit", "message": "3"}
    error = ended(0, "Failed", raised={0: left})
    assert error.reason == "it called sys.exit(3)"


def test_what_was_refused_is_told_with_what_to_do_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "notebook").mkdir()
    bundle = sent(tmp_path / "notebook", "if 0: x = 1\n", returns=("x",))
    error = ended(0, "Failed", raised={0: run(bundle).raised})
    assert str(error).endswith("worker-0 failed first: the cell has no variable x to return")
    assert error.hint == "set it where the code always comes by"
    assert error.details == ()


def test_ipython_shows_the_message_the_traceback_and_the_hint(raised: dict[str, Any]) -> None:
    error = ended(1, "Stopped", "Failed", raised={1: raised})
    shown = error._render_traceback_()
    assert "CellFailed" in shown[0]
    assert shown[0].endswith(error.message)
    assert "  cell, line 5, in <module>" in shown
    assert shown[-1] == f"hint: {error.hint}"
    assert not any("danlu_guest" in line or "failure.py" in line for line in shown)
