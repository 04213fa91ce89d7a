"""Errors as a notebook shows them: without a traceback through danlu, or with the replica's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from danlu.errors import DanluError, JobFailed
from danlu.jobs.report import JobSummary, job_error
from danlu.jobs.results import (
    ReplicaError,
    describe_error,
    find_causing_error,
    open_error,
    rebuild_error,
)
from danlu.jobs.types import JobResult

_RED, _RESET = "\x1b[1;31m", "\x1b[0m"


class CellFailed(JobFailed):
    """The job of a cell failed: replica ``replica`` failed first, for ``reason``.

    ``traceback`` is the replica's own, with line numbers of the cell. It is empty if the replica
    was killed; then ``details`` are its last log lines. ``line`` is the line of the cell, counted
    from 1. ``__cause__`` is the original exception if it could be sent.
    """

    job: str = ""
    replica: str = ""
    reason: str = ""
    traceback: str = ""
    line: int | None = None

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        head, _, rest = self.message.partition("\n")
        lines = [f"{_RED}{type(self).__name__}{_RESET}: {head}", *filter(None, [rest])]
        return lines + _details_and_hint(self)


def cell_error(summary: JobSummary, result: JobResult, *, trusted: bool = False) -> CellFailed:
    """Return the error for a failed job, including what its replicas raised."""
    base = job_error(summary)
    trusted = trusted or result.trusted
    replica, raised = _root_cause(summary, result)
    error = CellFailed(base.message, hint=base.hint, details=base.details)
    error.job, error.replica, error.reason = summary.name, replica, summary.reason
    if raised is not None:
        _add_traceback(error, base.message, raised, trusted)
    return error


def _add_traceback(error: CellFailed, message: str, raised: ReplicaError, trusted: bool) -> None:
    error.traceback, error.line = raised.text.rstrip("\n"), raised.line
    error.reason = describe_error(raised)
    head = message.partition(": ")[0]
    line = f" (line {raised.line} of the cell)" if raised.line else ""
    error.message = f"{head}: {error.replica} failed first: {error.reason}{line}"
    error.args = (error.message,)
    if raised.refused:
        error.details, error.hint = (), raised.hint
        return
    error.details = tuple(error.traceback.split("\n"))
    error.__cause__ = rebuild_error(raised, trusted=trusted)


def _root_cause(summary: JobSummary, result: JobResult) -> tuple[str, ReplicaError | None]:
    """Return the failed replica that raised first, and its exception if there is one.

    The order in which replicas exit is not reliable: when one fails, others fail because of it and
    may exit sooner.
    """
    name = "" if summary.replica is None else str(summary.replica)
    failed = {str(replica.id) for replica in result.view.replicas if replica.state == "Failed"}
    reports: dict[str, ReplicaError] = {}
    for replica, data in result.raised.items():
        report = open_error(data) if replica in failed | {name} else None
        if report is not None:
            reports[replica] = report
    if not reports or (name and name not in reports):
        return name, None
    cause = find_causing_error(reports)
    return cause, reports[cause]


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Let IPython show our errors and interrupts without a traceback through danlu.

    IPython calls an exception's ``_render_traceback_`` before it formats the traceback itself.
    """
    try:
        yield
    except DanluError as error:
        _set_traceback(error, render_error(error))
        raise
    except KeyboardInterrupt as error:
        _set_traceback(error, [f"{_RED}KeyboardInterrupt{_RESET}"])
        raise


def render_error(error: DanluError) -> list[str]:
    """Return an error as lines: message, source line, details and hint."""
    lines = [f"{_RED}{type(error).__name__}{_RESET}: {error.message}"]
    if error.source_line:
        lines += ["", f"    {error.source_line.strip()}"]
    return lines + _details_and_hint(error)


def _details_and_hint(error: DanluError) -> list[str]:
    lines = ["", *error.details] if error.details else []
    if error.hint:
        lines += ["", *(f"hint: {line}" for line in error.hint.splitlines())]
    return lines


def _set_traceback(error: BaseException, lines: list[str]) -> None:
    if not hasattr(error, "_render_traceback_"):
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
