"""Containers of environments without a daemon: an image's layers below a writable one, and runc."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import msgspec

from danlu.engine.apt_sources import create_apt_sources, write_apt_sources
from danlu.engine.container_scripts import EXEC_SCRIPT, LOGIN_SCRIPT
from danlu.engine.embedded.private_network import PrivateNetwork
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.environment_image import find_environment_image, list_mounts
from danlu.engine.gpu.allocation import allocate_gpus
from danlu.engine.gpu.provider import find_hidden_gpus, provide_gpus
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.resource_allocator import ResourceAllocator, ledger_file
from danlu.engine.types import EnvironmentProgram, ExecRequest, PortOpener
from danlu.errors import MachineError, UsageError
from danlu.sandbox import network_env, userns
from danlu.sandbox.launcher.cgroup import CgroupManager
from danlu.sandbox.launcher.container import ContainerLauncher
from danlu.sandbox.launcher.container_process import ContainerProcess
from danlu.sandbox.launcher.image_root import ImageRoot, image_process, open_image
from danlu.sandbox.launcher.running_container import StartedContainer
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import ContainerSpec
from danlu.sandbox.types import (
    PROJECT_DIRECTORY,
    ContainerEdits,
    ContainerExit,
    JoinedNetwork,
    ProcessSpec,
    ResourceLimits,
    RootFilesystem,
)
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.fd_limit import raise_fd_limit
from danlu.util.paths import Paths

#: What the first process runs: it reaps orphans (dash waits for any child) until it is terminated.
_WAIT_FOREVER = 'trap "exit 0" TERM; while :; do sleep 86400 & wait $!; done'
_TINI = "/usr/bin/tini"


class EmbeddedStarter:
    """Starts containers in namespaces of this process."""

    def __init__(self, paths: Paths, config: Configuration) -> None:
        self._paths = paths
        self._config = config
        self._open_files = raise_fd_limit()
        # Found before the namespaces hide the machine's control groups.
        self._cgroups = CgroupManager.detect()
        self._uid = os.getuid()
        userns.enter(paths)

    async def start_container(
        self, environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
    ) -> EmbeddedContainer:
        """Start the container; when ``resources`` closes, its root is unmounted.

        Raises :class:`~danlu.errors.DanluError` if it could not be started.
        """
        container = EmbeddedContainer(
            environment, spec, self._paths, self._config, self._open_files, self._uid
        )
        await container.start(self._cgroups, resources)
        return container


class EmbeddedContainer:
    """The container of one environment."""

    def __init__(
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        paths: Paths,
        config: Configuration,
        open_files: tuple[int, int],
        uid: int,
    ) -> None:
        self._uid = uid
        self._open_files = open_files
        self.warnings: list[str] = []
        self._environment = environment
        self._spec = spec
        self._paths = paths
        self._config = config
        self._image = ImageRoot(())
        self._view = LayerView(())
        self._network_env = network_env.NetworkEnvironment({})
        self._edits = ContainerEdits()
        self._started: StartedContainer | None = None
        self._network: PrivateNetwork | None = None

    @property
    def port_opener(self) -> PortOpener | None:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return self._network

    @property
    def pid(self) -> int | None:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return None if self._started is None else self._started.pid

    @property
    def programs(self) -> Sequence[EnvironmentProgram]:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        return () if self._started is None else tuple(self._started.exec_processes)

    async def start(self, cgroups: CgroupManager, resources: ExitStack) -> None:
        """Mount the root and start the first process; see :class:`EmbeddedStarter`."""
        work = self._open_image(resources)
        launcher = ContainerLauncher(
            work, runtime=self._config.runtime, seccomp=self._config.seccomp, cgroups=cgroups
        )
        self._update_view()
        self._edits = self._provide_gpus()
        process = self._build_process(ExecRequest(self._choose_init()))
        limits = self._spec.limits
        self.warnings += filter(None, [cgroups.explain_missing(limits)])
        network = await self._open_network(process, work, resources)
        layers = LayerView(self._image.trees)
        apt = create_apt_sources(layers, work)
        spec = ContainerSpec(
            msgspec.structs.replace(process, uid=0, gid=0, groups=(), working_directory="/"),
            RootFilesystem(self._image.trees, self._environment.upper, durable=True),
            mounts=list_mounts(self._spec, self._paths),
            network=network,
            network_env=self._network_env,
            # Below the user's mounts, as what a device needs.
            edits=msgspec.structs.replace(self._edits, mounts=(*self._edits.mounts, *apt)),
            shm_size=self._spec.shm_size,
            group=f"environment-{self._spec.name}" if limits != ResourceLimits() else "",
            limits=limits,
        )
        prepared = launcher.prepare(spec, resources)
        async with anyio.create_task_group() as tasks:
            # It runs apt-config, which takes as long as the runtime needs for the container.
            tasks.start_soon(write_apt_sources, apt, layers, self._config)
            started = StartedContainer(prepared, (None, 2, 2), exec_script=EXEC_SCRIPT)
            await started.wait_for_start()
        if started.pid is None:
            exit = await started.wait()
            reason = exit.message or f"it exited with code {exit.code}"
            raise prepared.start_error("the container", reason)
        self._started = started

    def _provide_gpus(self) -> ContainerEdits:
        selection = parse_gpus(self._spec.gpus)
        if not selection:
            return ContainerEdits()
        allocator = ResourceAllocator(ledger_file(self._uid), self._environment.directory)
        selection, warning = allocate_gpus(
            selection, allocator, self._config, share=self._spec.shares_gpus
        )
        edits = provide_gpus(selection, self._view, self._config)
        variables = {**dict(self._image.config.environment), **self._spec.environment}
        self.warnings += filter(None, [warning, find_hidden_gpus(edits, variables)])
        return edits

    async def _open_network(
        self, process: ProcessSpec, work: Path, resources: ExitStack
    ) -> JoinedNetwork | bool:
        """Return the network of the container; True for this machine's."""
        if self._spec.network == "host":
            return True
        self._network = PrivateNetwork(work / "network")
        joined = await self._network.open(
            {**self._network_env.environment, **process.environment}, resources
        )
        self.warnings += self._network.warnings
        return joined

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._started is not None
        process = self._build_process(request)
        return self._started.start_exec(process, stdin=stdin, stdout=stdout, stderr=stderr)

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._started is not None
        return await self._started.wait()

    async def stop(self, *, grace: float) -> None:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        assert self._started is not None
        await self._started.stop(grace=grace)

    def _open_image(self, resources: ExitStack) -> Path:
        """Open the image, and return a working directory."""
        store = resources.enter_context(Store.open(self._paths.store))
        resources.enter_context(store.lease())
        work = resources.enter_context(store.staging())
        image, layers = find_environment_image(store, self._spec)
        self._image = open_image(store, image, layers, self._environment.upper)
        self._network_env = network_env.detect_network_environment(
            work, trusted=image.is_built_here
        )
        return work

    def _update_view(self) -> None:
        """Forget what was read: programs inside replace files and add users."""
        self._view = LayerView((*self._image.trees, self._environment.upper))

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

    def _check_user_files(self) -> None:
        """Raise :class:`MachineError` if runc could not read the users of the environment.

        It opens these files whatever they are, and a program inside may have replaced them: at a
        pipe it would wait until the environment stops.
        """
        for path in ("/etc/passwd", "/etc/group"):
            if self._view.blocks_reading(path):
                name, upper = self._spec.name, self._environment.upper
                raise MachineError(
                    f"cannot start a program in environment {name}: {path} is not a file",
                    hint=f"`danlu stop {name}`, remove {upper}{path}, and `danlu start {name}`",
                )

    def _build_process(self, request: ExecRequest) -> ProcessSpec:
        self._update_view()
        self._check_user_files()
        directory = PROJECT_DIRECTORY if self._spec.project else ""
        process = image_process(
            self._view,
            self._image.config,
            request.args or ("/bin/sh", "-c", LOGIN_SCRIPT),
            directory=request.directory or directory,
            environment={
                "DANLU_ENVIRONMENT": self._spec.name,
                **self._spec.environment,
                **request.environment,
            },
            defaults=self._network_env.environment,
            edits=self._edits,
            user=request.user or self._spec.user,
            terminal=request.terminal,
        )
        return msgspec.structs.replace(process, open_files=self._open_files)
