"""The supervisor of one environment: the process in whose namespaces its container runs.

It lets an engine start a container whose first process only waits, and runs services and the
users' programs next to it. Everything in the container is killed when the supervisor dies; the
writable layer stays.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import abc

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.control_socket import ControlConnection, serve_control_socket
from danlu.engine.engine import EngineFeatures, StartContainer
from danlu.engine.environment_control import (
    ConnectPortRequest,
    ExecMessage,
    RestartServiceRequest,
    StartExecRequest,
    StopRequest,
    SupervisorRequest,
)
from danlu.engine.environment_directory import (
    INIT_LOG,
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    Phase,
    ServiceSpec,
)
from danlu.engine.environment_ports import needs_forward
from danlu.engine.port_forwarder import relay_port, serve_forward
from danlu.engine.registry import find_engine
from danlu.engine.service_runner import ServiceRunner, run_with_log
from danlu.engine.ssh.tcp_port import serve_ssh_port
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.engine.types import (
    CONNECTION_LOST,
    EnvironmentContainer,
    EnvironmentProgram,
    ExecRequest,
)
from danlu.engine.vscode_servers import find_server_mount, link_servers
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.sandbox import runtime
from danlu.util.config import load_configuration
from danlu.util.disk_full import translate_disk_full
from danlu.util.exception_groups import unwrap_group
from danlu.util.fd_limit import fd_shortage_error, is_fd_shortage, raise_fd_limit
from danlu.util.json_codec import encode
from danlu.util.paths import Paths
from danlu.util.rotating_log import RotatingLog

_DISK_HINT = "free some space; what was written before stays"
_SUPERVISOR = "the supervisor of the environment"
_INIT_LOG_BYTES = 1 << 20
#: Programs that users started get this long to end when the environment is stopped.
DEFAULT_GRACE = 10.0
#: The state is written again this often, in seconds, while the disk is full.
_PUBLISH_INTERVAL = 1.0
#: So precisely is known when a supervisor was killed, in seconds.
_RENEW_INTERVAL = 15.0


class EnvironmentSupervisor:
    """Runs one environment until it is stopped."""

    def __init__(
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        start_container: StartContainer,
        features: EngineFeatures,
        vscode_servers: Path,
    ) -> None:
        self._vscode_servers = vscode_servers
        self._environment = environment
        self._spec = spec
        self._start_container = start_container
        self._features = features
        self._started = datetime.now(UTC)
        self._warnings: list[str] = []
        self._services: dict[str, ServiceRunner] = {}
        self._stop = anyio.Event()
        self._unpublished = anyio.Event()
        self._grace = DEFAULT_GRACE
        self._stopped_by_user = False
        self._end_message = ""
        self._phase: Phase = "Starting"
        self._container: EnvironmentContainer | None = None

    async def run(self, report: Callable[[SupervisorResponse], None]) -> None:
        """Run the environment; call ``report`` once, when it runs or could not be started."""
        self._publish_state()
        try:
            with ExitStack() as resources:
                self._container = await self._start_container(
                    self._environment, self._spec, resources
                )
                await self._link_vscode_servers()
                self._phase = "Running"
                await self._run_to_stop(report)
        except Exception as raised:
            error = unwrap_group(raised)
            if is_fd_shortage(error):
                error = fd_shortage_error(_SUPERVISOR)
            if not isinstance(error, DanluError):
                raise
            self._publish_state("Failed", error.message)
            report(SupervisorResponse.of(error))

    async def _link_vscode_servers(self) -> None:
        """Put VS Code's servers where editors look for them, before one can connect."""
        assert self._container is not None
        # An engine without this machine's files gives it copies.
        if self._features.mounts_files and find_server_mount(self._vscode_servers) is not None:
            failure = await link_servers(self._container, self._vscode_servers)
            if failure:
                self._warnings.append(failure)

    # -- running ----------------------------------------------------------------------------------

    async def _run_to_stop(self, report: Callable[[SupervisorResponse], None]) -> None:
        assert self._container is not None
        async with anyio.create_task_group() as group:
            for port in self._spec.ports:
                if needs_forward(port, self._spec):
                    await group.start(serve_forward, port, self._container.port_opener)
            if self._spec.ssh_port is not None:
                keys = self._spec.authorized_keys
                await group.start(serve_ssh_port, self._environment, self._spec.ssh_port, keys)
            await group.start(
                serve_control_socket, self._environment.control_socket, self._handle_request
            )
            group.start_soon(self._retry_publishing)
            group.start_soon(self._renew_state)
            group.start_soon(self._stop_on_signal)
            group.start_soon(self._stop_when_container_ends, self._container)
            self._publish_state()
            report(SupervisorResponse())
            group.start_soon(self._run_services, group)
            await self._stop.wait()
            await self._stop_programs()
            await self._container.stop(grace=1.0)
            group.cancel_scope.cancel()
        end = f"container ended{self._end_message}"
        self._publish_state("Stopped", "stopped" if self._stopped_by_user else end)

    async def _run_services(self, group: abc.TaskGroup) -> None:
        """Run the init commands, then start the services."""
        for command in self._spec.init:
            failure = await self._run_init_command(command)
            if self._stop.is_set():
                return  # which ended it
            if failure:
                self._warnings.append(f"init: `{command}` {failure}")
                self._publish_state()
        for service in self._spec.services:
            runner = ServiceRunner(
                service, self._environment, self._start_service, changed=self._publish_state
            )
            self._services[service.name] = runner
            group.start_soon(runner.run)

    async def _run_init_command(self, command: str) -> str:
        """Run a command of the shell; return how it failed, or an empty string."""
        log = RotatingLog(self._environment.log_file(INIT_LOG), limit=_INIT_LOG_BYTES)
        log.write(f"+ {command}\n".encode())
        spec = ServiceSpec(INIT_LOG, ("/bin/sh", "-c", command))
        try:
            exit = await run_with_log(partial(self._start_service, spec), log)
        except (DanluError, OSError) as error:
            return f"could not be run: {error}"
        finally:
            log.close()
        return f"exited with code {exit.code}" if exit.code else ""

    async def _start_service(self, service: ServiceSpec, output: int) -> EnvironmentProgram:
        assert self._container is not None
        request = ExecRequest(service.args, environment=service.environment)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return await self._container.start_exec(
                request, stdin=null, stdout=output, stderr=output
            )
        finally:
            os.close(null)

    # -- stopping ---------------------------------------------------------------------------------

    def _request_stop(self, grace: float, *, by_user: bool) -> None:
        if not self._stop.is_set():
            self._grace = grace
            self._stopped_by_user = by_user
            self._stop.set()

    async def _stop_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for _ in signals:
                self._request_stop(DEFAULT_GRACE, by_user=False)

    async def _stop_when_container_ends(self, container: EnvironmentContainer) -> None:
        exit = await container.wait()
        if exit.message:
            self._end_message = f": {exit.message}"
        self._request_stop(0, by_user=False)

    async def _stop_programs(self) -> None:
        """Stop services and the users' programs together, so that all have the whole grace."""
        assert self._container is not None
        async with anyio.create_task_group() as group:
            for service in self._services.values():
                group.start_soon(partial(service.stop, grace=self._grace))
            for program in self._container.programs:
                group.start_soon(partial(program.stop, grace=self._grace))

    # -- requests ---------------------------------------------------------------------------------

    async def _handle_request(self, connection: ControlConnection) -> SupervisorResponse:
        request: SupervisorRequest = msgspec.json.decode(connection.request, type=SupervisorRequest)
        place = self._environment.directory
        with translate_disk_full(f"the environment ({place})", hint=_DISK_HINT):
            return await self._answer_request(request, connection)

    async def _answer_request(
        self, request: SupervisorRequest, connection: ControlConnection
    ) -> SupervisorResponse:
        if isinstance(request, StartExecRequest):
            return await self._run_exec(request.exec, connection)
        if isinstance(request, ConnectPortRequest):
            return await self._connect_port(request.port, connection)
        if isinstance(request, RestartServiceRequest):
            await self._restart_service(request.service)
        elif isinstance(request, StopRequest):
            self._request_stop(request.grace, by_user=True)
        return SupervisorResponse()

    async def _restart_service(self, name: str) -> None:
        service = self._services.get(name)
        if service is None:
            raise UsageError(
                f"environment {self._spec.name} has no service {name}",
                hint=f"its services: {', '.join(self._services) or 'none'}",
            )
        await service.restart(grace=DEFAULT_GRACE)

    async def _run_exec(
        self, request: ExecRequest, connection: ControlConnection
    ) -> SupervisorResponse:
        assert self._container is not None
        stdin, stdout, stderr = connection.streams()
        program = await self._container.start_exec(
            request, stdin=stdin, stdout=stdout, stderr=stderr
        )
        # The program has its own copies; ours would keep the client's pipes open after its end.
        connection.close_descriptors()
        async with anyio.create_task_group() as group:
            group.start_soon(self._forward_messages, program, connection)
            exit = await program.wait()
            group.cancel_scope.cancel()
        if exit.reason == "StartError" and exit.code == runtime.FAILED_TO_START:
            name = request.args[0] if request.args else "a shell"
            environment = self._spec.name
            mounts_again = f"`danlu stop {environment}`, then `danlu start {environment}`"
            hint = mounts_again if exit.message == runtime.DIRECTORY_GONE else ""
            raise MachineError(f"cannot start {name}: {exit.message}", hint=hint)
        if exit.reason == CONNECTION_LOST:
            raise OutsideError(
                f"the connection to the program was lost: {exit.message}",
                hint="it is stopped once the environment can be reached again",
            )
        return SupervisorResponse(code=exit.code)

    async def _connect_port(self, port: int, connection: ControlConnection) -> SupervisorResponse:
        """Copy between the client's socket and a port until either side closes."""
        if len(connection.descriptors) != 1:
            raise UsageError("a connection needs one descriptor")
        opener = self._container.port_opener if self._container else None
        if opener is None:
            raise UsageError(f"environment {self._spec.name} shares this machine's network")
        client = socket.socket(fileno=connection.descriptors.pop())
        async with await abc.UNIXSocketStream.from_socket(client) as stream:
            await relay_port(stream, opener, port)
        return SupervisorResponse()

    async def _forward_messages(
        self, program: EnvironmentProgram, connection: ControlConnection
    ) -> None:
        """Forward signals and new terminal sizes until the client disconnects; then stop."""
        while (line := await connection.read_message()) is not None:
            with suppress(msgspec.MsgspecError):
                message = msgspec.json.decode(line, type=ExecMessage)
                if message.resize:
                    await program.notify_resize()
                elif message.signal:
                    await program.send_signal(message.signal)
        # Also what the program started in the background, unless that ignores it (nohup).
        await program.hang_up()
        await program.stop(grace=1.0)

    def _publish_state(self, phase: Phase | None = None, reason: str = "") -> None:
        self._phase = phase or self._phase
        ended = self._phase in ("Stopped", "Failed")
        state = EnvironmentState(
            self._phase,
            started=self._started,
            ended=datetime.now(UTC) if ended else None,
            reason=reason,
            warnings=(*(self._container.warnings if self._container else ()), *self._warnings),
            services=() if ended else tuple(item.state for item in self._services.values()),
            stopped_by_user=ended and self._stopped_by_user,
            container=None if ended or self._container is None else self._container.pid,
        )
        try:
            self._environment.write_state(state)
        except OSError:
            # A full disk must not end the environment.
            self._unpublished.set()

    async def _retry_publishing(self) -> None:
        """Write the state again after a failure, until it succeeds."""
        while True:
            await self._unpublished.wait()
            await anyio.sleep(_PUBLISH_INTERVAL)
            self._unpublished = anyio.Event()
            self._publish_state()

    async def _renew_state(self) -> None:
        while True:
            await anyio.sleep(_RENEW_INTERVAL)
            self._environment.renew_state()


