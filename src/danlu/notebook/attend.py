"""Run a job as a cell does: shown as it goes, gone when it is interrupted, at any moment."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel
import msgspec

from danlu.commands.jobreport import Outcome, failure, outcome
from danlu.commands.jobs import follow
from danlu.commands.shipping import is_call
from danlu.errors import DanluError
from danlu.notebook import background
from danlu.notebook.failure import failed
from danlu.util.human import format_duration

if TYPE_CHECKING:
    from danlu.jobs.types import Jobs, JobView, LogLine, Result, Submission

__all__ = [
    "Ended",
    "Preparing",
    "View",
    "attached",
    "attend",
    "followed",
    "left",
    "sentence",
    "stopped",
    "submitted",
    "unsubmitted",
]

#: Seconds that replicas have when the cell is interrupted.
_GRACE = 3.0

#: Seconds after which a job that should have stopped is waited for no longer.
_PATIENCE = 10.0

#: So many lines of each replica are read of a job that ran before.
_TAIL = 200


class Preparing(Protocol):
    """Whoever shows what comes before a job; called in one thread, and may not block."""

    def phase(self, state: str, *, name: str = "") -> None:
        """Say what is done now, of the job ``name`` once it has one."""

    def said(self, who: str, text: str) -> None:
        """A program that works for the job, which is not there yet, wrote a line."""

    def tick(self) -> None:
        """Draw, if it is time to."""

    def ended(self, state: str, words: str) -> None:
        """This is the end, in a word and in a sentence; draw it."""


class View(Preparing, Protocol):
    """Whoever shows a job."""

    @property
    def newest(self) -> bool:
        """Whether only the newest lines are shown: where many come, some need not be told."""

    def view(self, view: JobView) -> None:
        """The job changed."""

    def line(self, line: LogLine) -> None:
        """A replica wrote a line."""


class Ended(msgspec.Struct, frozen=True):
    """How a job ended, and what it left."""

    outcome: Outcome
    result: Result


def attend(jobs: Jobs, submission: Submission, view: View) -> Result:
    """Run a job to its end and give what it left, also where it failed.

    An interrupt is raised at once, and the job stopped meanwhile. Raises what the submission does.
    """
    act = partial(followed, jobs, submission, view)
    return background.run(act, tick=view.tick).result


async def submitted(jobs: Jobs, submission: Submission, view: View) -> str:
    """Submit a job, whole or not at all; its name."""
    view.phase("Submitting", name=submission.job.name)
    try:
        return await _submit(jobs, submission)
    except BaseException as error:
        unsubmitted(view, error)
        raise


async def _submit(jobs: Jobs, submission: Submission) -> str:
    await anyio.lowlevel.checkpoint()
    try:
        with anyio.CancelScope(shield=True):
            name = await jobs.submit(submission)
    except DanluError:
        # An interrupt of a kernel reaches what it starts, too: then that is why it did not.
        await anyio.lowlevel.checkpoint()
        raise
    return name


def unsubmitted(view: Preparing, error: BaseException) -> None:
    """Show the end of what came to no job."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        view.ended("Stopped", "interrupted before anything was submitted")
    elif isinstance(error, DanluError):
        view.ended("Failed", error.message)
    else:
        view.ended("Failed", f"{type(error).__name__}: {error}")


async def followed(jobs: Jobs, submission: Submission, view: View) -> Ended:
    """Run a job to its end; cancelling it stops the job and waits for that."""
    name = await submitted(jobs, submission, view)
    try:
        return await _to_the_end(jobs, name, view, tail=None)
    except BaseException:
        await stopped(jobs, name, view)
        raise


async def left(jobs: Jobs, submission: Submission, view: View, *, how: str) -> str:
    """Submit a job and leave it alone; its name. ``how`` is what shows it again."""
    name = await submitted(jobs, submission, view)
    try:
        await anyio.lowlevel.checkpoint()
    except BaseException:
        # Interrupted while it was submitted: then it was not to run.
        await stopped(jobs, name, view)
        raise
    view.view(await jobs.view(name))
    view.ended("Submitted", f"{name} does not depend on this notebook: `{how}`")
    return name


async def attached(jobs: Jobs, name: str, view: View) -> Ended:
    """Show a job that runs, or has run, to its end; cancelling it leaves the job alone.

    Raises :class:`UsageError` for a job that is not there.
    """
    await jobs.view(name)
    try:
        return await _to_the_end(jobs, name, view, tail=_TAIL)
    except BaseException:
        view.ended("Detached", f"{name} is not followed any more, and goes on")
        raise


async def _to_the_end(jobs: Jobs, name: str, view: View, *, tail: int | None) -> Ended:
    view.phase("Pending", name=name)
    last = await follow(jobs, name, view, tail=tail, newest=view.newest)
    told = await outcome(jobs, last)
    result = await jobs.result(name)
    view.view(last)
    view.ended(told.state, sentence(told, result))
    return Ended(told, result)


async def stopped(jobs: Jobs, name: str, view: View) -> None:
    """Stop a job and show that; whatever is being cancelled, this goes on to its end."""
    view.phase("Stopping", name=name)
    with anyio.move_on_after(_PATIENCE, shield=True), suppress(DanluError):
        await jobs.stop(name, grace=_GRACE)
        last = await jobs.view(name)
        view.view(last)
        if last.finished:
            view.ended("Stopped", f"{name} was interrupted, and is stopped")
            return
    view.ended("Stopped", f"{name} was interrupted; it may still be ending")


def sentence(ended: Outcome, result: Result) -> str:
    """How a job ended: ``demo failed after 3.0 s: worker-1 failed first: ValueError: no``."""
    if not ended.succeeded:
        # What a call raised is told by whoever called.
        return (failure(ended) if is_call(result) else failed(ended, result)).message
    after = "" if ended.seconds is None else f" in {format_duration(ended.seconds)}"
    return f"{ended.name} succeeded{after}"
