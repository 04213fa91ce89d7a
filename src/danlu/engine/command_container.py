"""The container of an engine that is used through commands: one starts it, others exec in it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio
import msgspec
from anyio import to_thread

from danlu.engine.attached_process import AttachedProcess, start_attached
from danlu.engine.container_scripts import EXEC_SCRIPT, LOGIN_SCRIPT
from danlu.engine.exec_program import MARK_VARIABLE, CommandProcess, ExecProgram, ProgramProcess
from danlu.engine.first_process import FirstProcess
from danlu.engine.types import EnvironmentProgram, ExecRequest, PortOpener
from danlu.errors import DanluError, MachineError, OutsideError
from danlu.sandbox.types import ContainerExit
from danlu.util.process_activity import run_program
from danlu.util.sanitize import escape_unprintable, read_last_line

_START_TIMEOUT = 60.0
_MAX_ERROR_LINES = 5
#: Without asking: if somebody else has started the container, it does not report that it is ready.
RESTART_TIMEOUT = 10.0
#: Of a container whose engine did not say how it ended.
_LOST_CODE = 125


class FirstProcessState(NamedTuple):
    """The first process's id on this machine (0: unknown), its exit code, and if memory ran out."""

    pid: int
    code: int
    was_killed_for_memory: bool = False


class CommandContainer(ABC):
    """A container of this machine's network, which ends when this process does.

    Its first process runs :data:`~danlu.engine.container_scripts.HOLD_SCRIPT`. ``user`` is that of
    programs without another.
    """

    def __init__(self, user: str) -> None:
        self.pid: int | None = None
        self.warnings: Sequence[str] = ()
        self._user = user
        self._programs: list[ExecProgram] = []
        self._first: FirstProcess | None = None
        self._exit: ContainerExit | None = None

    # -- what an engine says ----------------------------------------------------------------------

    @abstractmethod
    def start_command(self) -> Sequence[str]:
        """Return the command that starts it, connected to its first process."""

    @abstractmethod
    def exec_command(self, request: ExecRequest) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command that runs a program in it with its own streams, and its variables.

        It ends with the program's exit code. A request without a directory means the container's.
        """

    @abstractmethod
    async def read_state(self, first: FirstProcess) -> FirstProcessState:
        """Return its state; raises :class:`~danlu.errors.DanluError` if it cannot be found out."""

    @abstractmethod
    async def kill(self, first: FirstProcess) -> None:
        """Kill the first process; raises :class:`~danlu.errors.DanluError` if that fails."""

    def start_error(self, failure: str) -> MachineError:
        """Return the error for a container that printed ``failure`` instead of starting."""
        return MachineError(
            "could not start the container",
            details=tuple(map(escape_unprintable, failure.splitlines()[-_MAX_ERROR_LINES:])),
            hint="`danlu doctor` checks this machine",
        )

    async def start_process(
        self, request: ExecRequest, streams: tuple[int, int, int]
    ) -> ProgramProcess:
        """Start a program with these descriptors; raises :class:`~danlu.errors.DanluError`."""
        command, variables = self.exec_command(request)
        stdin, stdout, stderr = streams
        process = await anyio.open_process(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=variables,
            start_new_session=True,
        )
        return CommandProcess(process)

    async def run_script(self, user: str, script: str, *args: str) -> str:
        """Run a shell script and return what it prints; raises :class:`DanluError`."""
        request = ExecRequest(("/bin/sh", "-c", script, "danlu", *args), user=user)
        command, variables = self.exec_command(request)
        done = await to_thread.run_sync(lambda: run_program(command, env=variables))
        if done.returncode:
            reason = read_last_line(done.stderr, otherwise=f"exit code {done.returncode}")
            raise OutsideError(f"a program in the container failed: {reason}")
        return done.stdout.decode(errors="replace")

    # -- what follows -----------------------------------------------------------------------------

    @property
    def programs(self) -> Sequence[EnvironmentProgram]:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return tuple(self._programs)

    @property
    def port_opener(self) -> PortOpener | None:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return None

    async def start(self) -> None:
        """Start the first process, and wait until programs can be started.

        Raises :class:`MachineError` if they cannot.
        """
        try:
            attached = start_attached(self.start_command())
        except OSError as error:
            raise self.start_error(str(error)) from error
        failure = await self._wait_until_ready(attached, _START_TIMEOUT)
        if failure is not None:
            raise self.start_error(failure)

    async def finish_restart(self, attached: AttachedProcess) -> bool:
        """Do the same with one that is being started; return False if it does not get ready."""
        return await self._wait_until_ready(attached, RESTART_TIMEOUT) is None

    @property
    def has_stopped(self) -> bool:
        """Whether the container is known to have ended: the connection was not lost before."""
        return self._first is not None and self._first.returncode == 0

    async def _wait_until_ready(self, attached: AttachedProcess, timeout: float) -> str | None:
        """Wait until programs can be started; stop the container and return why they cannot."""
        failure: str | None = "it does not get ready"
        self._first = FirstProcess(attached)
        with anyio.move_on_after(timeout):
            failure = await self._first.wait_until_ready()
        if failure is not None:
            await self.stop(grace=0)
            return failure
        # With a daemon on another machine the number says nothing here.
        self.pid = _find_local_process((await self.read_state(self._first)).pid)
        return None

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ExecProgram:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        mark = os.urandom(8).hex()
        user = request.user or self._user
        variables = {**request.environment, MARK_VARIABLE: mark}
        script = EXEC_SCRIPT if request.args else LOGIN_SCRIPT
        words = ("/bin/sh", "-c", script, "danlu", *request.args)
        started = msgspec.structs.replace(request, args=words, environment=variables, user=user)
        process = await self.start_process(started, (stdin, stdout, stderr))
        program = ExecProgram(process, self.run_script, self._programs, user, mark)
        self._programs.append(program)
        return program

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._first is not None
        await self._first.wait()
        if self._exit is None:
            state, message = FirstProcessState(0, _LOST_CODE), ""
            try:
                state = await self.read_state(self._first)
            except DanluError as error:
                message = error.message  # such as a daemon that was stopped
            reason = "Error" if state.code else "Completed"
            if state.was_killed_for_memory:
                reason = "OOMKilled"
            self._exit = ContainerExit(state.code, reason, message)
        return self._exit

    async def stop(self, *, grace: float) -> None:
        """End the input of the first process; kill the container ``grace`` seconds later."""
        assert self._first is not None
        with anyio.CancelScope(shield=True):
            self._first.end_input()
            with anyio.move_on_after(grace):
                await self._first.wait()
            if self._first.returncode is None:
                with suppress(DanluError):
                    await self.kill(self._first)
                await self._first.wait()


def _find_local_process(pid: int) -> int | None:
    """Return ``pid`` if it is a process in another PID namespace of this machine."""
    try:
        own, other = os.readlink("/proc/self/ns/pid"), os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
    # The daemon may run in a virtual machine: then its number is that of another process here.
    return pid if own != other else None
