"""The connection to the first process of a container, which ends when its input does."""

from __future__ import annotations

import os

import anyio

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.container_scripts import READY_LINE

_MAX_ERRORS = 1 << 16
_CHUNK_SIZE = 1 << 12


class FirstProcess:
    """Runs :data:`~danlu.engine.container_scripts.HOLD_SCRIPT`, by the engine's command line."""

    def __init__(self, attached: AttachedProcess) -> None:
        #: None until the connection has ended; 0 if the process is known to have ended.
        self.returncode: int | None = None
        #: Process id of the engine's command.
        self.pid = attached.pid
        self._attached = attached
        # Readable when the command has ended (pidfd_open(2)).
        self._pidfd = os.pidfd_open(attached.pid)
        self._has_input = True
        self._waiting = anyio.Lock()

    async def wait_until_ready(self) -> str | None:
        """Wait until programs can be started; return the errors of a process that ends before."""
        output = b""
        while READY_LINE not in output:
            await anyio.wait_readable(self._attached.output)
            data = os.read(self._attached.output, _CHUNK_SIZE)
            if not data:
                errors = os.dup(self._attached.errors)
                try:
                    await self.wait()
                    return os.pread(errors, _MAX_ERRORS, 0).decode(errors="replace")
                finally:
                    os.close(errors)
            output += data
        return None

    def end_input(self) -> None:
        """Close its input."""
        if self._has_input:
            self._has_input = False
            os.close(self._attached.input)

    async def wait(self) -> None:
        """Wait until the connection ends; may be called repeatedly."""
        async with self._waiting:
            if self.returncode is None:
                await anyio.wait_readable(self._pidfd)
                _, status = os.waitpid(self._attached.pid, 0)
                self.returncode = os.waitstatus_to_exitcode(status)
                self.end_input()
                for descriptor in (self._pidfd, self._attached.output, self._attached.errors):
                    os.close(descriptor)