def main(directory: str, ready: int, lock: int, restarted: AttachedProcess | None) -> None:
    """Supervise the environment in ``directory``; report on the descriptor ``ready``.

    ``restarted`` is its container if that is being started already.
    """
    for descriptor in (ready, lock):
        # A program of the environment with a copy of `lock` would count as its supervisor.
        os.set_inheritable(descriptor, False)
    environment = EnvironmentDirectory(Path(directory))

    def report(result: SupervisorResponse) -> None:
        nonlocal ready
        if ready >= 0:
            with suppress(BrokenPipeError):
                os.write(ready, encode(result))
            os.close(ready)
            ready = -1

    try:
        environment.lock.write_text(str(os.getpid()))
        spec = environment.read_spec()
        settings = environment.read_settings()
        paths = Paths(Path(settings.config), Path(settings.data), Path(settings.state))
        # A supervisor that was killed left it, and bind(2) fails if the path exists.
        environment.control_socket.unlink(missing_ok=True)
        engine = find_engine(spec.engine)
        configuration = load_configuration(paths.config_file)
        start_container = engine.open_engine(paths, configuration, restarted)
        # After the embedded engine, whose programs get the limit that is set now.
        raise_fd_limit()
    except DanluError as error:
        report(SupervisorResponse.of(error))
        sys.exit(error.exit_code)
    supervisor = EnvironmentSupervisor(
        environment, spec, start_container, engine.features, paths.vscode_servers
    )
    anyio.run(supervisor.run, report)
