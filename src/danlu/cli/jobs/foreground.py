"""Follow a job in the foreground: until its end, or until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from danlu.cli.jobs import Renderer
    from danlu.cli.terminal import Terminal
    from danlu.jobs.types import Jobs, JobView, Submission

__all__ = ["Followed", "attached", "run"]

#: Seconds that replicas have after Ctrl-C: all must be over within five.
_GRACE = 3.0

#: Seconds after which a supervisor that should have stopped a job is waited for no longer.
_PATIENCE = 5.0

_TICK = 0.1


class Followed(msgspec.Struct, frozen=True):
    """A job that was followed: how it stood last, and the signal that ended that, if one did.

    ``name`` is empty where it never began.
    """

    view: JobView | None
    signal: int = 0
    name: str = ""


async def run(
    jobs: Jobs, submission: Submission, renderer: Renderer, *, terminal: Terminal
) -> Followed:
    """Submit a job and follow it to its end; Ctrl-C stops it, a second one kills it at once."""
    return await _Foreground(jobs, renderer, terminal.say).run(submission)


async def attached(jobs: Jobs, name: str, renderer: Renderer, *, tail: int | None) -> Followed:
    """Follow a job that runs; Ctrl-C leaves it alone."""
    return await _Foreground(jobs, renderer).attach(name, tail)


class _Foreground:
    """One job in the foreground; ``signal`` is the first that came."""

    def __init__(
        self, jobs: Jobs, renderer: Renderer, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._jobs = jobs
        self._renderer = renderer
        self._say = say
        self._signal = 0
        self._begun = False
        self._view: JobView | None = None

    async def run(self, submission: Submission) -> Followed:
        import anyio

        name = submission.job.name
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._start, submission, group)
                    async for number in signals:
                        if self._signal:
                            await self._kill(name, group)
                            break
                        self._signal = number
                        self._say(f"stopping {name} …; once more kills it")
                        if self._begun:
                            group.start_soon(self._stop, name, group)
            except BaseException:
                # Nobody looks on any more (stdout was closed): a program would have ended, too.
                if self._begun and not await self._end(name, grace=_GRACE):
                    self._say(f"{name} may still run")
                raise
        return Followed(self._view, self._signal, name if self._begun else "")

    async def attach(self, name: str, tail: int | None) -> Followed:
        import anyio

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:
                self._begin(group, name, tail)
                async for number in signals:
                    self._signal = number
                    group.cancel_scope.cancel()
                    break
        return Followed(self._view, self._signal)

    async def _start(self, submission: Submission, group: TaskGroup) -> None:
        """Submit the job and follow it; what began although it was given up is ended."""
        name = await self._jobs.submit(submission)
        self._begun = True
        if group.cancel_scope.cancel_called:
            await self._end(name, grace=0)
            return
        self._begin(group, name, None)
        if self._signal:
            group.start_soon(self._stop, name, group)

    async def _kill(self, name: str, group: TaskGroup) -> None:
        if self._begun:
            await self._end(name, grace=0)
        group.cancel_scope.cancel()

    def _begin(self, group: TaskGroup, name: str, tail: int | None) -> None:
        group.start_soon(self._follow, name, tail, group)
        group.start_soon(self._tick)

    async def _follow(self, name: str, tail: int | None, group: TaskGroup) -> None:
        from danlu.commands.jobs import follow

        self._view = await follow(self._jobs, name, self._renderer, tail=tail)
        group.cancel_scope.cancel()

    async def _tick(self) -> None:
        import anyio

        while True:
            await anyio.sleep(_TICK)
            self._renderer.tick()

    async def _stop(self, name: str, group: TaskGroup) -> None:
        """End the job; the follower sees its end, and what does not end is left behind."""
        import anyio

        await self._jobs.stop(name, grace=_GRACE)
        await anyio.sleep(_PATIENCE)
        group.cancel_scope.cancel()

    async def _end(self, name: str, *, grace: float) -> bool:
        """Order the job's end, whatever else is being cancelled, for so long; False: unseen."""
        import anyio

        from danlu.errors import DanluError

        with anyio.move_on_after(grace + 1.0, shield=True) as scope:
            try:
                await self._jobs.stop(name, grace=grace)
            except DanluError:
                return False
        return not scope.cancelled_caught
