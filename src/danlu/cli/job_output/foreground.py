"""Run or attach to a job in the foreground, and print how it ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from math import ceil

import anyio
import msgspec
from anyio.abc import TaskGroup

from danlu.cli.job_output import (
    JobRenderer,
    JsonJobRenderer,
    PlainJobRenderer,
    QuietJobRenderer,
    WarningPrinter,
)
from danlu.cli.session import Session
from danlu.cli.terminal import Terminal
from danlu.errors import DanluError
from danlu.jobs.backends import follow_job, is_remote, remove_finished_job, select_backend
from danlu.jobs.prune import prune_if_due
from danlu.jobs.report import (
    describe_kills,
    format_on_option,
    job_error,
    summarize_job,
)
from danlu.jobs.types import JobBackend, JobView, LogLine, Submission, longest_grace
from danlu.training.messages import name_some
from danlu.util.human import format_duration, format_size

#: Seconds beyond the grace period that a supervisor gets to stop its job.
_STOP_TIMEOUT_SECONDS = 5.0

_TICK_SECONDS = 0.1

_MAX_LISTED_JOBS = 3


def make_job_renderer(kind: str, terminal: Terminal) -> JobRenderer:
    """Return the renderer for ``--progress KIND``."""
    if kind == "auto":
        kind = "live" if terminal.interactive and not terminal.quiet else "plain"
    if kind == "live":
        from danlu.cli.job_output.live import LiveJobRenderer  # imports rich

        return LiveJobRenderer(terminal)
    if kind == "json":
        return JsonJobRenderer(terminal)
    if kind == "quiet":
        return QuietJobRenderer(terminal)
    return PlainJobRenderer(terminal)


def run_job(
    run: Session, submission: Submission, *, progress: str, replace: bool, detach: bool
) -> int:
    """Submit a job, follow it unless ``detach``, print how it ended, and return the exit code."""
    backend = select_backend(run.on, run.settings)
    if replace:
        anyio.run(remove_finished_job, backend, submission.job.name)
    _prune_old_jobs(run)
    if detach:
        name = anyio.run(backend.submit, submission)
        WarningPrinter(run.terminal).print_new(anyio.run(backend.view, name))
        run.terminal.write_stdout(name)
        return 0
    renderer = make_job_renderer(progress, run.terminal)
    run.terminal.info(f"job {submission.job.name}")
    try:
        result = anyio.run(
            partial(run_job_in_foreground, backend, submission, renderer, terminal=run.terminal)
        )
    finally:
        renderer.stop()
    return print_outcome(run, backend, result)


def _prune_old_jobs(run: Session) -> None:
    """Remove finished jobs of this machine that the configuration does not keep."""
    if is_remote(run.on):
        return
    removed = anyio.run(prune_if_due, run.settings)
    if removed:
        names = ", ".join(job.name for job in removed[:_MAX_LISTED_JOBS])
        hidden = len(removed) - _MAX_LISTED_JOBS
        more = f" and {hidden} more" if hidden > 0 else ""
        total = format_size(sum(job.size for job in removed))
        run.terminal.info(
            f"removed old jobs: {names}{more} ({total}); see the settings jobs_max_age and"
            " jobs_limit"
        )


class FollowResult(msgspec.Struct, frozen=True):
    """The last view of a job that was followed, and the signal that ended it (0 for none).

    ``name`` is empty if the job was never submitted.
    """

    view: JobView | None
    signal: int = 0
    name: str = ""


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a job: Ctrl-C, ``kill``, and a closed terminal.

    SIGHUP is left out under ``nohup``, which ignores it.
    """
    # nohup(1) ignores SIGHUP, so that what it starts goes on without a terminal.
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


async def run_job_in_foreground(
    backend: JobBackend, submission: Submission, renderer: JobRenderer, *, terminal: Terminal
) -> FollowResult:
    """Submit a job and follow it until it ends; Ctrl-C stops it, a second Ctrl-C kills it."""
    return await _ForegroundJob(backend, renderer, terminal.info).run(submission)


async def attach(
    backend: JobBackend, name: str, renderer: JobRenderer, *, tail: int | None
) -> FollowResult:
    """Follow a running job; Ctrl-C detaches from it."""
    return await _ForegroundJob(backend, renderer).attach(name, tail)


