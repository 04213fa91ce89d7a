"""Run a job from Python to its end, in a new event loop: a notebook's is already running."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from danlu.engine.settings import Settings
from danlu.jobs.backends import follow_job, result_limit_note, select_backend
from danlu.jobs.report import (
    JobSummary,
    ProgressBarFilter,
    decode_log_line,
    summarize_job,
)
from danlu.jobs.types import JobBackend, JobResult, JobView, LogLine, Submission
from danlu.submission.options import TrainOptions
from danlu.submission.plan import plan_job
from danlu.submission.submission import build_submission

T = TypeVar("T")

#: How long an interrupted call waits for its job. Replicas may go on saving after that.
_STOP_TIMEOUT_SECONDS = 3.0

#: How often the main thread wakes up while it waits: a lock would not return after an interrupt.
_POLL_SECONDS = 0.1


def submit_and_detach(options: TrainOptions, settings: Settings) -> str:
    """Submit a job that outlives this process, and return its name."""
    submission = msgspec.structs.replace(plan_submission(options, settings), tied=False)
    return run_in_portal(partial(select_backend(options.on, settings).submit, submission))


def run_job(
    options: TrainOptions,
    settings: Settings,
    *,
    log: Callable[[str], object] | None,
    on_submit: Callable[[], object] = lambda: None,
) -> tuple[JobSummary, JobResult]:
    """Run a job to its end, and return its outcome and result.

    ``log`` is called with each line of its replicas, ``on_submit`` as soon as the files of the
    options are no longer needed. An interrupt stops the job: the call returns after a few seconds,
    while replicas may use their full grace period to save. A second interrupt kills them.
    """
    note = result_limit_note(options.on) if options.value != "none" else ""
    if note and log is not None:
        log(f"danlu │ {note}")
    submission = plan_submission(options, settings)
    backend, name = select_backend(options.on, settings), submission.job.name
    return run_in_portal(
        partial(_submit_and_follow, backend, submission, log, on_submit),
        on_second_interrupt=partial(backend.stop, name, grace=0),
        note=f"job {name} is stopped; its replicas may still be saving:"
        f" kill them with `danlu jobs stop {name} --grace 0`",
    )


def attach_job(
    name: str, settings: Settings, *, log: Callable[[str], object] | None, on: str = ""
) -> tuple[JobSummary, JobResult]:
    """Follow a job that was submitted before; an interrupt does not stop it."""
    return run_in_portal(partial(_attach_and_follow, select_backend(on, settings), name, log))


def plan_submission(options: TrainOptions, settings: Settings) -> Submission:
    """Return the submission of a job; builds and pulls what is missing."""
    planned = plan_job(options, settings=settings)
    return build_submission(planned, options, settings=settings, progress=lambda event: None)


async def _do_nothing() -> None:
    return None


def run_in_portal(
    function: Callable[[], Awaitable[T]],
    *,
    on_second_interrupt: Callable[[], Awaitable[None]] = _do_nothing,
    note: str = "",
) -> T:
    """Call ``function`` in an event loop of another thread, and return its result.

    An interrupt cancels it and waits for its cleanup; another one meanwhile calls
    ``on_second_interrupt``. ``note`` is added to the exception.
    """
    done = threading.Event()

    async def run() -> T:
        try:
            return await function()
        finally:
            done.set()

    with start_blocking_portal() as portal:
        future = portal.start_task_soon(run)
        try:
            return future.result()
        except KeyboardInterrupt as error:
            future.cancel()
            if note:
                error.add_note(note)
            # `future` is done once it is cancelled; the coroutine still stops its job then.
            try:
                while not done.wait(_POLL_SECONDS):
                    pass
            except KeyboardInterrupt:
                portal.call(on_second_interrupt)
            raise
        except BaseException:
            future.cancel()
            raise


async def _submit_and_follow(
    backend: JobBackend,
    submission: Submission,
    log: Callable[[str], object] | None,
    on_submit: Callable[[], object],
) -> tuple[JobSummary, JobResult]:
    name = await backend.submit(submission)
    try:
        on_submit()
        return await _wait_for_end(backend, name, log)
    except BaseException:
        with anyio.move_on_after(_STOP_TIMEOUT_SECONDS, shield=True):
            await backend.stop(name)
        raise


async def _attach_and_follow(
    backend: JobBackend, name: str, log: Callable[[str], object] | None
) -> tuple[JobSummary, JobResult]:
    await backend.view(name)  # raises if there is no such job
    return await _wait_for_end(backend, name, log)


async def _wait_for_end(
    backend: JobBackend, name: str, log: Callable[[str], object] | None
) -> tuple[JobSummary, JobResult]:
    forwarder = _LogForwarder(log)
    view = await follow_job(backend, name, forwarder)
    forwarder.finish()
    return await summarize_job(backend, view), await backend.result(name)


class _LogForwarder:
    """Passes log lines to a function."""

    def __init__(self, log: Callable[[str], object] | None) -> None:
        self._log = log
        self._bars = ProgressBarFilter()

    def view(self, view: JobView) -> None:
        """Ignore changes of the job."""

    def line(self, line: LogLine) -> None:
        """Pass a line on, with its replica."""
        self._pass_on(self._bars.feed(line))

    def finish(self) -> None:
        """Pass on the last states of progress bars."""
        self._pass_on(self._bars.flush())

    def _pass_on(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            if self._log is not None:
                self._log(f"{line.replica} │ {decode_log_line(line)}")
