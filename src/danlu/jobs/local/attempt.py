"""One attempt at a replica: its pod's containers from the first to the end of the main one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

import anyio

from danlu.errors import DanluError
from danlu.jobs.local.logs import LogWriter, Stream
from danlu.jobs.local.pod import Pod
from danlu.jobs.local.state import now
from danlu.jobs.local.types import Container, Engine, Exit, Running, Usage
from danlu.training.types import ObservedReplica, Phase, ReplicaId

__all__ = ["Attempt"]

_CHUNK = 1 << 18
_PIPE = 1 << 18
# A program that prints line by line is read so often (seconds), not once a line.
_PAUSE = 0.01
_BUSY = 1 << 15
_DRAIN = 2.0
_NOT_STARTED, _TERMINATED = 127, 128 + 15


class Attempt:
    """What a supervisor knows of one attempt, and what it does with it.

    ``grace`` (seconds) is what its programs have to end unless its pod says so; ``changed`` is
    called whenever something of it did.
    """

    def __init__(
        self,
        id: ReplicaId,
        number: int,
        *,
        uid: str,
        grace: float,
        changed: Callable[[], None],
    ) -> None:
        self.id = id
        self.number = number
        self.uid = uid
        self.grace = grace
        self.phase = Phase.PENDING
        self.waits = ""
        self.exit: Exit | None = None
        self.deleting = False
        self.ordered = False
        self.stopped = False
        self.gpus: tuple[int, ...] = ()
        self.started: datetime | None = None
        self.finished: datetime | None = None
        self.running: Running | None = None
        self.container: Container | None = None
        self.engine: Engine | None = None
        self.gone = anyio.Event()
        self._changed = changed
        self._scope = anyio.CancelScope()
        self._others: list[Running] = []

    # -- its life ---------------------------------------------------------------------------------

    async def run(
        self,
        pod: Callable[[], Awaitable[Pod]],
        *,
        engine: Callable[[Container], Engine],
        log: LogWriter,
    ) -> None:
        """Go through the pod that ``pod`` gives once it may run; never raises."""
        try:
            with self._scope:
                await self._live(await pod(), engine, log)
        except* (DanluError, OSError) as errors:
            self._end(Exit(_NOT_STARTED, "StartError", _first(errors)))
        if self.exit is None:
            self._end(Exit(_TERMINATED, "Error", "it was ended before it started"))
        self.gone.set()
        self._changed()

    async def _live(self, pod: Pod, engine: Callable[[Container], Engine], log: LogWriter) -> None:
        for container in pod.before:
            exit = await self._one(container, engine(container), log)
            if exit.code or self.ordered:
                self._end(exit)
                return
        async with anyio.create_task_group() as group:
            try:
                for container in pod.beside:
                    running, pipe = await self._start(container, engine(container))
                    self._others.append(running)
                    group.start_soon(self._pump, pipe, log, running)
                exit = await self._main(pod.main, engine(pod.main), log)
            finally:
                await self._end_all(pod.grace)
        self._end(exit)

    async def _main(self, container: Container, engine: Engine, log: LogWriter) -> Exit:
        self.engine, self.container = engine, container
        self.running, pipe = await self._start(container, engine)
        self.phase, self.started = Phase.RUNNING, now()
        self._changed()
        await self._pump(pipe, log, self.running)
        return await self.running.wait()

    async def _end_all(self, grace: float | None) -> None:
        """End what still runs of it, all at one time."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for one in (*self._others, self.running):
                    if one is not None:
                        group.start_soon(_end, one, self.grace if grace is None else grace)

    async def _one(self, container: Container, engine: Engine, log: LogWriter) -> Exit:
        """Run an init container to its end."""
        self.container, self.engine = container, engine
        self.running, pipe = await self._start(container, engine)
        await self._pump(pipe, log, self.running)
        exit = await self.running.wait()
        self.running = None
        return exit

    async def _start(self, container: Container, engine: Engine) -> tuple[Running, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        with suppress(OSError):
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE)
        try:
            # What is started half would be nobody's to end.
            with anyio.CancelScope(shield=True):
                running = await engine.start(container, output=writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return running, reading

    def _end(self, exit: Exit) -> None:
        self.exit, self.waits = exit, ""
        self.stopped = self.ordered
        self.finished = exit.time or now()
        self.phase = Phase.FAILED if exit.code else Phase.SUCCEEDED
        self.running = None

    # -- its output -------------------------------------------------------------------------------

    async def _pump(self, pipe: int, log: LogWriter, running: Running) -> None:
        """Bring all that comes out of ``pipe`` into the log, until nobody can write any more."""
        stream = Stream(log, self.number)
        try:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._limit, running, scope)
                    await _drain(pipe, stream)
                    group.cancel_scope.cancel()
        finally:
            with suppress(BlockingIOError):
                while piece := os.read(pipe, _CHUNK):
                    stream.feed(piece)
            stream.end()
            os.close(pipe)

    async def _limit(self, running: Running, scope: anyio.CancelScope) -> None:
        """Wait for a program's output no longer than a little after its end."""
        await running.wait()
        await anyio.sleep(_DRAIN)
        scope.cancel()

    # -- orders -----------------------------------------------------------------------------------

    async def end(self, *, grace: float) -> None:
        """End it, with ``grace`` seconds for its programs; returns when nothing of it is left."""
        self.ordered, self.grace = True, grace
        with anyio.CancelScope(shield=True):
            if self.running is None and self.exit is None:
                self._scope.cancel()
            while not self.gone.is_set():
                if self.running is not None:
                    await self.running.end(grace=grace)
                with anyio.move_on_after(_PAUSE):
                    await self.gone.wait()

    # -- what is seen of it -----------------------------------------------------------------------

    def observed(self) -> ObservedReplica:
        """It as the decider sees it."""
        exit = self.exit or Exit(0)
        return ObservedReplica(
            self.id,
            self.phase,
            self.uid,
            exit_code=exit.code if self.exit else None,
            reason=exit.reason if exit.code else "",
            message=exit.message,
            deleting=self.deleting,
            started=self.started,
            finished=self.finished,
        )

    def usage(self) -> Usage | None:
        """What its programs use now."""
        found = [one.usage() for one in (self.running, *self._others) if one is not None]
        known = [one for one in found if one is not None]
        if not known:
            return None
        return Usage(sum(one.cpu for one in known), sum(one.memory for one in known))


async def _drain(pipe: int, stream: Stream) -> None:
    while True:
        await anyio.wait_readable(pipe)
        try:
            piece = os.read(pipe, _CHUNK)
        except BlockingIOError:
            continue
        if not piece:
            return
        stream.feed(piece)
        if len(piece) < _BUSY:
            await anyio.sleep(_PAUSE)


async def _end(running: Running, grace: float) -> None:
    await running.end(grace=grace)


def _first(errors: ExceptionGroup[Exception]) -> str:
    """The words of the first, with what to do about it."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, DanluError):
        return str(error)
    return f"{error.message} ({error.hint})" if error.hint else error.message
