"""The connection to the first process of a container, which ends when its input does."""

from __future__ import annotations

import os
import subprocess
from contextlib import aclosing
from typing import Protocol

import anyio
from anyio.abc import Process

from danlu.engine.container_scripts import READY_LINE
from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.engine_api import DaemonStream, EngineApi
from danlu.errors import DanluError

_MAX_ERRORS = 1 << 16
_LOST = -1


class FirstProcess(Protocol):
    """Runs :data:`~danlu.engine.container_scripts.HOLD_SCRIPT`."""

    @property
    def returncode(self) -> int | None:
        """None until the connection ends; 0 if the process is known to have ended."""

    async def wait_until_ready(self) -> str | None:
        """Wait until programs can be started; return the errors of a process that ends before."""

    async def end_input(self) -> None:
        """Close its input."""

    async def wait(self) -> None:
        """Wait until the connection ends; may be called repeatedly."""


class CommandFirstProcess:
    """Started by the engine's command line."""

    def __init__(self, process: Process, errors: int) -> None:
        self._process = process
        self._errors = errors

    @classmethod
    async def start(cls, command: DockerCommand, name: str) -> CommandFirstProcess:
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
        """See :class:`FirstProcess`."""
        return self._process.returncode

    async def wait_until_ready(self) -> str | None:
        """See :class:`FirstProcess`."""
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
        """See :class:`FirstProcess`."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def wait(self) -> None:
        """See :class:`FirstProcess`."""
        await self._process.wait()


class ApiFirstProcess:
    """Started by the Engine API."""

    def __init__(self, api: EngineApi, name: str, stream: DaemonStream) -> None:
        self.returncode: int | None = None
        self._api = api
        self._name = name
        self._stream = stream
        self._reading = anyio.Lock()

    @classmethod
    async def start(cls, api: EngineApi, name: str) -> ApiFirstProcess:
        """Start the container, which must be stopped.

        Raises :class:`~danlu.errors.DanluError` if it is not, or cannot be started.
        """
        return cls(api, name, await api.start_container(name))

    async def wait_until_ready(self) -> str | None:
        """See :class:`FirstProcess`."""
        output, errors = b"", b""
        async with self._reading, aclosing(self._stream.read_output()) as parts:
            async for stream, data in parts:
                if stream == 1:
                    output += data
                elif len(errors) < _MAX_ERRORS:
                    errors += data
                if READY_LINE in output:
                    return None
        await self.wait()
        return errors.decode(errors="replace")

    async def end_input(self) -> None:
        """See :class:`FirstProcess`."""
        await self._stream.end_input()

    async def wait(self) -> None:
        """See :class:`FirstProcess`."""
        async with self._reading:
            if self.returncode is not None:
                return
            try:
                async with aclosing(self._stream.read_output()) as parts:
                    async for _ in parts:
                        pass
                await self._api.wait_for_container(self._name)
                self.returncode = 0
            except DanluError:
                self.returncode = _LOST
            await self._stream.close()
