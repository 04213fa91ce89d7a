"""One program of a container, as a process of this machine: started, waited for, ended."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Sequence
from datetime import datetime

import anyio
from anyio import to_thread

from danlu.engine import embedded
from danlu.jobs.local import proc
from danlu.jobs.local.state import now
from danlu.jobs.local.types import Exit, Usage
from danlu.sandbox import children
from danlu.sandbox.types import SYSTEM_PATH

__all__ = ["Program", "spawn"]

#: Above what descriptors become in a child: one must not be overwritten before it is copied.
_FREE = 32
#: Seconds: for the last words of a program that was killed, for a runtime to start one, a look.
_DRAIN, _PATIENCE, _ROUND = 1.0, 30.0, 0.004
#: What Python has changed for itself, or a caller may have.
_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def spawn(
    command: Sequence[str], *, stdin: int, stdout: int, stderr: int, more: Sequence[int] = ()
) -> int:
    """Start ``command`` in a session of its own and give its process id.

    ``more`` are its descriptors from 3 on. It sees nothing of our environment but the path.
    """
    sources = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _FREE) for one in (stdin, stdout, stderr)]
    sources += [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _FREE) for one in more]
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources)]
    environment = {"PATH": os.environ.get("PATH", SYSTEM_PATH)}
    try:
        return os.posix_spawn(
            command[0],
            list(command),
            environment,
            file_actions=actions,
            setsid=True,
            setsigdef=_SIGNALS,
        )
    finally:
        for source in sources:
            os.close(source)


class Program:
    """A program that was started; ``keeper`` is the process that stands for it here.

    ``finish`` turns the keeper's exit status (negative for a signal) into the end, and lets go of
    what the program needed; it may block and is called once. ``measure`` says what it uses. What
    runs ``beside`` another is not the first process of its container, so ending it kills only
    what descends from it.
    """

    def __init__(
        self,
        keeper: int,
        *,
        finish: Callable[[int], Exit],
        measure: Callable[[], Usage | None],
        beside: bool = False,
    ) -> None:
        self.keeper = keeper
        self.others: list[Program] = []
        self._finish = finish
        self._measure = measure
        self._beside = beside
        self._descriptor = os.pidfd_open(keeper)
        self._gone = anyio.Event()
        self._status: tuple[int, datetime] = (0, now())
        self._killed = 0
        self._exit: Exit | None = None
        self._finishing = anyio.Lock()
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    @property
    def pid(self) -> int | None:
        """The program's first process, None before there is one."""
        return children.program_inside(self.keeper)

    def usage(self) -> Usage | None:
        """What it uses; None where that cannot be known."""
        return None if self._gone.is_set() else self._measure()

    async def begin(self) -> None:
        """Wait until the program itself runs, or has ended; no longer than a runtime may take."""
        with anyio.move_on_after(_PATIENCE):
            while not self._gone.is_set() and not children.runs(self.keeper):
                await anyio.sleep(_ROUND)

    async def wait(self) -> Exit:
        """Its end, when nothing is left of it."""
        await self._gone.wait()
        async with self._finishing:
            if self._exit is None:
                with anyio.CancelScope(shield=True):
                    self._exit = await self._finished()
        assert self._exit is not None
        return self._exit

    async def end(self, *, grace: float) -> None:
        """SIGTERM, then SIGKILL to all that is left ``grace`` seconds later."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._gone.is_set():
                self._ask()
                with anyio.move_on_after(grace):
                    await self._gone.wait()
            if not self._gone.is_set():
                await self._kill()
            await self.wait()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.keeper, 0)
        self._status = os.waitstatus_to_exitcode(status), now()
        self._gone.set()

    async def _finished(self) -> Exit:
        for other in self.others:
            await other.end(grace=0)
        code, time = self._status
        end = await to_thread.run_sync(self._finish, -self._killed if self._killed else code)
        return Exit(end.code, end.reason, end.message, time)

    def _ask(self) -> None:
        if not self._beside:
            if not embedded.send(self.keeper, signal.SIGTERM):
                self._killed = signal.SIGTERM
        elif (program := self.pid) is not None:
            children.send(program, signal.SIGTERM)

    async def _kill(self) -> None:
        """Kill the program first: what it said last is then still passed on."""
        for process in self._members():
            children.send(process, signal.SIGKILL)
        with anyio.move_on_after(_DRAIN):
            await self._gone.wait()
            return
        if self._beside:
            # Not the keeper: it must reap the runtime, whose process namespace would wait for that.
            proc.kill(proc.descendants(self.keeper))
        else:
            children.kill_inside(self.keeper)

    def _members(self) -> list[int]:
        program = self.pid
        if program is None:
            return []
        # With the first process of a process namespace all of it is killed.
        return [program, *(proc.descendants(program) if self._beside else ())]
