"""The supervisor of one environment: the process in whose namespaces its container runs.

It mounts the image's layers with the environment's writable layer on top, starts a container whose
first process only waits, and runs services and the users' programs next to it. Everything in the
container is killed when the supervisor dies; the writable layer stays.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import abc

from danlu.builder.embedded.bytecode_layers import find_bytecode_trees
from danlu.engine import embedded
from danlu.engine.apt_sources import mount_apt_sources
from danlu.engine.cgroup import CgroupManager, ContainerCgroup, enter_script
from danlu.engine.container_exec import ExecTarget, close_descriptors, interpret_exit
from danlu.engine.container_process import ContainerProcess, spawn_session
from danlu.engine.control_socket import ControlConnection, serve_control_socket
from danlu.engine.environment_control import (
    ExecMessage,
    RestartServiceRequest,
    StartExecRequest,
    StopRequest,
    SupervisorRequest,
    SupervisorResponse,
)
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    Phase,
    ServiceSpec,
)
from danlu.engine.environment_ports import needs_forward
from danlu.engine.port_forwarder import serve_forward
from danlu.engine.procfs import descendants, measure_usage
from danlu.engine.service_runner import ServiceRunner, copy_output
from danlu.engine.supervisor_directory import StartReport
from danlu.engine.types import ContainerExit, ExecRequest
from danlu.errors import DanluError, MachineError, StoreError, UsageError
from danlu.graph.image_config import ImageConfig, parse_image_config
from danlu.sandbox import container_processes, network_env, runtime, userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import expand_home, prepare_run
from danlu.sandbox.types import PROJECT_DIRECTORY, Mount, ProcessSpec, RootFilesystem
from danlu.sandbox.users import find_login_shell
from danlu.store import Store
from danlu.util.config import Configuration, load_configuration
from danlu.util.exception_groups import unwrap_group
from danlu.util.json_codec import encode
from danlu.util.paths import Paths
from danlu.util.rotating_log import RotatingLog

#: What the first process runs: it reaps orphans (dash waits for any child) until it is terminated.
_WAIT_FOREVER = 'trap "exit 0" TERM; while :; do sleep 86400 & wait $!; done'
_TINI = "/usr/bin/tini"
_INIT_LOG = "init"
_INIT_LOG_BYTES = 1 << 20
_STREAM_COUNT = 3
_PR_SET_CHILD_SUBREAPER = 36
#: Programs that users started get this long to end when the environment is stopped.
DEFAULT_GRACE = 10.0


class EnvironmentSupervisor:
    """Runs one environment until it is stopped; requires :func:`danlu.sandbox.userns.enter`."""

    def __init__(
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        paths: Paths,
        config: Configuration,
        cgroups: CgroupManager,
    ) -> None:
        self._environment = environment
        self._spec = spec
        self._paths = paths
        self._config = config
        self._cgroups = cgroups
        self._started = datetime.now(UTC)
        self._warnings: list[str] = []
        self._services: dict[str, ServiceRunner] = {}
        self._stop = anyio.Event()
        self._grace = DEFAULT_GRACE
        self._stopped_by_user = False
        self._phase: Phase = "Starting"
        self._image_config = ImageConfig()
        self._view = LayerView(())
        self._network_env = network_env.NetworkEnvironment({})
        self._target: ExecTarget | None = None

    async def run(self, report: Callable[[StartReport], None]) -> None:
        """Run the environment; call ``report`` once, when it runs or could not be started."""
        self._publish_state()
        try:
            with ExitStack() as resources:
                self._target = await self._start_container(resources)
                self._phase = "Running"
                await self._run_to_stop(report)
        except Exception as raised:
            error = unwrap_group(raised)
            if not isinstance(error, DanluError):
                raise
            self._publish_state("Failed", error.message)
            report(StartReport(error.message, error.hint, error.exit_code))

    # -- starting ---------------------------------------------------------------------------------

    async def _start_container(self, resources: ExitStack) -> ExecTarget:
        trees, work = self._open_layers(resources)
        self._network_env = network_env.detect_network_environment(work)
        # Users that were added inside are found, too.
        self._view = LayerView((*trees, self._environment.upper))
        process = self._build_process(ExecRequest(self._choose_init()))
        group = self._create_cgroup(resources)
        enter = enter_script(group.fd_count) if group else ""
        chosen = runtime.find_runtime(self._config.runtime)
        bundle = resources.enter_context(
            prepare_run(
                msgspec.structs.replace(process, uid=0, gid=0, groups=(), working_directory="/"),
                RootFilesystem(trees, self._environment.upper, durable=True),
                mounts=(
                    *await mount_apt_sources(LayerView(trees), self._config, work),
                    *self._list_mounts(process.environment["HOME"]),
                ),
                network_env=self._network_env,
                network=True,
                work=work,
                shell=f'{enter}exec "$@"',
                seccomp=self._config.seccomp,
                shm_size=self._spec.shm_size,
            )
        )
        main = self._launch_runtime(chosen, bundle, group)
        await main.wait_for_start()
        if main.pid is None:
            exit = await main.wait()
            raise MachineError(
                f"{chosen.name} could not start the container",
                details=(exit.message or f"it exited with code {exit.code}",),
                hint="`danlu doctor` checks this machine",
            )
        return ExecTarget(chosen, bundle, main, group)

    def _open_layers(self, resources: ExitStack) -> tuple[tuple[Path, ...], Path]:
        """Return the layers' trees, lowest first, and a working directory."""
        store = resources.enter_context(Store.open(self._paths.store))
        resources.enter_context(store.lease())
        work = resources.enter_context(store.staging())
        image = store.image(self._spec.image)
        layers = store.layers(image.layers) if image is not None else None
        if image is None or layers is None:
            raise StoreError(
                f"the image of environment {self._spec.name} is missing from the store",
                hint="run `danlu up` in its project to build it again",
            )
        self._image_config = parse_image_config(image.config)
        bytecode = find_bytecode_trees(store, image, layers)
        return (*(layer.tree for layer in layers), *bytecode), work

    def _choose_init(self) -> tuple[str, ...]:
        """Return the first process: the distribution's tini if the image has it, else a shell."""
        if self._view.entry(self._view.resolve("/bin/sh")) is None:
            raise UsageError(
                "the image has no /bin/sh, which `danlu up` needs",
                hint="use `danlu run` for a single program",
            )
        waiting = ("/bin/sh", "-c", _WAIT_FOREVER)
        has_tini = self._view.entry(self._view.resolve(_TINI)) is not None
        return (_TINI, "--", *waiting) if has_tini else waiting

    def _list_mounts(self, home: str) -> list[Mount]:
        """Return all mounts, parents before those below them; ``~/`` is ``home``."""
        mounts = [
            Mount(mount.target, mount.source, readonly=mount.readonly)
            for mount in self._spec.mounts
        ]
        if self._spec.project:
            mounts.append(Mount(PROJECT_DIRECTORY, Path(self._spec.project)))
        expanded = expand_home(mounts, home)
        return sorted(expanded, key=lambda mount: mount.target.rstrip("/").split("/"))

    def _create_cgroup(self, resources: ExitStack) -> ContainerCgroup | None:
        limits = self._spec.limits
        if limits.cpu is None and limits.memory is None:
            return None
        if self._cgroups.missing:
            self._warnings.append(f"resources: not enforced: {self._cgroups.missing}")
        group = self._cgroups.create(f"environment-{self._spec.name}", limits)
        resources.callback(group.close)
        return group

    def _launch_runtime(
        self, chosen: runtime.OciRuntime, bundle: Path, group: ContainerCgroup | None
    ) -> ContainerProcess:
        procs_files = group.open_procs_files() if group else []
        command = chosen.command(bundle, descriptors=len(procs_files))
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            keeper = spawn_session(command, stdin=null, stdout=2, stderr=2, more=procs_files)
        finally:
            close_descriptors([null, *procs_files])
        return ContainerProcess(
            keeper,
            finish=lambda code: interpret_exit(code, bundle / "log", "init"),
            measure=lambda: measure_usage(descendants(keeper)),
        )

    # -- running ----------------------------------------------------------------------------------

    async def _run_to_stop(self, report: Callable[[StartReport], None]) -> None:
        assert self._target is not None
        main = self._target.main
        async with anyio.create_task_group() as group:
            for port in self._spec.ports:
                if needs_forward(port):
                    await group.start(serve_forward, port)
            await group.start(
                serve_control_socket, self._environment.control_socket, self._answer_request
            )
            group.start_soon(self._stop_on_signal)
            group.start_soon(self._stop_when_container_ends, main)
            self._publish_state()
            report(StartReport())
            group.start_soon(self._run_services, group)
            await self._stop.wait()
            await self._stop_programs()
            await main.stop(grace=1.0)
            group.cancel_scope.cancel()
        reason = "stopped" if self._stopped_by_user else "the container has ended"
        self._publish_state("Stopped", reason)

    async def _run_services(self, group: abc.TaskGroup) -> None:
        """Run the init commands, then start the services."""
        for command in self._spec.init:
            exit = await self._run_init_command(command)
            if exit.code:
                self._warnings.append(f"init: `{command}` exited with code {exit.code}")
                self._publish_state()
        for service in self._spec.services:
            runner = ServiceRunner(
                service, self._environment, self._start_service, changed=self._publish_state
            )
            self._services[service.name] = runner
            group.start_soon(runner.run)

    async def _run_init_command(self, command: str) -> ContainerExit:
        log = RotatingLog(self._environment.log_file(_INIT_LOG), limit=_INIT_LOG_BYTES)
        log.write(f"+ {command}\n".encode())
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        try:
            spec = ServiceSpec(_INIT_LOG, ("/bin/sh", "-c", command))
            process = self._start_service(spec, writing)
            os.close(writing)
            async with anyio.create_task_group() as group:
                group.start_soon(copy_output, reading, log)
                exit = await process.wait()
                group.cancel_scope.cancel()
            return exit
        finally:
            os.close(reading)
            log.close()

    def _start_service(self, service: ServiceSpec, output: int) -> ContainerProcess:
        request = ExecRequest(service.args, environment=service.environment)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self._start_program(request, stdin=null, stdout=output, stderr=output)
        finally:
            os.close(null)

    def _start_program(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        assert self._target is not None
        process = self._build_process(request)
        return self._target.start(process, stdin=stdin, stdout=stdout, stderr=stderr)

    def _build_process(self, request: ExecRequest) -> ProcessSpec:
        directory = PROJECT_DIRECTORY if self._spec.project else ""
        return embedded.image_process(
            self._view,
            self._image_config,
            request.args or (*self._find_login_shell(request.user), "-l"),
            directory=request.directory or directory,
            environment={
                **self._network_env.environment,
                **dict(self._image_config.environment),
                "DANLU_ENVIRONMENT": self._spec.name,
                **self._spec.environment,
                **request.environment,
            },
            user=request.user or self._spec.user,
            terminal=request.terminal,
        )

    def _find_login_shell(self, user: str) -> tuple[str]:
        """Return the shell of a user in the image's passwd, else bash, else sh."""
        shell = find_login_shell(self._view, user or self._spec.user or self._image_config.user)
        for path in (shell, "/bin/bash"):
            if path and self._view.entry(self._view.resolve(path)) is not None:
                return (path,)
        return ("/bin/sh",)

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

    async def _stop_when_container_ends(self, main: ContainerProcess) -> None:
        await main.wait()
        self._request_stop(0, by_user=False)

    async def _stop_programs(self) -> None:
        """Stop services and the users' programs together, so that all have the whole grace."""
        assert self._target is not None
        async with anyio.create_task_group() as group:
            for service in self._services.values():
                group.start_soon(partial(service.stop, grace=self._grace))
            for process in tuple(self._target.main.exec_processes):
                group.start_soon(partial(process.stop, grace=self._grace))

    # -- requests ---------------------------------------------------------------------------------

    async def _answer_request(self, connection: ControlConnection) -> bytes:
        try:
            request: SupervisorRequest = msgspec.json.decode(
                connection.request, type=SupervisorRequest
            )
            response = await self._handle_request(request, connection)
        except DanluError as error:
            response = SupervisorResponse(error.message, error.hint, error.exit_code)
        except (msgspec.MsgspecError, OSError) as error:
            response = SupervisorResponse(f"invalid request: {error}", code=StoreError.exit_code)
        return msgspec.json.encode(response)

    async def _handle_request(
        self, request: SupervisorRequest, connection: ControlConnection
    ) -> SupervisorResponse:
        if isinstance(request, StartExecRequest):
            return await self._run_exec(request.exec, connection)
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
        if len(connection.descriptors) != _STREAM_COUNT:
            raise UsageError(f"exec needs {_STREAM_COUNT} descriptors")
        stdin, stdout, stderr = connection.descriptors
        process = self._start_program(request, stdin=stdin, stdout=stdout, stderr=stderr)
        connection.close_descriptors()
        async with anyio.create_task_group() as group:
            group.start_soon(self._forward_messages, process, connection)
            exit = await process.wait()
            group.cancel_scope.cancel()
        if exit.reason == "StartError" and exit.code == runtime.FAILED_TO_START:
            raise MachineError(f"cannot start {request.args[0]}: {exit.message}")
        return SupervisorResponse(code=exit.code)

    async def _forward_messages(
        self, process: ContainerProcess, connection: ControlConnection
    ) -> None:
        """Forward signals and new terminal sizes until the client disconnects; then stop."""
        while (line := await connection.read_message()) is not None:
            with suppress(msgspec.MsgspecError):
                message = msgspec.json.decode(line, type=ExecMessage)
                if message.resize:
                    _notify_runtime(process, signal.SIGWINCH)
                elif message.signal and process.pid is not None:
                    container_processes.send_signal(process.pid, message.signal)
        # Also what the program started in the background, unless that ignores it (nohup).
        process.hang_up()
        await process.stop(grace=1.0)

    def _publish_state(self, phase: Phase | None = None, reason: str = "") -> None:
        self._phase = phase or self._phase
        ended = self._phase in ("Stopped", "Failed")
        state = EnvironmentState(
            self._phase,
            started=self._started,
            ended=datetime.now(UTC) if ended else None,
            reason=reason,
            warnings=tuple(self._warnings),
            services=() if ended else tuple(item.state for item in self._services.values()),
            stopped_by_user=ended and self._stopped_by_user,
            container=None if ended or self._target is None else self._target.main.pid,
        )
        # A full disk must not end the environment; the state is written again on the next change.
        with suppress(OSError):
            self._environment.write_state(state)


def _notify_runtime(process: ContainerProcess, number: int) -> None:
    """Signal the OCI runtime, which copies the size of our terminal to the program's."""
    for pid in container_processes.child_pids(process.keeper)[:1]:
        container_processes.send_signal(pid, number)


def main(directory: str, ready: int, lock: int) -> None:
    """Supervise the environment in ``directory``; report on the descriptor ``ready``."""
    for descriptor in (ready, lock):
        os.set_inheritable(descriptor, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    environment = EnvironmentDirectory(Path(directory))

    def report(result: StartReport) -> None:
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
        cgroups = CgroupManager.detect()
        userns.enter(paths)
        environment.control_socket.unlink(missing_ok=True)
        config = load_configuration(paths.config_file)
    except DanluError as error:
        report(StartReport(error.message, error.hint, error.exit_code))
        sys.exit(error.exit_code)
    supervisor = EnvironmentSupervisor(environment, spec, paths, config, cgroups)
    anyio.run(supervisor.run, report)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
