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
    """A job that was followed: how it stood last, and the signal that ended that, if one did."""

    view: JobView | None
    signal: int = 0


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
        self._view: JobView | None = None

    async def run(self, submission: Submission) -> Followed:
        import anyio

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            name = await self._jobs.submit(submission)
            try:
                async with anyio.create_task_group() as group:
                    self._begin(group, name, None)
                    async for number in signals:
                        if self._signal:
                            await self._end(name, grace=0)
                            group.cancel_scope.cancel()
                            break
                        self._signal = number
                        self._say(f"stopping {name} …; once more kills it")
                        group.start_soon(self._stop, name, group)
            except BaseException:
                # Nobody looks on any more (stdout was closed): a program would have ended, too.
                await self._end(name, grace=_GRACE)
                raise
        return Followed(self._view, self._signal)

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

    async def _end(self, name: str, *, grace: float) -> None:
        """Order the job's end, whatever else is being cancelled; only so long."""
        import anyio

        with anyio.move_on_after(grace + 1.0, shield=True):
            await self._jobs.stop(name, grace=grace)
