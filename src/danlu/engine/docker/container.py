"""The container of an environment in Docker or Podman."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import anyio
import msgspec

from danlu.engine.attached_process import (
    AttachedProcess,
    record_start,
    start_attached,
)
from danlu.engine.container_scripts import (
    EXEC_SCRIPT,
    FIND_SCRIPT,
    KILL_SCRIPT,
    LOGIN_SCRIPT,
)
from danlu.engine.docker.api_exec import read_api_exec, start_api_exec
from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.command_exec import start_command_exec
from danlu.engine.docker.engine_api import EngineApi, find_socket
from danlu.engine.docker.first_process import FirstProcess
from danlu.engine.docker.settings import (
    SPEC_LABEL,
    DockerSettings,
    changes_image,
    container_name,
    detect_network,
    read_settings,
    render_create,
    render_gpus,
)
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.types import CONNECTION_LOST, EnvironmentProgram, ExecRequest, PortOpener
from danlu.errors import DanluError, MachineError, OutsideError
from danlu.sandbox.types import ContainerExit
from danlu.util.config import Configuration

_MARK_VARIABLE = "DANLU_EXEC"
#: Exists once the container was created.
_CREATED_FILE = "docker-created"
_LOST_WARNING = (
    "its container was removed with {}: changes inside are lost, it starts from the image"
)
_START_TIMEOUT = 60.0
#: Without asking: if somebody else has started the container, it does not report that it is ready.
_RESTART_TIMEOUT = 10.0
_KILL_TIMEOUT = 10.0
_SCRIPT_TIMEOUT = 30.0
_SIGNAL_CODE = 128
_KILLED_CODE = _SIGNAL_CODE + signal.SIGKILL
#: Of a container whose engine did not say how it ended.
_LOST_CODE = 125


class DockerStarter:
    """Starts containers through Docker's API, or the command line of Docker or Podman."""

    def __init__(
        self, command: DockerCommand, config: Configuration, restarted: AttachedProcess | None
    ) -> None:
        self._command = command
        self._config = config
        self._restarted = restarted
        socket = "" if command.is_podman else find_socket(os.environ)
        self._api = EngineApi(socket) if socket else None

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> DockerContainer:
        """Start the environment's container, which is created if needed.

        The settings must have been prepared (:mod:`danlu.engine.docker.commands`). Raises
        :class:`~danlu.errors.DanluError` if it could not be started.
        """
        settings = self._add_seccomp(read_settings(environment))
        _, network = detect_network(environment, trusted=settings.trusted)
        if network != settings.network:
            raise OutsideError(
                "this machine's proxies, certificates or package indexes have changed",
                hint=f"`danlu start {spec.name}` prepares the container again",
            )
        name = container_name(environment)
        options = (*settings.options, *render_gpus(self._command.name, spec.gpus))
        settings = msgspec.structs.replace(settings, options=options)
        digest = _digest_settings(name, spec, settings)
        container = DockerContainer(self._command, self._api, name, spec, settings)
        restarted = self._restarted
        if restarted is not None and restarted.digest != digest:
            outdated = FirstProcess(restarted)
            outdated.end_input()
            with anyio.move_on_after(_RESTART_TIMEOUT):
                await outdated.wait()
            restarted = None
        if restarted is None or not await container.finish_restart(restarted):
            container.warnings = await self._ensure_container(environment, spec, settings, digest)
            await container.start()
        command = container.start_command()

        def record() -> None:
            if container.has_stopped:
                record_start(environment.directory, digest, command)

        resources.callback(record)
        return container

    def _add_seccomp(self, settings: DockerSettings) -> DockerSettings:
        if self._config.seccomp in ("", "default"):
            return settings
        options = (*settings.options, "--security-opt", f"seccomp={self._config.seccomp}")
        return msgspec.structs.replace(settings, options=options)

    async def _ensure_container(
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        settings: DockerSettings,
        digest: str,
    ) -> Sequence[str]:
        """Create the container; one that was created otherwise keeps its files only.

        Returns what the user should know.
        """
        name, created = container_name(environment), environment.directory / _CREATED_FILE
        existing = await self._inspect(name, f'{{{{index .Config.Labels "{SPEC_LABEL}"}}}}')
        if existing is not None:
            # A supervisor that was killed a moment ago.
            await self._kill_running(name)
        if existing == digest:
            return ()
        changes = changes_image(name)
        if existing is not None:
            # Mounts, limits and variables of a container cannot be changed. If this is interrupted
            # after `rm`, the next start finds the image.
            await self._commit_files(name, changes)
            await self._command.run_async("rm", name)
        image = changes if await self._has_image(changes) else ""
        create, passed = render_create(name, spec, settings, image)
        label = ["--label", f"{SPEC_LABEL}={digest}"]
        warnings: list[str] = []
        await self._command.run_async(
            create[0], *label, *create[1:], variables=passed, warnings=warnings
        )
        lost = created.exists() and not image
        created.touch()
        return (*warnings, *((_LOST_WARNING.format(self._command.name),) if lost else ()))

    async def _commit_files(self, name: str, image: str) -> None:
        """Make an image of a container's files."""
        try:
            await self._command.run_async("commit", name, image)
        except OutsideError:
            if not self._command.is_podman:
                raise
            # Podman puts no second layer on an image whose history is missing.
            await self._command.run_async("commit", "--squash", name, image)

    async def _has_image(self, image: str) -> bool:
        try:
            await self._command.run_async("image", "inspect", "-f", "{{.Id}}", image)
        except OutsideError:
            return False
        return True

    async def _inspect(self, name: str, template: str) -> str | None:
        """Return a property of the container; None if it does not exist."""
        try:
            output = await self._command.run_async("container", "inspect", "-f", template, name)
        except OutsideError:
            return None
        return output.strip()

    async def _kill_running(self, name: str) -> None:
        if await self._inspect(name, "{{.State.Running}}") == "true":
            with suppress(OutsideError):
                await self._command.run_async("kill", name)
            await self._command.run_async("wait", name)


