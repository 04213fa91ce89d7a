"""Run a job for a cell: submit it, follow it, and stop it when the cell is interrupted."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import anyio
import anyio.lowlevel
import msgspec

from danlu.errors import DanluError
from danlu.graph.progress import Event
from danlu.jobs.backends import follow_job
from danlu.jobs.report import JobSummary, describe_kills, job_error, summarize_job
from danlu.jobs.types import JobBackend, JobResult, JobView, LogLine, Submission, longest_grace
from danlu.notebook import background_loop
from danlu.notebook.errors import cell_error
from danlu.submission.function_transport import is_call
from danlu.util.human import format_duration

#: How many seconds beyond its grace period a job may take to stop.
_STOP_TIMEOUT = 10.0

#: How many earlier log lines of each replica to show when attaching.
_TAIL_LINES = 200


class ProgressView(Protocol):
    """Shows the steps before a job. All methods are called in one thread and must not block."""

    def phase(self, state: str, *, name: str = "") -> None:
        """Show the current step, and the job's name once it is known."""

    def add_output(self, source: str, text: str) -> None:
        """Show a line of output of a program that prepares the job."""

    def build_event(self, event: Event) -> None:
        """Show an event of the build before the job."""

    def tick(self) -> None:
        """Redraw if it is time to. Called regularly."""

    def finish(self, state: str, message: str) -> None:
        """Show the final state and a sentence about it."""


class JobViewer(ProgressView, Protocol):
    """Shows a job."""

    @property
    def newest(self) -> bool:
        """Whether to skip log lines when they arrive faster than they can be shown."""

    def view(self, view: JobView) -> None:
        """Handle a change of the job."""

    def line(self, line: LogLine) -> None:
        """Handle a log line of a replica."""


class JobOutcome(msgspec.Struct, frozen=True):
    """How a job ended, and its results."""

    summary: JobSummary
    result: JobResult


async def submit_job(jobs: JobBackend, submission: Submission, view: JobViewer) -> str:
    """Submit a job and return its name. Cancelling this does not leave half a submission behind."""
    view.phase("Submitting", name=submission.job.name)
    try:
        return await _submit_atomically(jobs, submission)
    except BaseException as error:
        show_submit_error(view, error)
        raise


async def _submit_atomically(jobs: JobBackend, submission: Submission) -> str:
    await anyio.lowlevel.checkpoint()
    try:
        with anyio.CancelScope(shield=True):
            name = await jobs.submit(submission)
    except DanluError:
        # An interrupt of the kernel also reaches the programs that submission starts. If one came,
        # raise the cancellation instead of the error it caused.
        await anyio.lowlevel.checkpoint()
        raise
    return name


def show_submit_error(view: ProgressView, error: BaseException) -> None:
    """Show why no job was submitted."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        view.finish("Stopped", "interrupted before the job was submitted")
    elif isinstance(error, DanluError):
        view.finish("Failed", error.message)
    else:
        view.finish("Failed", f"{type(error).__name__}: {error}")


async def submit_and_follow(
    jobs: JobBackend, submission: Submission, view: JobViewer
) -> JobOutcome:
    """Run a job to its end. When cancelled, stop the job and wait until it has stopped."""
    name = await submit_job(jobs, submission, view)
    try:
        return await _follow_to_end(jobs, name, view, tail=None)
    except BaseException:
        await stop_job(jobs, submission, view)
        raise


async def submit_and_detach(
    jobs: JobBackend, submission: Submission, view: JobViewer, *, attach_command: str
) -> str:
    """Submit a job that keeps running on its own, and return its name."""
    name = await submit_job(jobs, submission, view)
    try:
        await anyio.lowlevel.checkpoint()
    except BaseException:
        # Interrupted during submission, so the user does not want the job.
        await stop_job(jobs, submission, view)
        raise
    view.view(await jobs.view(name))
    view.finish("Submitted", f"{name} runs independently; follow it with `{attach_command}`")
    return name


async def attach_to_job(jobs: JobBackend, name: str, view: JobViewer) -> JobOutcome:
    """Show a running or finished job to its end. Cancelling this leaves the job running.

    Raises :class:`UsageError` if there is no such job.
    """
    await jobs.view(name)
    try:
        return await _follow_to_end(jobs, name, view, tail=_TAIL_LINES)
    except BaseException:
        view.finish("Detached", f"detached from {name}, which keeps running")
        raise


async def _follow_to_end(
    jobs: JobBackend, name: str, view: JobViewer, *, tail: int | None
) -> JobOutcome:
    view.phase("Pending", name=name)
    last = await follow_job(jobs, name, view, tail=tail, newest=view.newest)
    summary = await summarize_job(jobs, last)
    result = await jobs.result(name)
    view.view(last)
    view.finish(summary.state, summarize_outcome(summary, result))
    return JobOutcome(summary, result)


async def stop_job(jobs: JobBackend, submission: Submission, view: JobViewer) -> None:
    """Stop a job and show it, shielded from cancellation.

    Replicas get the grace period of their pods; another interrupt kills them.
    """
    name, grace = submission.job.name, longest_grace(submission.job)
    view.phase("Stopping", name=name)
    with anyio.move_on_after(grace + _STOP_TIMEOUT, shield=True), suppress(DanluError):
        async with anyio.create_task_group() as group:
            group.start_soon(_kill_on_interrupt, jobs, name)
            await jobs.stop(name)
            group.cancel_scope.cancel()
        last = await jobs.view(name)
        view.view(last)
        if last.finished:
            killed = describe_kills(last)
            message = f"{name} was interrupted and has stopped"
            view.finish("Stopped", f"{message}; {killed}" if killed else message)
            return
    view.finish("Stopped", f"{name} was interrupted and may still be stopping")


async def _kill_on_interrupt(jobs: JobBackend, name: str) -> None:
    await background_loop.wait_for_another_interrupt()
    with suppress(DanluError):
        await jobs.stop(name, grace=0)


def summarize_outcome(summary: JobSummary, result: JobResult) -> str:
    """Return a sentence: ``demo failed after 3.0 s: worker-1 failed first: ValueError: no``."""
    if not summary.is_successful:
        # The exception of a function call is raised by `danlu.train`, not shown here.
        error = job_error(summary) if is_call(result) else cell_error(summary, result)
        return error.message
    after = "" if summary.seconds is None else f" in {format_duration(summary.seconds)}"
    return f"{summary.name} succeeded{after}"
