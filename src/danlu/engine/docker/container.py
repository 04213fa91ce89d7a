"""The container of an environment in Docker or Podman."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import anyio
import msgspec

from danlu.engine.attached_process import AttachedProcess, record_start
from danlu.engine.command_container import RESTART_TIMEOUT, CommandContainer, FirstProcessState
from danlu.engine.docker.api_exec import read_api_exec, start_api_exec
from danlu.engine.docker.command import DETACH_KEYS, DockerCommand, render_variables
from danlu.engine.docker.engine_api import EngineApi, find_socket
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
from danlu.engine.exec_program import ProgramProcess
from danlu.engine.first_process import FirstProcess
from danlu.engine.types import ExecRequest
from danlu.errors import MachineError, OutsideError
from danlu.util.config import Configuration

#: Exists once the container was created.
_CREATED_FILE = "docker-created"
_LOST_WARNING = (
    "its container was removed with {}: changes inside are lost, it starts from the image"
)
_SCRIPT_TIMEOUT = 30.0


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
            with anyio.move_on_after(RESTART_TIMEOUT):
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


class DockerContainer(CommandContainer):
    """A started container."""

    def __init__(
        self,
        command: DockerCommand,
        api: EngineApi | None,
        name: str,
        spec: EnvironmentSpec,
        settings: DockerSettings,
    ) -> None:
        super().__init__(settings.user)
        self._command = command
        self._api = api
        self._name = name
        self._spec = spec

    def start_command(self) -> Sequence[str]:
        """See :class:`CommandContainer`.

        Not by the API: it confirms an attachment before it has made it, and the first output of a
        container that starts meanwhile is lost.
        """
        program = self._command.find_program()
        return program, "start", "--attach", "--interactive", self._name

    def start_error(self, failure: str) -> MachineError:
        """See :class:`CommandContainer`."""
        reason = self._command.interpret_error("start", failure)
        hint = "`danlu doctor` checks this machine"
        if self._spec.gpus:
            hint += "; GPUs in Docker and Podman need nvidia-container-toolkit"
        return MachineError(
            f"{self._command.name} could not start the container: {reason.message}",
            hint=reason.hint or hint,
        )

    async def read_state(self, first: FirstProcess) -> FirstProcessState:
        """See :class:`CommandContainer`."""
        if self._api is not None:
            return FirstProcessState(*await self._api.read_state(self._name))
        template = "{{.State.Pid}} {{.State.ExitCode}} {{.State.OOMKilled}}"
        output = await self._command.run_async("inspect", "-f", template, self._name)
        try:
            pid, code, killed = output.split()
            return FirstProcessState(int(pid), int(code), killed == "true")
        except ValueError as error:
            message = f"{self._command.name} did not describe the container"
            raise OutsideError(message) from error

    def exec_command(self, request: ExecRequest) -> tuple[Sequence[str], Mapping[str, str]]:
        """See :class:`CommandContainer`."""
        options, passed = render_variables(request.environment)
        keys = "" if self._command.is_podman else DETACH_KEYS
        terminal = ["--tty"] if request.terminal else []
        directory = ["--workdir", request.directory] if request.directory else []
        command = [
            *(self._command.find_program(), "exec", "--interactive", *terminal, *options),
            *("--detach-keys", keys, "--user", request.user, *directory, self._name),
            *request.args,
        ]
        return command, {**os.environ, **passed}

    async def start_process(
        self, request: ExecRequest, streams: tuple[int, int, int]
    ) -> ProgramProcess:
        """See :class:`CommandContainer`."""
        if self._api is None:
            return await super().start_process(request, streams)
        return await start_api_exec(self._api, self._name, request, streams)

    async def run_script(self, user: str, script: str, *args: str) -> str:
        """See :class:`CommandContainer`."""
        if self._api is None:
            return await super().run_script(user, script, *args)
        with anyio.move_on_after(_SCRIPT_TIMEOUT):
            request = ExecRequest(("/bin/sh", "-c", script, "danlu", *args), user=user)
            output = await read_api_exec(self._api, self._name, request)
            return output.decode(errors="replace")
        raise OutsideError("docker: a program that danlu started in the container did not end")

    async def kill(self, first: FirstProcess) -> None:
        """See :class:`CommandContainer`."""
        await self._command.run_async("kill", self._name)


def _digest_settings(name: str, spec: EnvironmentSpec, settings: DockerSettings) -> str:
    """Return a digest of all that a container is created from."""
    args, passed = render_create(name, spec, settings)
    words = [*args, *(f"{name}={value}" for name, value in sorted(passed.items()))]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