class DockerContainer:
    """A started container; it ends when this process does."""

    def __init__(
        self,
        command: DockerCommand,
        api: EngineApi | None,
        name: str,
        spec: EnvironmentSpec,
        settings: DockerSettings,
    ) -> None:
        self.pid: int | None = None
        self.warnings: Sequence[str] = ()
        self._command = command
        self._api = api
        self._name = name
        self._spec = spec
        self._settings = settings
        self._programs: list[DockerProgram] = []
        self._first: FirstProcess | None = None
        self._exit: ContainerExit | None = None

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
            # Not by the API: it confirms an attachment before it has made it, and the first output
            # of a container that starts meanwhile is lost.
            attached = start_attached(self.start_command())
        except OSError as error:
            raise self._start_error(str(error)) from error
        failure = await self._wait_until_ready(attached, _START_TIMEOUT)
        if failure is not None:
            raise self._start_error(failure)

    def start_command(self) -> Sequence[str]:
        """Return the command that starts it, connected to its first process."""
        program = self._command.find_program()
        return program, "start", "--attach", "--interactive", self._name

    async def finish_restart(self, attached: AttachedProcess) -> bool:
        """Do the same with one that is being started; return False if it does not get ready."""
        return await self._wait_until_ready(attached, _RESTART_TIMEOUT) is None

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
        pid, _, _ = await self._read_state()
        # With a daemon on another machine the number says nothing here.
        self.pid = _find_local_process(pid)
        return None

    def _start_error(self, failure: str) -> MachineError:
        reason = self._command.interpret_error("start", failure)
        hint = "`danlu doctor` checks this machine"
        if self._spec.gpus:
            hint += "; GPUs in Docker and Podman need nvidia-container-toolkit"
        return MachineError(
            f"{self._command.name} could not start the container: {reason.message}",
            hint=reason.hint or hint,
        )

    async def _read_state(self) -> tuple[int, int, bool]:
        """Return the process id, the exit code and whether it ended for lack of memory."""
        if self._api is not None:
            return await self._api.read_state(self._name)
        template = "{{.State.Pid}} {{.State.ExitCode}} {{.State.OOMKilled}}"
        output = await self._command.run_async("inspect", "-f", template, self._name)
        try:
            pid, code, killed = output.split()
            return int(pid), int(code), killed == "true"
        except ValueError as error:
            message = f"{self._command.name} did not describe the container"
            raise OutsideError(message) from error

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> DockerProgram:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        mark = os.urandom(8).hex()
        user = request.user or self._settings.user
        variables = {**request.environment, _MARK_VARIABLE: mark}
        script = EXEC_SCRIPT if request.args else LOGIN_SCRIPT
        words = ("/bin/sh", "-c", script, "danlu", *request.args)
        started = msgspec.structs.replace(request, args=words, environment=variables, user=user)
        streams = stdin, stdout, stderr
        process = await (
            start_api_exec(self._api, self._name, started, streams)
            if self._api is not None
            else start_command_exec(self._command, self._name, started, streams)
        )
        program = DockerProgram(self, self._programs, process, user, mark)
        self._programs.append(program)
        return program

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._first is not None
        await self._first.wait()
        if self._exit is None:
            code, killed, message = _LOST_CODE, False, ""
            try:
                _, code, killed = await self._read_state()
            except DanluError as error:
                message = error.message  # such as a daemon that was stopped
            reason = "OOMKilled" if killed else "Error" if code else "Completed"
            self._exit = ContainerExit(code, reason, message)
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
                    await self._command.run_async("kill", self._name)
                await self._first.wait()

    async def run_script(self, user: str, script: str, *args: str) -> str:
        """Run a shell script and return what it prints; raises :class:`DanluError`."""
        words = ("/bin/sh", "-c", script, "danlu", *args)
        if self._api is None:
            command = ("exec", "--user", user, self._name, *words)
            return await self._command.run_async(*command)
        with anyio.move_on_after(_SCRIPT_TIMEOUT):
            request = ExecRequest(words, user=user)
            output = await read_api_exec(self._api, self._name, request)
            return output.decode(errors="replace")
        raise OutsideError("docker: a program that danlu started in the container did not end")


