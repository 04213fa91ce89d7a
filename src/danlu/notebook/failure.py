"""The exception of a cell whose job failed."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danlu.commands.jobreport import failure
from danlu.errors import JobFailed
from danlu.guest.versions import differences

if TYPE_CHECKING:
    from danlu.commands.jobreport import Outcome
    from danlu.jobs.types import Result

__all__ = ["CellFailed", "failed"]

_RED, _BOLD, _PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"


class CellFailed(JobFailed):
    """A cell's job failed: first the replica ``replica``, for ``reason``, at ``line`` of the cell.

    ``traceback`` is the replica's own, with the cell's line numbers; empty where it was ended
    without one, and then ``details`` are its last lines. ``__cause__`` is the exception itself
    where it could be sent. ``line`` is counted from 1, None where nobody knows.
    """

    job: str = ""
    replica: str = ""
    reason: str = ""
    traceback: str = ""
    line: int | None = None

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of the lines of this program."""
        head, _, rest = self.message.partition("\n")
        told = [f"{_RED}{_BOLD}{type(self).__name__}{_PLAIN}: {head}", *filter(None, [rest])]
        told += ["", *self.details] if self.details else []
        told += ["", *(f"hint: {line}" for line in self.hint.splitlines())] if self.hint else []
        return told


def failed(told: Outcome, result: Result) -> CellFailed:
    """The error of a cell whose job ended as ``told``, with what its replicas said they raised."""
    base = failure(told)
    first, raised = _first(told, result)
    error = CellFailed(base.message, hint=base.hint, details=base.details)
    error.job, error.replica, error.reason = told.name, first, told.reason
    if raised is not None:
        _explain(error, base.message, raised)
    return error


def _explain(error: CellFailed, message: str, raised: Mapping[str, Any]) -> None:
    line = raised["line"]
    error.traceback, error.line = raised["text"].rstrip("\n"), line
    error.reason = _reason(raised)
    head = message.partition(": ")[0]
    at = f" (line {line} of the cell)" if line else ""
    error.message = f"{head}: {error.replica} failed first: {error.reason}{at}"
    error.args = (error.message,)
    if raised["refused"]:
        error.details, error.hint = (), raised["hint"]
        return
    error.details = tuple(error.traceback.split("\n"))
    error.__cause__ = _revived(raised)


def _reason(raised: Mapping[str, Any]) -> str:
    message = str(raised["message"])
    if raised["refused"]:
        return message
    if raised["type"] == "SystemExit":
        return f"it called sys.exit({message})"
    first = message.split("\n")[0]
    return f"{raised['type']}: {first}" if first else str(raised["type"])


def _first(told: Outcome, result: Result) -> tuple[str, Mapping[str, Any] | None]:
    """The replica whose failure is the cause: of those that raised, the one that did it first.

    That a replica was seen to end first says less: others fail a moment later because of it, and
    may end sooner.
    """
    name = "" if told.replica is None else str(told.replica)
    bad = {str(one.id) for one in result.view.replicas if one.state == "Failed"} | {name}
    each = {one: pickle.loads(data) for one, data in result.raised.items() if one in bad}
    if not each or (name and name not in each):
        return name, None
    earliest = min(each, key=lambda one: (each[one]["time"], one))
    return earliest, each[earliest]


def _revived(raised: Mapping[str, Any]) -> BaseException | None:
    """The exception itself, where this Python can make it."""
    told = raised["error"]
    if told is None or differences(raised["python"], told["modules"], told["libraries"]):
        return None
    try:
        error = pickle.loads(told["data"])
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
