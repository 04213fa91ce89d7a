"""One attempt at a replica: runs its pod's containers until the main container ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial

import anyio

from danlu.engine.types import RunningContainer
from danlu.errors import DanluError
from danlu.jobs.local.job_directory import utc_now
from danlu.jobs.local.lifecycle import ManagedContainer
from danlu.jobs.local.log_files import LineSplitter, LogWriter
from danlu.jobs.local.pod import PodContainers, ReplicaContainer, ReplicaEngine
from danlu.sandbox.types import ContainerExit, ResourceUsage
from danlu.training.types import ObservedReplica, ReplicaId, ReplicaPhase
from danlu.util.exception_groups import unwrap_group

_CHUNK_SIZE = 1 << 18
_PIPE_SIZE = 1 << 18
# If a read returns less than _BUSY_BYTES, the next one waits _READ_INTERVAL seconds, so that a
# program that prints line by line does not cause one read per line.
_READ_INTERVAL = 0.01
_BUSY_BYTES = 1 << 15
_DRAIN_TIMEOUT = 2.0
_EXIT_NOT_STARTED, _EXIT_TERMINATED, _EXIT_KILLED = 127, 128 + 15, 128 + 9


class ReplicaAttempt:
    """Runs one attempt, and holds what the supervisor knows about it.

    ``grace`` is how many seconds its programs have to terminate, unless the pod or a stop request
    says otherwise. ``changed`` is called on every change. ``active`` is when it last made progress.
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
        self.active = utc_now()
        self.phase = ReplicaPhase.PENDING
        self.waiting_reason = ""
        self.exit: ContainerExit | None = None
        self.deleting = False
        self.stop_requested = False
        self.stopped = False
        self.gpus: tuple[int, ...] = ()
        self.started: datetime | None = None
        self.finished: datetime | None = None
        self.running: RunningContainer | None = None
        self.container: ReplicaContainer | None = None
        self.engine: ReplicaEngine | None = None
        self.gone = anyio.Event()
        self._changed = changed
        self._scope = anyio.CancelScope()
        self._started: list[ManagedContainer] = []

    # -- running ----------------------------------------------------------------------------------

    async def run(
        self,
        pod: Callable[[], Awaitable[PodContainers]],
        *,
        engine: Callable[[ReplicaContainer], ReplicaEngine],
        log: LogWriter,
    ) -> None:
        """Run the pod that ``pod`` returns as soon as it may start; never raises."""
        try:
            with self._scope:
                await self._run_pod(await pod(), engine, log)
        except* (DanluError, OSError) as errors:
            message = _format_start_error(unwrap_group(errors))
            self._record_exit(ContainerExit(_EXIT_NOT_STARTED, "StartError", message))
        if self.exit is None:
            message = "stopped before it started"
            self._record_exit(ContainerExit(_EXIT_TERMINATED, "Error", message))
        self.gone.set()
        self._changed()

    async def _run_pod(
        self,
        pod: PodContainers,
        engine: Callable[[ReplicaContainer], ReplicaEngine],
        log: LogWriter,
    ) -> None:
        if pod.grace is not None and not self.stop_requested:
            self.grace = pod.grace
        for container in pod.init_containers:
            exit = await self._run_init_container(container, engine(container), log)
            if exit.code or self.stop_requested:
                self._record_exit(exit)
                return
        async with anyio.create_task_group() as group:
            try:
                for container in pod.sidecars:
                    sidecar, pipe = await self._start_container(container, engine(container))
                    group.start_soon(self._copy_output, pipe, log, sidecar.running)
                    group.start_soon(self._watch_container, sidecar)
                exit = await self._run_main(pod.main, engine(pod.main), log)
            finally:
                await self._stop_containers()
        self._record_exit(exit)

    async def _run_main(
        self, container: ReplicaContainer, engine: ReplicaEngine, log: LogWriter
    ) -> ContainerExit:
        self.engine, self.container = engine, container
        main, pipe = await self._start_container(container, engine)
        self.running = main.running
        self.phase, self.started = ReplicaPhase.RUNNING, utc_now()
        self.active = self.started
        self._changed()
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_container, main)
            await self._copy_output(pipe, log, main.running)
        return await main.wait()

    async def _watch_container(self, container: ManagedContainer) -> None:
        await container.watch(grace=self.grace)

    async def _run_init_container(
        self, container: ReplicaContainer, engine: ReplicaEngine, log: LogWriter
    ) -> ContainerExit:
        self.container, self.engine = container, engine
        init, pipe = await self._start_container(container, engine)
        self.running = init.running
        await self._copy_output(pipe, log, init.running)
        exit = await init.wait()
        self._started.remove(init)
        self.running = None
        return exit

    async def _start_container(
        self, container: ReplicaContainer, engine: ReplicaEngine
    ) -> tuple[ManagedContainer, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        with suppress(OSError):
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        try:
            # If this were cancelled halfway, nobody would stop the container.
            with anyio.CancelScope(shield=True):
                running = await engine.start(container, output=writing)
                managed = ManagedContainer(running, container, engine)
                self._started.append(managed)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return managed, reading

    async def _stop_containers(self) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for container in self._started:
                    group.start_soon(partial(container.stop, grace=self.grace))

    def _record_exit(self, exit: ContainerExit) -> None:
        self.exit, self.waiting_reason = exit, ""
        self.stopped = self.stop_requested
        self.finished = exit.time or utc_now()
        self.phase = ReplicaPhase.FAILED if exit.code else ReplicaPhase.SUCCEEDED
        self.running = None

    # -- output -----------------------------------------------------------------------------------

    async def _copy_output(self, pipe: int, log: LogWriter, running: RunningContainer) -> None:
        """Copy everything from ``pipe`` to the log, until no process has it open any more."""
        splitter = LineSplitter(log, self.number)
        try:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._cancel_after_exit, running, scope)
                    await self._read_output(pipe, splitter)
                    group.cancel_scope.cancel()
        finally:
            # The scope may be cancelled between two reads: take what the pipe still holds.
            with suppress(BlockingIOError):
                while data := os.read(pipe, _CHUNK_SIZE):
                    splitter.feed(data)
            splitter.close()
            os.close(pipe)

    async def _read_output(self, pipe: int, splitter: LineSplitter) -> None:
        while True:
            await anyio.wait_readable(pipe)
            try:
                data = os.read(pipe, _CHUNK_SIZE)
            except BlockingIOError:
                continue
            if not data:
                return
            self.active = utc_now()
            splitter.feed(data)
            if len(data) < _BUSY_BYTES:
                await anyio.sleep(_READ_INTERVAL)

    async def _cancel_after_exit(self, running: RunningContainer, scope: anyio.CancelScope) -> None:
        # A process outside the container may have inherited the pipe and keep it open.
        await running.wait()
        await anyio.sleep(_DRAIN_TIMEOUT)
        scope.cancel()

    # -- stopping ---------------------------------------------------------------------------------

    @property
    def was_killed(self) -> bool:
        """Whether the main program was killed because it did not terminate in time."""
        return self.stopped and self.exit is not None and self.exit.code == _EXIT_KILLED

    async def stop(self, *, grace: float | None = None) -> None:
        """Stop all programs at the same time, and wait until none is left.

        They have ``grace`` seconds; None is the pod's own grace period. A later call may shorten
        it.
        """
        if grace is not None:
            self.grace = min(self.grace, grace) if self.stop_requested else grace
        self.stop_requested = True
        with anyio.CancelScope(shield=True):
            if self.running is None and self.exit is None:
                # It waits for its turn or its image.
                self._scope.cancel()
            # Repeatedly: a sidecar may start after the others have been stopped.
            while not self.gone.is_set():
                await self._stop_containers()
                with anyio.move_on_after(_READ_INTERVAL):
                    await self.gone.wait()

    # -- observing --------------------------------------------------------------------------------

    def observe(self) -> ObservedReplica:
        """Return the attempt as input for ``decide``."""
        exit = self.exit or ContainerExit(0)
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
            active=self.active,
        )

    def warnings(self) -> Iterator[str]:
        """Yield which containers a hook or a probe has stopped."""
        for container in self._started:
            if container.failure:
                yield f"{self.id}: {container.failure}"

    def usage(self) -> ResourceUsage | None:
        """Return what all its programs use now."""
        usages = [container.running.usage() for container in self._started]
        known = [usage for usage in usages if usage is not None]
        if not known:
            return None
        return ResourceUsage(
            sum(usage.cpu for usage in known), sum(usage.memory for usage in known)
        )


def _format_start_error(error: BaseException) -> str:
    if not isinstance(error, DanluError):
        return str(error)
    return f"{error.message} ({error.hint})" if error.hint else error.message
