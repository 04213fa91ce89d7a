"""A program of a container as a process of the host: started, waited for, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import anyio
from anyio import to_thread

from danlu.engine import embedded, procfs
from danlu.engine.stop_signals import DEFAULT_SIGNALS, StopSignals
from danlu.engine.types import ContainerExit, ResourceUsage
from danlu.sandbox import container_processes
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.process_tree import child_pids, list_descendants, send_signal
from danlu.util.spawn import spawn_process

# Seconds for the last output of a killed program, and for the OCI runtime to start one.
_DRAIN_TIMEOUT, _START_TIMEOUT = 1.0, 30.0
_POLL_SECONDS = 0.004
_MAX_SEARCHES = 20


def spawn_session(command: Sequence[str], descriptors: Sequence[int | None]) -> int:
    """Start ``command`` in a new session as :func:`spawn_process` does; return its process id.

    Of our environment it gets only ``PATH``.
    """
    return spawn_process(
        command,
        descriptors,
        environment={"PATH": os.environ.get("PATH", SYSTEM_PATH)},
        new_session=True,
        default_signals=DEFAULT_SIGNALS,
    )


class ContainerProcess:
    """A started program; ``keeper`` is the host process that waits for it.

    ``finish`` is called once in a thread. It turns the keeper's exit status (negative for a signal)
    into the container's exit, and releases what the program needed. ``measure`` returns the
    resource usage. With ``is_exec`` the program runs next to the container's first process, so
    stopping it only kills its own descendants.
    """

    def __init__(
        self,
        keeper: int,
        *,
        finish: Callable[[int], ContainerExit],
        measure: Callable[[], ResourceUsage | None],
        is_exec: bool = False,
    ) -> None:
        self.keeper = keeper
        self.exec_processes: list[ContainerProcess] = []
        self._finish = finish
        self._measure = measure
        self._is_exec = is_exec
        # Readable when the process has ended (pidfd_open(2)), without a handler of SIGCHLD, of
        # which a process has only one.
        self._descriptor = os.pidfd_open(keeper)
        self._ended = anyio.Event()
        self._status: tuple[int, datetime] = (0, datetime.now(UTC))
        self._killed = 0
        self._stop_signals = StopSignals(self._find_program, self._send_stop_signal)
        self._exit: ContainerExit | None = None
        self._finishing = anyio.Lock()
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap_keeper)

    @property
    def pid(self) -> int | None:
        """Process id of the program's first process; None before it is started."""
        return container_processes.find_container_init(self.keeper)

    def usage(self) -> ResourceUsage | None:
        """Return the resource usage; None if it is not known."""
        return None if self._ended.is_set() else self._measure()

    async def wait_for_start(self) -> None:
        """Wait until the runtime has started the program, or it has ended."""
        with anyio.move_on_after(_START_TIMEOUT):
            while not self._ended.is_set() and not container_processes.is_program_running(
                self.keeper
            ):
                await anyio.sleep(_POLL_SECONDS)

    async def wait(self) -> ContainerExit:
        """Wait until nothing is left of the program, and return how it ended."""
        await self._ended.wait()
        async with self._finishing:
            if self._exit is None:
                with anyio.CancelScope(shield=True):
                    self._exit = await self._collect_exit()
        assert self._exit is not None
        return self._exit

    async def stop(self, *, grace: float) -> None:
        """Send the stop signal, and SIGKILL to everything that is left ``grace`` seconds later.

        See :mod:`danlu.engine.stop_signals`.
        """
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._ended.is_set():
                await self._stop_signals.stop(self._ended, grace=grace)
            if not self._ended.is_set():
                await self._kill_all()
            await self.wait()

    async def send_signal(self, number: int) -> None:
        """Send a signal to the program; do nothing if it has ended."""
        if (program := self.pid) is not None:
            send_signal([program], number)

    async def notify_resize(self) -> None:
        """Signal the OCI runtime, which copies the size of our terminal to the program's."""
        send_signal(child_pids(self.keeper)[:1], signal.SIGWINCH)

    async def hang_up(self) -> None:
        """Send SIGHUP to the program's session, as when its terminal is closed."""
        program = self.pid
        if program is None:
            return
        reached: set[int] = set()
        # Again for those that were forked while the others were searched for.
        for _ in range(_MAX_SEARCHES):
            found = set(procfs.find_processes(program, b"", orphanage=None)) - reached
            if not found:
                break
            send_signal(found, signal.SIGHUP)
            reached |= found

    def _reap_keeper(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.keeper, 0)
        self._status = os.waitstatus_to_exitcode(status), datetime.now(UTC)
        self._ended.set()

    async def _collect_exit(self) -> ContainerExit:
        for process in tuple(self.exec_processes):
            await process.stop(grace=0)
        code, time = self._status
        exit = await to_thread.run_sync(self._finish, -self._killed if self._killed else code)
        return ContainerExit(exit.code, exit.reason, exit.message, time)

    def _find_program(self) -> int | None:
        return self.pid if self._is_exec else embedded.find_program(self.keeper)

    def _send_stop_signal(self, number: int) -> None:
        if not self._is_exec:
            if not embedded.send_signal(self.keeper, number):
                self._killed = number
        elif (program := self.pid) is not None:
            send_signal([program], number)

    async def _kill_all(self) -> None:
        # Kill the program before its keeper, which then still passes on its last output.
        send_signal(self._own_processes())
        with anyio.move_on_after(_DRAIN_TIMEOUT):
            await self._ended.wait()
            return
        if self._is_exec:
            # Spare the keeper: it must reap the runtime, which the PID namespace would wait for.
            send_signal(list_descendants(self.keeper))
        else:
            container_processes.kill_container(self.keeper)

    def _own_processes(self) -> list[int]:
        program = self.pid
        if program is None:
            return []
        # Killing the first process of a PID namespace kills all its processes.
        return [program, *(list_descendants(program) if self._is_exec else ())]
