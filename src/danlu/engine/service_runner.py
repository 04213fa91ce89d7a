"""Keep the services of an environment running, and write their output to one log each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import anyio
import msgspec

from danlu.engine.environment_directory import EnvironmentDirectory, ServiceSpec, ServiceState
from danlu.engine.types import EnvironmentProgram
from danlu.errors import DanluError
from danlu.sandbox.types import ContainerExit
from danlu.util.backoff import ExponentialBackoff
from danlu.util.rotating_log import RotatingLog

_LOG_BYTES = 8 << 20
_CHUNK_SIZE = 1 << 16
_FIRST_DELAY, _LONGEST_DELAY, _RESET_AFTER = 0.5, 30.0, 60.0

StartProgram = Callable[[ServiceSpec, int], Awaitable[EnvironmentProgram]]
"""Starts a program of the environment with a descriptor for its output and no input."""


class ServiceRunner:
    """Runs one service until it is stopped; restarts it with exponential back-off."""

    def __init__(
        self,
        spec: ServiceSpec,
        environment: EnvironmentDirectory,
        start: StartProgram,
        *,
        changed: Callable[[], None],
    ) -> None:
        self.state = ServiceState(spec.name)
        self._spec = spec
        self._log = RotatingLog(environment.log_file(spec.name), limit=_LOG_BYTES)
        self._start = start
        self._changed = changed
        self._process: EnvironmentProgram | None = None
        self._stopping = False
        self._wake = anyio.Event()
        self._backoff = ExponentialBackoff(_FIRST_DELAY, _LONGEST_DELAY, reset=_RESET_AFTER)

    async def run(self) -> None:
        """Run the service until :meth:`stop`."""
        try:
            while not self._stopping:
                try:
                    await self._run_once()
                except OSError as error:
                    # A full disk or too many processes must not end the environment.
                    reason = error.strerror or str(error)
                    self._update_state(running=False, pid=None, exit_code=125, reason=reason)
                if not self._stopping:
                    delay = self._backoff.next_delay()
                    self._write_line(f"{self._describe_end()}; restarting in {delay:.1f} s")
                    with anyio.move_on_after(delay):
                        await self._wake.wait()
                    self._wake = anyio.Event()
                    self._update_state(restarts=self.state.restarts + 1)
        finally:
            self._log.close()

    async def stop(self, *, grace: float) -> None:
        """Stop the service and do not restart it."""
        self._stopping = True
        self._wake.set()
        if self._process is not None:
            await self._process.stop(grace=grace)

    async def restart(self, *, grace: float) -> None:
        """Stop the program, or end the wait for its restart; it is started again immediately."""
        self._backoff.reset()
        self._wake.set()
        if self._process is not None:
            await self._process.stop(grace=grace)

    async def _run_once(self) -> None:
        try:
            start = partial(self._start, self._spec)
            exit = await run_with_log(start, self._log, on_start=self._record_start)
        except DanluError as error:
            self._update_state(running=False, exit_code=125, reason=error.message)
        else:
            reason = exit.message or exit.reason
            self._update_state(running=False, pid=None, exit_code=exit.code, reason=reason)
        finally:
            self._process = None

    def _record_start(self, process: EnvironmentProgram) -> None:
        self._process = process
        self._update_state(running=True, pid=process.pid)

    def _update_state(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self._changed()

    def _describe_end(self) -> str:
        if self.state.reason not in ("", "Error", "Completed"):
            return f"could not be started: {self.state.reason}"
        return f"exited with code {self.state.exit_code}"

    def _write_line(self, text: str) -> None:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._log.write(f"{time} danlu: {self._spec.name} {text}\n".encode())


async def run_with_log(
    start: Callable[[int], Awaitable[EnvironmentProgram]],
    log: RotatingLog,
    *,
    on_start: Callable[[EnvironmentProgram], None] = lambda program: None,
) -> ContainerExit:
    """Run a program until its end, and write its output to a log.

    ``start`` starts it with a descriptor for its output; then ``on_start`` is called.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    try:
        try:
            program = await start(writing)
        finally:
            # The program has its own copy, and reading ends when all copies are closed.
            os.close(writing)
        on_start(program)
        async with anyio.create_task_group() as group:
            group.start_soon(_copy_output, reading, log)
            exit = await program.wait()
            # Children of the program may keep the pipe open; they are not the program.
            group.cancel_scope.cancel()
        with suppress(BlockingIOError):
            while data := os.read(reading, _CHUNK_SIZE):
                log.write(data)
        return exit
    finally:
        os.close(reading)


async def _copy_output(reading: int, log: RotatingLog) -> None:
    """Copy from a non-blocking descriptor to a log until its end."""
    while True:
        await anyio.wait_readable(reading)
        data = os.read(reading, _CHUNK_SIZE)
        if not data:
            return
        log.write(data)
