"""A program of a container as a process of the host."""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import inf
from pathlib import Path

import anyio
from anyio import to_thread

from danlu.sandbox import container_processes, procfs, runtime
from danlu.sandbox.launcher import waiting_shell
from danlu.sandbox.launcher.cgroup import ContainerCgroup
from danlu.sandbox.launcher.spawned_process import SpawnedProcess
from danlu.sandbox.types import ContainerExit
from danlu.util.process_tree import child_pids, list_descendants, send_signal

# Seconds for the last output of a killed program, and for the OCI runtime to start one.
_DRAIN_TIMEOUT, _START_TIMEOUT = 1.0, 30.0
_POLL_SECONDS = 0.004
_MAX_SEARCHES = 20


class ContainerProcess(SpawnedProcess):
    """A started program; the child process is the keeper that waits for it.

    ``log`` is the runtime's, for ``program``, which may not have been found. ``release`` is called
    once in a thread when all is over. After ``kill_timeout`` seconds a killed container is given
    up, which a process in uninterruptible sleep (proc(5), state D) keeps alive. With ``is_exec``
    the program runs next to the container's first process, so stopping it only kills its own
    descendants.
    """

    def __init__(
        self,
        keeper: int,
        *,
        log: Path,
        program: str,
        group: ContainerCgroup | None = None,
        release: Callable[[], None] = lambda: None,
        kill_timeout: float = inf,
        is_exec: bool = False,
    ) -> None:
        super().__init__(keeper, group)
        self.exec_processes: list[ContainerProcess] = []
        self._log = log
        self._program = program
        self._release = release
        self._kill_timeout = kill_timeout
        self._is_exec = is_exec
        self._killed = 0

    @property
    def pid(self) -> int | None:
        """See :class:`SpawnedProcess`."""
        return container_processes.find_container_init(self.child)

    async def wait_for_start(self) -> None:
        """Wait until the runtime has started the program, or it has ended."""
        with anyio.move_on_after(_START_TIMEOUT):
            while not self._ended.is_set() and not container_processes.is_program_running(
                self.child
            ):
                await anyio.sleep(_POLL_SECONDS)

    async def send_signal(self, number: int) -> None:
        """Send a signal to the program; do nothing if it has ended."""
        if (program := self.pid) is not None:
            send_signal([program], number)

    async def notify_resize(self) -> None:
        """Signal the OCI runtime, which copies the size of our terminal to the program's."""
        send_signal(child_pids(self.child)[:1], signal.SIGWINCH)

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

    async def _collect_exit(self) -> ContainerExit:
        for process in tuple(self.exec_processes):
            await process.stop(grace=0)
        return await to_thread.run_sync(self._interpret_exit)

    def _interpret_exit(self) -> ContainerExit:
        status = -self._killed if self._killed else self._end[0]
        code, failure = runtime.interpret_exit(status, self._log, self._program)
        reason = "StartError" if failure else "Error" if code else "Completed"
        exit = self._describe_exit(code, reason, failure)
        self._release()
        return exit

    def _find_program(self) -> int | None:
        return self.pid if self._is_exec else waiting_shell.find_program(self.child)

    def _send_stop_signal(self, number: int) -> None:
        if not self._is_exec:
            if not waiting_shell.send_signal(self.child, number):
                self._killed = number
        elif (program := self.pid) is not None:
            send_signal([program], number)

    async def _kill_all(self) -> None:
        if self._ended.is_set():
            return
        # Kill the program before its keeper, which then still passes on its last output.
        send_signal(self._own_processes())
        with anyio.move_on_after(_DRAIN_TIMEOUT):
            await self._ended.wait()
            return
        if self._is_exec:
            # Spare the keeper: it must reap the runtime, which the PID namespace would wait for.
            send_signal(list_descendants(self.child))
            return
        container_processes.kill_container(self.child)
        with anyio.move_on_after(self._kill_timeout):
            await self._ended.wait()
            return
        send_signal([self.child])

    def _own_processes(self) -> list[int]:
        program = self.pid
        if program is None:
            return []
        # Killing the first process of a PID namespace kills all its processes.
        return [program, *(list_descendants(program) if self._is_exec else ())]