class _ForegroundJob:
    """One job in the foreground."""

    def __init__(
        self,
        backend: JobBackend,
        renderer: JobRenderer,
        info: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._backend = backend
        self._renderer = renderer
        self._info = info
        self._grace_seconds = 0.0
        self._deadline: float | None = None
        self._signal = 0  # the first one received
        self._submitted = False
        self._latest: JobView | None = None
        self._view: JobView | None = None

    def view(self, view: JobView) -> None:
        """Handle a change of the job."""
        self._latest = view
        self._renderer.view(view)

    def line(self, line: LogLine) -> None:
        """Handle a log line of a replica."""
        self._renderer.line(line)

    async def run(self, submission: Submission) -> FollowResult:
        name = submission.job.name
        self._grace_seconds = longest_grace(submission.job)
        with anyio.open_signal_receiver(*stop_signals()) as signals:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._submit_and_follow, submission, tasks)
                    async for number in signals:
                        if self._signal:
                            await self._kill_job(name, tasks)
                            break
                        self._signal = number
                        self._announce_stop(name)
                        if self._submitted:
                            tasks.start_soon(self._stop_job, name, tasks)
            except BaseException:
                # The job would run on unseen, for example if the reader of stdout has exited.
                if self._submitted and not await self._request_stop(name, grace=None):
                    self._info(f"{name} may still be running")
                raise
        return FollowResult(self._view, self._signal, name if self._submitted else "")

    async def attach(self, name: str, tail: int | None) -> FollowResult:
        with anyio.open_signal_receiver(*stop_signals()) as signals:
            async with anyio.create_task_group() as tasks:
                self._start_following(tasks, name, tail)
                async for number in signals:
                    self._signal = number
                    tasks.cancel_scope.cancel()
                    break
        return FollowResult(self._view, self._signal)

    async def _submit_and_follow(self, submission: Submission, tasks: TaskGroup) -> None:
        name = await self._backend.submit(submission)
        self._submitted = True
        if tasks.cancel_scope.cancel_called:
            # Submitting is not interrupted halfway, so the job may exist although Ctrl-C came.
            await self._request_stop(name, grace=0)
            return
        self._start_following(tasks, name, None)
        if self._signal:
            tasks.start_soon(self._stop_job, name, tasks)

    def _start_following(self, tasks: TaskGroup, name: str, tail: int | None) -> None:
        tasks.start_soon(self._follow_job, name, tail, tasks)
        tasks.start_soon(self._run_ticks, name)

    async def _follow_job(self, name: str, tail: int | None, tasks: TaskGroup) -> None:
        self._view = await follow_job(self._backend, name, self, tail=tail)
        tasks.cancel_scope.cancel()

    async def _run_ticks(self, name: str) -> None:
        while True:
            await anyio.sleep(_TICK_SECONDS)
            if self._deadline is not None:
                seconds = max(0.0, self._deadline - time.monotonic())
                # Shorter than the announcement: it has one line of the terminal.
                self._renderer.notice(f"{self._describe_stop(name, seconds)} (Ctrl-C: kill now)")
            self._renderer.tick()

    # -- stopping

    def _announce_stop(self, name: str) -> None:
        self._deadline = time.monotonic() + self._grace_seconds
        text = self._describe_stop(name, self._grace_seconds)
        self._info(f"{text}; press Ctrl-C again to kill now")

    def _describe_stop(self, name: str, seconds: float) -> str:
        replicas = self._latest.replicas if self._latest is not None else ()
        running = [replica.id for replica in replicas if replica.state == "Running"]
        return f"stopping: waiting up to {ceil(seconds)} s for {name_some(running) or name} to save"

    async def _stop_job(self, name: str, tasks: TaskGroup) -> None:
        """Stop the job. Following it ends when it does; a job that hangs is left behind."""
        await self._backend.stop(name)
        await anyio.sleep(_STOP_TIMEOUT_SECONDS)
        tasks.cancel_scope.cancel()

    async def _kill_job(self, name: str, tasks: TaskGroup) -> None:
        """Kill the job, and read its last view, which following may not receive in time."""
        if self._submitted and await self._request_stop(name, grace=0):
            try:
                self._view = await self._backend.view(name)
            except DanluError:
                self._view = None
        tasks.cancel_scope.cancel()

    async def _request_stop(self, name: str, *, grace: float | None) -> bool:
        """Stop the job even if this task is cancelled; return whether that succeeded in time."""
        limit = self._grace_seconds if grace is None else grace
        with anyio.move_on_after(limit + _STOP_TIMEOUT_SECONDS, shield=True) as scope:
            try:
                await self._backend.stop(name, grace=grace)
            except DanluError:
                return False
        return not scope.cancelled_caught


# -- the end of a job


def print_outcome(session: Session, backend: JobBackend, result: FollowResult) -> int:
    """Print how a job that ran in the foreground ended, and return the exit code.

    Raises :class:`~danlu.errors.JobFailed` if it failed.
    """
    view = result.view
    if result.signal:
        text = "interrupted" if result.signal == signal.SIGINT else "terminated"
        if result.name and (view is None or not view.finished):
            show = f"`danlu jobs show {result.name}{format_on_option(session.on)}`"
            details = f"the job may still be stopping; check with {show}"
        else:
            details = describe_kills(view) if view is not None else ""
        session.terminal.write_stderr(f"{text}; {details}" if details else text)
        return 128 + result.signal
    assert view is not None
    print_result(session, backend, view, show_logs=False)
    return 0


def print_result(
    session: Session, backend: JobBackend, view: JobView, *, show_logs: bool = True
) -> None:
    """Print that a job succeeded, or raise :class:`~danlu.errors.JobFailed`.

    The error contains the last log lines of the replica that failed first, unless ``show_logs`` is
    false because the logs have just been printed.
    """
    summary = anyio.run(summarize_job, backend, view)
    if not summary.is_successful:
        error = job_error(summary)
        if summary.lines and not show_logs:
            error.details = ()
        raise error
    after = "" if summary.seconds is None else f" in {format_duration(summary.seconds)}"
    session.terminal.info(session.terminal.style(f"{view.name} succeeded{after}", "green"))
