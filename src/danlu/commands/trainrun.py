"""An order from Python to its end, in an event loop of its own: a notebook has one that runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from danlu.commands.jobreport import Outcome
    from danlu.commands.settings import Settings
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Jobs, JobView, LogLine, Result, Submission

__all__ = ["attached", "awaited", "ready", "run", "submitted"]

T = TypeVar("T")

#: Seconds that replicas have when the call is interrupted.
_GRACE = 3.0


def submitted(order: TrainOrder, settings: Settings) -> str:
    """Start the order's job, and give its name; it goes on when this process ends."""
    from danlu.commands.places import jobs_on

    ordered = msgspec.structs.replace(ready(order, settings), tied=False)
    return awaited(partial(jobs_on(order.on, settings).submit, ordered))


def run(
    order: TrainOrder,
    settings: Settings,
    *,
    log: Callable[[str], object] | None,
    submitted: Callable[[], object] = lambda: None,
) -> tuple[Outcome, Result]:
    """How the order's job ended, and what it left; ``log`` hears each line of its replicas.

    ``submitted`` is called as soon as nothing of the order's own files is needed any more.
    Interrupting it stops the job.
    """
    from danlu.commands.places import jobs_on

    ordered = ready(order, settings)
    return awaited(partial(_followed, jobs_on(order.on, settings), ordered, log, submitted))


def attached(
    name: str, settings: Settings, *, log: Callable[[str], object] | None, on: str = ""
) -> tuple[Outcome, Result]:
    """How a job ends that was submitted before; interrupting it leaves the job alone."""
    from danlu.commands.places import jobs_on

    return awaited(partial(_attached, jobs_on(on, settings), name, log))


def ready(order: TrainOrder, settings: Settings) -> Submission:
    """What is submitted for the order; builds and pulls what is not there yet."""
    from danlu.commands.train import plan, submission

    planned = plan(order, settings=settings)
    return submission(planned, order, settings=settings, progress=lambda event: None)


def awaited(act: Callable[[], Awaitable[T]]) -> T:
    """What ``act`` gives, waited for in an event loop of another thread."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        future = portal.start_task_soon(act)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _followed(
    jobs: Jobs,
    ordered: Submission,
    log: Callable[[str], object] | None,
    submitted: Callable[[], object],
) -> tuple[Outcome, Result]:
    import anyio

    name = await jobs.submit(ordered)
    try:
        submitted()
        return await _end(jobs, name, log)
    except BaseException:
        with anyio.move_on_after(_GRACE + 1, shield=True):
            await jobs.stop(name, grace=_GRACE)
        raise


async def _attached(
    jobs: Jobs, name: str, log: Callable[[str], object] | None
) -> tuple[Outcome, Result]:
    await jobs.view(name)  # where there is none it says so by itself
    return await _end(jobs, name, log)


async def _end(
    jobs: Jobs, name: str, log: Callable[[str], object] | None
) -> tuple[Outcome, Result]:
    from danlu.commands.jobreport import outcome
    from danlu.commands.jobs import follow

    view = await follow(jobs, name, _Told(log))
    return await outcome(jobs, view), await jobs.result(name)


class _Told:
    """Gives the lines of replicas to a function."""

    def __init__(self, log: Callable[[str], object] | None) -> None:
        self._log = log

    def view(self, view: JobView) -> None:
        """Nothing is drawn here."""

    def line(self, line: LogLine) -> None:
        """Give it."""
        from danlu.commands.jobreport import text_of

        if self._log is not None:
            self._log(f"{line.replica} │ {text_of(line.data)}")