class ProgramProcess(Protocol):
    """How a program is connected: by the engine's command line or its API."""

    @property
    def returncode(self) -> int | None:
        """None until the program has ended; negative if it is not known how."""

    @property
    def failure(self) -> str:
        """Why it is not known; empty if it is, or if the connection was ended here."""

    async def wait(self, reject_output: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Wait until the program has ended; ``reject_output`` is called if nobody reads it."""

    async def notify_resize(self, is_running: Callable[[], Awaitable[bool]]) -> None:
        """Pass on a new size of the terminal; ``is_running`` says whether the program runs yet."""

    def kill(self) -> None:
        """End the connection."""


class DockerProgram:
    """A program that runs next to the first process."""

    #: Its process is a child of the engine.
    pid: int | None = None

    def __init__(
        self,
        container: DockerContainer,
        programs: list[DockerProgram],
        process: ProgramProcess,
        user: str,
        mark: str,
    ) -> None:
        self._container = container
        self._programs = programs
        self._process = process
        self._user = user
        self._mark = mark
        self._inside_pid = ""

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        code = await self._process.wait(self._reject_output)
        # Negative if the command line was killed, such as by SIGPIPE because nobody reads.
        is_lost = bool(self._process.failure) or code < 0
        if self in self._programs:
            self._programs.remove(self)
            if is_lost:
                await self._send_signal(signal.SIGKILL, everything=True)
        if self._process.failure:
            return ContainerExit(_KILLED_CODE, CONNECTION_LOST, self._process.failure)
        code = _SIGNAL_CODE - code if code < 0 else code
        return ContainerExit(code, "Error" if code else "Completed")

    async def _reject_output(self) -> None:
        await self._send_signal(signal.SIGPIPE)

    async def stop(self, *, grace: float) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and self._process.returncode is None:
                await self._send_signal(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self.wait()
            if self._process.returncode is None:
                await self._send_signal(signal.SIGKILL, everything=True)
                with anyio.move_on_after(_KILL_TIMEOUT):
                    await self.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self.wait()

    async def send_signal(self, number: int) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if self._process.returncode is None:
            await self._send_signal(number)

    async def notify_resize(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._process.notify_resize(self._is_running)

    async def _is_running(self) -> bool:
        return bool(await self._find_inside())

    async def hang_up(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._send_signal(signal.SIGHUP, everything=True)

    async def _send_signal(self, number: int, *, everything: bool = False) -> None:
        with suppress(DanluError):
            pid = await self._find_inside()
            if pid:
                scope = "session" if everything else ""
                await self._container.run_script("0:0", KILL_SCRIPT, str(int(number)), pid, scope)

    async def _find_inside(self) -> str:
        """Return the program's process id in the container; empty if it has ended."""
        if not self._inside_pid:
            # As its own user, who may read its variables.
            output = await self._container.run_script(self._user, FIND_SCRIPT, self._mark)
            found = output.split()
            self._inside_pid = found[0] if found and found[0].isdigit() else ""
        return self._inside_pid


def _digest_settings(name: str, spec: EnvironmentSpec, settings: DockerSettings) -> str:
    """Return a digest of all that a container is created from."""
    args, passed = render_create(name, spec, settings)
    words = [*args, *(f"{name}={value}" for name, value in sorted(passed.items()))]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _find_local_process(pid: int) -> int | None:
    """Return ``pid`` if it is a process in another PID namespace of this machine."""
    try:
        own, other = os.readlink("/proc/self/ns/pid"), os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
    # The daemon may run in a virtual machine: then its number is that of another process here.
    return pid if own != other else None
