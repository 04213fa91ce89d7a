"""How the end of a job is told, and the exit code it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from danlu.cli.jobs.foreground import Followed
    from danlu.cli.session import Session
    from danlu.jobs.types import Jobs, JobView

__all__ = ["ended", "finished"]


def ended(this: Session, jobs: Jobs, followed: Followed) -> int:
    """Tell of a job that was followed in the foreground; its exit code.

    Raises :class:`~danlu.errors.JobFailed` where it failed by itself.
    """
    view = followed.view
    if followed.signal:
        name = "interrupted" if followed.signal == 2 else "terminated"
        left = followed.name and (view is None or not view.finished)
        this.terminal.insist(f"{name}; {_left(this, followed.name)}" if left else name)
        return 128 + followed.signal
    assert view is not None
    finished(this, jobs, view)
    return 0


def _left(this: Session, name: str) -> str:
    on = f" --on {this.on}" if this.on else ""
    return f"the job may still be ending: `danlu jobs show {name}{on}` tells"


def finished(this: Session, jobs: Jobs, view: JobView) -> None:
    """Tell of a job that succeeded; :class:`~danlu.errors.JobFailed` for one that did not."""
    import anyio

    from danlu.commands.jobreport import failure, outcome

    told = anyio.run(outcome, jobs, view)
    if not told.succeeded:
        raise failure(told)
    from danlu.util.human import format_duration

    after = "" if told.seconds is None else f" in {format_duration(told.seconds)}"
    this.terminal.say(this.terminal.style(f"{view.name} succeeded{after}", "green"))
