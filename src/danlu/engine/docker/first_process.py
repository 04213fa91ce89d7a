"""The connection to the first process of a container, which ends when its input does."""

from __future__ import annotations

import os
import subprocess

import anyio
from anyio.abc import Process

from danlu.engine.container_scripts import READY_LINE
from danlu.engine.docker.command import DockerCommand

_MAX_ERRORS = 1 << 16


class FirstProcess:
    """Runs :data:`~danlu.engine.container_scripts.HOLD_SCRIPT`, by the engine's command line."""

    def __init__(self, process: Process, errors: int) -> None:
        self._process = process
        self._errors = errors

    @classmethod
    async def start(cls, command: DockerCommand, name: str) -> FirstProcess:
        """Start the container."""
        # A file, because nobody reads a pipe while the container runs.
        errors = os.memfd_create("errors")
        try:
            process = await command.open_process(
                *("start", "--attach", "--interactive", name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        except BaseException:
            os.close(errors)
            raise
        return cls(process, errors)

    @property
    def returncode(self) -> int | None:
        """None until the connection ends; 0 if the process is known to have ended."""
        return self._process.returncode

    async def wait_until_ready(self) -> str | None:
        """Wait until programs can be started; return the errors of a process that ends before."""
        output = b""
        assert self._process.stdout is not None
        try:
            while READY_LINE not in output:
                output += await self._process.stdout.receive()
            return None
        except anyio.EndOfStream:
            await self._process.wait()
            return os.pread(self._errors, _MAX_ERRORS, 0).decode(errors="replace")
        finally:
            os.close(self._errors)

    async def end_input(self) -> None:
        """Close its input."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def wait(self) -> None:
        """Wait until the connection ends; may be called repeatedly."""
        await self._process.wait()
