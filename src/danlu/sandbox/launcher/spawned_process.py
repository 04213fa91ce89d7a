"""A program as a child process: started, waited for, measured, stopped."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime

import anyio

from danlu.sandbox import procfs
from danlu.sandbox.launcher.cgroup import ContainerCgroup
from danlu.sandbox.launcher.stop_signals import DEFAULT_SIGNALS, StopSignals
from danlu.sandbox.types import SYSTEM_PATH, ContainerExit, ResourceUsage
from danlu.util.process_tree import list_descendants
from danlu.util.quantity import format_memory
from danlu.util.spawn import spawn_process


def spawn_session(
    command: Sequence[str], descriptors: Sequence[int | None], *, new_session: bool = True
) -> int:
    """Start ``command`` in a session as :func:`spawn_process` does; return its process id.

    Of our environment it gets only ``PATH``.
    """
    return spawn_process(
        command,
        descriptors,
        environment={"PATH": os.environ.get("PATH", SYSTEM_PATH)},
        new_session=new_session,
        default_signals=DEFAULT_SIGNALS,
    )


class SpawnedProcess(ABC):
    """A child process and everything that it starts.

    ``group`` is the control group of its program, if it has one. A subclass knows how
    the program is signalled, what is left when the child has ended, and how to end that.
    """

    def __init__(self, child: int, group: ContainerCgroup | None) -> None:
        self.child = child
        self.group = group
        # Readable when the process has ended (pidfd_open(2)), without a handler of SIGCHLD, of
        # which a process has only one.
        self._descriptor = os.pidfd_open(child)
        self._ended = anyio.Event()
        self._end: tuple[int, datetime] = (0, datetime.now(UTC))
        self._exit: ContainerExit | None = None
        self._collecting = anyio.Lock()
        self._stop_signals = StopSignals(self._find_program, self._send_stop_signal)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap_child)

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id of the program's first process; None before it is started."""

    def usage(self) -> ResourceUsage | None:
        """Return the resource usage; None if it is not known."""
        if self._ended.is_set():
            return None
        used = self.group.usage() if self.group is not None else None
        if used is not None or (first := self.pid) is None:
            return used
        return procfs.measure_usage([first, *list_descendants(first)])

    async def wait(self) -> ContainerExit:
        """Wait until nothing is left of the program, and return how it ended."""
        await self._ended.wait()
        async with self._collecting:
            if self._exit is None:
                with anyio.CancelScope(shield=True):
                    self._exit = await self._collect_exit()
        assert self._exit is not None
        return self._exit

    async def stop(self, *, grace: float) -> None:
        """Send the stop signal, and SIGKILL to everything that is left ``grace`` seconds later.

        See :mod:`danlu.sandbox.launcher.stop_signals`.
        """
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._ended.is_set():
                await self._stop_signals.stop(self._ended, grace=grace)
            await self._kill_all()
            await self.wait()

    def _reap_child(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.child, 0)
        self._end = os.waitstatus_to_exitcode(status), datetime.now(UTC)
        self._ended.set()

    def _describe_exit(self, code: int, reason: str, message: str = "") -> ContainerExit:
        """Return how the program ended, which the kernel may have killed for its memory."""
        if code and self.group is not None and self.group.had_oom_kill():
            limit = self.group.limits.memory
            reason, message = "OOMKilled", f"limit {format_memory(limit)}" if limit else ""
        return ContainerExit(code, reason, message, self._end[1])

    @abstractmethod
    def _find_program(self) -> int | None:
        """Return the process that the stop signal is for."""

    @abstractmethod
    def _send_stop_signal(self, number: int) -> None:
        """Send a signal to the program."""

    @abstractmethod
    async def _kill_all(self) -> None:
        """Kill everything that is left, which may be nothing."""

    @abstractmethod
    async def _collect_exit(self) -> ContainerExit:
        """End what is left of the program, and return how it ended; called once."""
