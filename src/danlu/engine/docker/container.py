"""The container of an environment in Docker or Podman."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import anyio
import msgspec
from anyio.abc import Process

from danlu.engine.container_scripts import (
    EXEC_SCRIPT,
    FIND_SCRIPT,
    KILL_SCRIPT,
    LOGIN_SCRIPT,
    READY_LINE,
)
from danlu.engine.docker.command import DockerCommand, render_variables
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
from danlu.engine.types import ContainerExit, EnvironmentProgram, ExecRequest, PortOpener
from danlu.errors import DanluError, MachineError, OutsideError
from danlu.util.config import Configuration

_MARK_VARIABLE = "DANLU_EXEC"
#: Exists once the container was created.
_CREATED_FILE = "docker-created"
#: Exists while the container is stopped: how it was created. Then nothing has to be asked for.
_STOPPED_FILE = "docker-stopped"
_LOST_WARNING = (
    "its container was removed with {}: changes inside are lost, it starts from the image"
)
_START_TIMEOUT = 60.0
#: Without asking: if somebody else has started the container, it does not report that it is ready.
_RESTART_TIMEOUT = 10.0
_KILL_TIMEOUT = 10.0
#: How long a new size of a terminal waits for its program to be found.
_RESIZE_TIMEOUT = 10.0
_RESIZE_INTERVAL = 0.05
_KILLED_CODE = 128 + signal.SIGKILL


class DockerEngine:
    """Starts containers through the command line of Docker or Podman."""

    def __init__(self, command: DockerCommand, config: Configuration) -> None:
        self._command = command
        self._config = config

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> DockerContainer:
        """Start the environment's container, which is created if needed.

        The settings must have been prepared (:mod:`danlu.commands.environments.docker`). Raises
        :class:`~danlu.errors.DanluError` if it could not be started.
        """
        settings = self._add_seccomp(read_settings(environment))
        _, network = detect_network(environment)
        if network != settings.network:
            raise OutsideError(
                "this machine's proxies, certificates or package indexes have changed",
                hint=f"`danlu start {spec.name}` prepares the container again",
            )
        name = container_name(environment)
        options = (*settings.options, *render_gpus(self._command.name, spec.gpus))
        settings = msgspec.structs.replace(settings, options=options)
        digest = _digest_settings(name, spec, settings)
        container = DockerContainer(self._command, name, spec, settings)
        stopped = environment.directory / _STOPPED_FILE
        if _take_text(stopped) != digest or not await container.restart():
            container.warnings = await self._ensure_container(environment, spec, settings, digest)
            await container.start()
        resources.callback(_record_stop, container, stopped, digest)
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
            await self._command.run_async("commit", name, changes)
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
        name: str,
        spec: EnvironmentSpec,
        settings: DockerSettings,
    ) -> None:
        self.pid: int | None = None
        self.warnings: Sequence[str] = ()
        self._command = command
        self._name = name
        self._spec = spec
        self._settings = settings
        self._programs: list[DockerProgram] = []
        self._keeper: Process | None = None
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
        await self._start_within(_START_TIMEOUT)

    async def restart(self) -> bool:
        """Do the same if the container exists and is stopped; return whether it was."""
        try:
            await self._start_within(_RESTART_TIMEOUT)
        except MachineError:
            return False
        return True

    @property
    def has_stopped(self) -> bool:
        """Whether the container is known to have ended: the connection was not lost before."""
        return self._keeper is not None and self._keeper.returncode == 0

    async def _start_within(self, timeout: float) -> None:
        with tempfile.TemporaryFile() as errors:
            await self._start_keeper(errors, timeout)
        pid = await self._command.run_async("inspect", "-f", "{{.State.Pid}}", self._name)
        # With a daemon on another machine the number says nothing here.
        self.pid = _find_local_process(int(pid))

    async def _start_keeper(self, errors: IO[bytes], timeout: float) -> None:
        """Start the first process; its errors and the command line's are written to ``errors``."""
        self._keeper = await self._command.open_process(
            *("start", "--attach", "--interactive", self._name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors.fileno(),
        )
        output = b""
        assert self._keeper.stdout is not None
        with anyio.move_on_after(timeout), suppress(anyio.EndOfStream):
            while READY_LINE not in output:
                output += await self._keeper.stdout.receive()
        if READY_LINE not in output:
            await self.stop(grace=0)
            errors.seek(0)
            reason = self._command.interpret_error("start", errors.read().decode(errors="replace"))
            hint = "`danlu doctor` checks this machine"
            if self._spec.gpus:
                hint += "; GPUs in Docker and Podman need nvidia-container-toolkit"
            raise MachineError(
                f"{self._command.name} could not start the container: {reason.message}",
                hint=reason.hint or hint,
            )

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> DockerProgram:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        mark = os.urandom(8).hex()
        user = request.user or self._settings.user
        options, passed = render_variables({**request.environment, _MARK_VARIABLE: mark})
        args = ["exec", "--interactive", *(["--tty"] if request.terminal else []), *options]
        args += ["--user", user, *(["--workdir", request.directory] if request.directory else [])]
        script = EXEC_SCRIPT if request.args else LOGIN_SCRIPT
        process = await self._command.open_process(
            *(*args, self._name, "/bin/sh", "-c", script, "danlu", *request.args),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            variables=passed,
        )
        program = DockerProgram(self._command, self._name, user, mark, process, self._programs)
        self._programs.append(program)
        return program

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._keeper is not None
        await self._keeper.wait()
        if self._exit is None:
            template = "{{.State.ExitCode}} {{.State.OOMKilled}}"
            code, killed, message = "125", "false", ""
            try:
                output = await self._command.run_async("inspect", "-f", template, self._name)
                code, killed = output.split()
            except DanluError as error:
                message = error.message  # such as a daemon that was stopped
            except ValueError:
                message = f"{self._command.name} did not say how"
            reason = "OOMKilled" if killed == "true" else "Error" if int(code) else "Completed"
            self._exit = ContainerExit(int(code), reason, message)
        return self._exit

    async def stop(self, *, grace: float) -> None:
        """End the input of the first process; kill the container ``grace`` seconds later."""
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        with anyio.CancelScope(shield=True):
            await self._keeper.stdin.aclose()
            with anyio.move_on_after(grace):
                await self._keeper.wait()
            if self._keeper.returncode is None:
                with suppress(DanluError):
                    await self._command.run_async("kill", self._name)
                await self._keeper.wait()


class DockerProgram:
    """A program that runs through the engine's ``exec`` command."""

    #: Its process is a child of the engine.
    pid: int | None = None

    def __init__(
        self,
        command: DockerCommand,
        container: str,
        user: str,
        mark: str,
        process: Process,
        programs: list[DockerProgram],
    ) -> None:
        self._command = command
        self._container = container
        self._user = user
        self._mark = mark
        self._process = process
        self._programs = programs
        self._inside_pid = ""
        self._resizable = False

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        code = await self._process.wait()
        if self in self._programs:
            self._programs.remove(self)
        # Negative if the command line itself was killed.
        code = _KILLED_CODE if code < 0 else code
        return ContainerExit(code, "Error" if code else "Completed")

    async def stop(self, *, grace: float) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and self._process.returncode is None:
                await self._send_signal(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self._process.wait()
            if self._process.returncode is None:
                await self._send_signal(signal.SIGKILL, everything=True)
                with anyio.move_on_after(_KILL_TIMEOUT):
                    await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
            await self.wait()

    async def send_signal(self, number: int) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if self._process.returncode is None:
            await self._send_signal(number)

    async def notify_resize(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if not self._resizable:
            await self._wait_until_resizable()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGWINCH)

    async def _wait_until_resizable(self) -> None:
        """Wait until the program runs, so that the command line forwards sizes.

        Podman's stops forwarding for good if a size arrives before its program runs
        (libpod/container_exec.go, ExecResize), and Docker's misses those that come too early.
        """
        # A program that changed its user cannot be found: give up after a while.
        with anyio.move_on_after(_RESIZE_TIMEOUT), suppress(DanluError):
            while self._process.returncode is None and not await self._find_inside():
                await anyio.sleep(_RESIZE_INTERVAL)
        self._resizable = True

    async def hang_up(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._send_signal(signal.SIGHUP, everything=True)

    async def _send_signal(self, number: int, *, everything: bool = False) -> None:
        with suppress(DanluError):
            pid = await self._find_inside()
            if pid:
                scope = "session" if everything else ""
                await self._run_script("0:0", KILL_SCRIPT, str(int(number)), pid, scope)

    async def _find_inside(self) -> str:
        """Return the program's process id in the container; empty if it has ended."""
        if not self._inside_pid:
            # As its own user, who may read its variables.
            output = await self._run_script(self._user, FIND_SCRIPT, self._mark)
            found = output.split()
            self._inside_pid = found[0] if found and found[0].isdigit() else ""
        return self._inside_pid

    async def _run_script(self, user: str, script: str, *args: str) -> str:
        words = ("exec", "--user", user, self._container, "/bin/sh", "-c", script, "danlu", *args)
        return await self._command.run_async(*words)


def _digest_settings(name: str, spec: EnvironmentSpec, settings: DockerSettings) -> str:
    """Return a digest of all that a container is created from."""
    args, passed = render_create(name, spec, settings)
    words = [*args, *(f"{name}={value}" for name, value in sorted(passed.items()))]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _record_stop(container: DockerContainer, file: Path, digest: str) -> None:
    # On a full disk the next start asks the engine.
    with suppress(OSError):
        if container.has_stopped:
            file.write_text(digest)


def _take_text(file: Path) -> str:
    """Return the content of a file, and remove it; empty if it does not exist."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return ""
    file.unlink()
    return text


def _find_local_process(pid: int) -> int | None:
    """Return ``pid`` if it is a process in another PID namespace of this machine."""
    try:
        own, other = os.readlink("/proc/self/ns/pid"), os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
    # The daemon may run in a virtual machine: then its number is that of another process here.
    return pid if own != other else None
