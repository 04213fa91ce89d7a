"""The exception of a cell whose job failed: root cause, message and rendering."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from danlu.errors import JobFailed
from danlu.jobs.report import JobSummary
from danlu.jobs.types import JobResult, JobView, ReplicaView
from danlu.notebook.errors import CellFailed, cell_error
from danlu.replica_runtime import encoding
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from tests.replica_runtime.bundles import run, write_cell_bundle

WORKERS = [ReplicaId(ReplicaType("Worker"), number) for number in range(3)]


def make_cell_error(
    first: int | None,
    *states: Literal["Failed", "Stopped", "Succeeded"],
    raised: dict[int, dict[str, Any]] | None = None,
) -> CellFailed:
    replicas = tuple(
        ReplicaView(worker, state) for worker, state in zip(WORKERS, states, strict=False)
    )
    view = JobView("job", "PyTorchJob", "pytorch", "Failed", JobStatus(), replicas=replicas)
    output = JobSummary(
        "job",
        "Failed",
        3.2,
        None if first is None else WORKERS[first],
        "exit code 1",
        "too bad",
        ("its last line",),
    )
    each = {
        str(WORKERS[index]): bytes(encoding.encode(report))
        for index, report in (raised or {}).items()
    }
    return cell_error(output, JobResult(view, raised=each, trusted=True))


@pytest.fixture
def exception_record(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "notebook").mkdir()
    code = "\n\nclass Odd(ValueError): pass\n\nraise Odd('no good\\nat all')\n"
    return run(write_cell_bundle(tmp_path / "notebook", code), trusted=True).raised


def test_cell_error_names_replica_reason_and_line(exception_record: dict[str, Any]) -> None:
    error = make_cell_error(1, "Stopped", "Failed", raised={1: exception_record})
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
    assert (
        error.hint
        == "to get a command that reruns only worker-1: danlu jobs show job --command worker-1"
    )


def test_cell_error_is_caused_by_the_original_exception(exception_record: dict[str, Any]) -> None:
    cause = make_cell_error(1, "Stopped", "Failed", raised={1: exception_record}).__cause__
    assert isinstance(cause, ValueError)
    assert (type(cause).__name__, cause.args) == ("Odd", ("no good\nat all",))


def test_unrebuildable_exception_keeps_its_traceback(exception_record: dict[str, Any]) -> None:
    for wrong in (None, {**exception_record["error"], "data": b"junk"}):
        error = make_cell_error(
            1, "Stopped", "Failed", raised={1: {**exception_record, "error": wrong}}
        )
        assert error.__cause__ is None
        assert "no good" in error.traceback
    other = make_cell_error(
        1, "Stopped", "Failed", raised={1: {**exception_record, "python": "3.99.0"}}
    )
    assert other.__cause__ is None


def test_earliest_exception_is_the_root_cause(exception_record: dict[str, Any]) -> None:
    late = {
        **exception_record,
        "time": exception_record["time"] + 1,
        "type": "RuntimeError",
        "message": "peer gone",
    }
    error = make_cell_error(0, "Failed", "Failed", raised={0: late, 1: exception_record})
    assert (error.replica, error.reason) == ("worker-1", "Odd: no good")


def test_exception_of_a_recovered_replica_is_ignored(
    exception_record: dict[str, Any],
) -> None:
    old = {**exception_record, "time": exception_record["time"] - 100, "message": "long ago"}
    error = make_cell_error(1, "Succeeded", "Failed", raised={0: old, 1: exception_record})
    assert error.replica == "worker-1"


def test_killed_replica_is_described_by_its_last_lines(exception_record: dict[str, Any]) -> None:
    error = make_cell_error(0, "Failed", "Failed", raised={1: exception_record})
    assert str(error) == "job failed after 3.2 s: worker-0 failed first: exit code 1"
    assert (error.replica, error.reason) == ("worker-0", "exit code 1")
    assert error.details == ("worker-0 │ its last line",)
    assert (error.traceback, error.line, error.__cause__) == ("", None, None)


def test_job_failure_without_a_replica_uses_the_jobs_message() -> None:
    assert str(make_cell_error(None)) == "job failed after 3.2 s: too bad"


def test_sys_exit_is_the_failure_reason(exception_record: dict[str, Any]) -> None:
    exit_record = {**exception_record, "type": "SystemExit", "message": "3"}
    error = make_cell_error(0, "Failed", raised={0: exit_record})
    assert error.reason == "it called sys.exit(3)"


def test_rejected_cell_has_a_hint_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "notebook").mkdir()
    bundle = write_cell_bundle(tmp_path / "notebook", "if 0: x = 1\n", returns=("x",))
    error = make_cell_error(0, "Failed", raised={0: run(bundle).raised})
    assert str(error).endswith("worker-0 failed first: cannot return x: the cell did not set it")
    assert error.hint == "set it on every path through the code"
    assert error.details == ()


def test_ipython_shows_message_traceback_and_hint(exception_record: dict[str, Any]) -> None:
    error = make_cell_error(1, "Stopped", "Failed", raised={1: exception_record})
    output = error._render_traceback_()
    assert "CellFailed" in output[0]
    assert output[0].endswith(error.message)
    assert "  cell, line 5, in <module>" in output
    assert output[-1] == f"hint: {error.hint}"
    assert not any("danlu_replica" in line or "failure.py" in line for line in output)
