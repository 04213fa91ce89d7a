"""Containers of environments without a daemon: an image's layers below a writable one, and runc."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import anyio
import msgspec

from danlu.engine.apt_sources import create_apt_sources, write_apt_sources
from danlu.engine.container_scripts import EXEC_SCRIPT, LOGIN_SCRIPT
from danlu.engine.embedded.private_network import PrivateNetwork
from danlu.engine.environment_directory import (
    WAIT_SCRIPT,
    EnvironmentDirectory,
    EnvironmentSpec,
)
from danlu.engine.environment_image import find_environment_image, list_mounts
from danlu.engine.gpu.allocation import allocate_gpus
from danlu.engine.gpu.provider import find_hidden_gpus, provide_gpus
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.resource_allocator import ResourceAllocator, ledger_file
from danlu.engine.types import EnvironmentProgram, ExecRequest
from danlu.errors import MachineError, UsageError
from danlu.sandbox import userns
from danlu.sandbox.launcher.cgroup import CgroupManager
from danlu.sandbox.launcher.container import ContainerLauncher, PreparedContainer
from danlu.sandbox.launcher.container_process import ContainerProcess, StartedContainer
from danlu.sandbox.launcher.image_root import ImageRoot, image_process, open_image
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import SHELL, ContainerSpec, has_shell
from danlu.sandbox.types import (
    PROJECT_DIRECTORY,
    ContainerEdits,
    ProcessSpec,
    ResourceLimits,
    RootFilesystem,
)
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.fd_limit import raise_fd_limit
from danlu.util.paths import Paths

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
        store = resources.enter_context(Store.open(self._paths.store))
        resources.enter_context(store.lease())
        work = resources.enter_context(store.staging())
        stored, layers = find_environment_image(store, spec)
        image = open_image(store, stored, layers, environment.upper)
        launcher = ContainerLauncher(
            work,
            runtime=self._config.runtime,
            seccomp=self._config.seccomp,
            cgroups=self._cgroups,
        )
        warnings: list[str] = []
        network_env = detect_network_environment(work, trusted=image.is_built_here)
        edits = self._provide_gpus(environment, spec, image, warnings)
        programs = EnvironmentPrograms(
            environment, spec, image, network_env.environment, edits, self._open_files
        )
        process = programs.build_process(ExecRequest(_choose_init(programs.open_view())))
        warnings += filter(None, [self._cgroups.explain_missing(spec.limits)])
        network, joined = None, None
        if spec.network != "host":
            network = PrivateNetwork(work / "network")
            variables = {**network_env.environment, **process.environment}
            joined = await network.open(variables, resources)
            warnings += network.warnings
        below = LayerView(image.trees)
        apt = create_apt_sources(below, work)
        container_spec = ContainerSpec(
            msgspec.structs.replace(process, uid=0, gid=0, groups=(), working_directory="/"),
            RootFilesystem(image.trees, environment.upper, durable=True),
            mounts=list_mounts(spec, self._paths),
            network=joined or True,
            network_env=network_env,
            # Below the user's mounts, as what a device needs.
            edits=msgspec.structs.replace(edits, mounts=(*edits.mounts, *apt)),
            shm_size=spec.shm_size,
            group=f"environment-{spec.name}" if spec.limits != ResourceLimits() else "",
            limits=spec.limits,
        )
        prepared = launcher.prepare(container_spec, resources)
        async with anyio.create_task_group() as tasks:
            # It runs apt-config, which takes as long as the runtime needs for the container.
            tasks.start_soon(write_apt_sources, apt, below, self._config)
            container = EmbeddedContainer(prepared, programs, network, warnings)
            await container.wait_for_start()
        if container.pid is None:
            exit = await container.wait()
            reason = exit.message or f"it exited with code {exit.code}"
            raise prepared.start_error("the container", reason)
        return container

    def _provide_gpus(
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        image: ImageRoot,
        warnings: list[str],
    ) -> ContainerEdits:
        selection = parse_gpus(spec.gpus)
        if not selection:
            return ContainerEdits()
        allocator = ResourceAllocator(ledger_file(self._uid), environment.directory)
        selection, warning = allocate_gpus(
            selection, allocator, self._config, share=spec.shares_gpus
        )
        view = LayerView((*image.trees, environment.upper))
        edits = provide_gpus(selection, view, self._config)
        variables = {**dict(image.config.environment), **spec.environment}
        warnings += filter(None, [warning, find_hidden_gpus(edits, variables)])
        return edits


def _choose_init(view: LayerView) -> tuple[str, ...]:
    """Return the first process: the distribution's tini if the image has it, else a shell."""
    if not has_shell(view):
        raise UsageError(
            "the image has no /bin/sh, which `danlu up` needs",
            hint="use `danlu run` for a single program",
        )
    waiting = (SHELL, "-c", WAIT_SCRIPT)
    has_tini = view.entry(view.resolve(_TINI)) is not None
    return (_TINI, "--", *waiting) if has_tini else waiting


@dataclass(frozen=True)
class EnvironmentPrograms:
    """What the programs of an environment have in common; ``defaults`` are variables."""

    environment: EnvironmentDirectory
    spec: EnvironmentSpec
    image: ImageRoot
    defaults: Mapping[str, str]
    edits: ContainerEdits
    open_files: tuple[int, int]

    def open_view(self) -> LayerView:
        """Return a new view: it keeps what it has read, and programs replace files."""
        return LayerView((*self.image.trees, self.environment.upper))

    def build_process(self, request: ExecRequest) -> ProcessSpec:
        """Return a program as a process; users that were added inside are found, too."""
        view = self.open_view()
        self._check_user_files(view)
        directory = PROJECT_DIRECTORY if self.spec.project else ""
        process = image_process(
            view,
            self.image.config,
            request.args or (SHELL, "-c", LOGIN_SCRIPT),
            directory=request.directory or directory,
            environment={
                "DANLU_ENVIRONMENT": self.spec.name,
                **self.spec.environment,
                **request.environment,
            },
            defaults=self.defaults,
            edits=self.edits,
            user=request.user or self.spec.user,
            terminal=request.terminal,
        )
        return msgspec.structs.replace(process, open_files=self.open_files)

    def _check_user_files(self, view: LayerView) -> None:
        """Raise :class:`MachineError` if runc could not read the users of the environment.

        It opens these files whatever they are, and a program inside may have replaced them: at a
        pipe it would wait until the environment stops.
        """
        for path in ("/etc/passwd", "/etc/group"):
            if view.blocks_reading(path):
                name, upper = self.spec.name, self.environment.upper
                raise MachineError(
                    f"cannot start a program in environment {name}: {path} is not a file",
                    hint=f"`danlu stop {name}`, remove {upper}{path}, and `danlu start {name}`",
                )


class EmbeddedContainer(StartedContainer):
    """The container of one environment (:class:`danlu.engine.types.EnvironmentContainer`)."""

    def __init__(
        self,
        prepared: PreparedContainer,
        programs: EnvironmentPrograms,
        network: PrivateNetwork | None,
        warnings: list[str],
    ) -> None:
        super().__init__(prepared, (None, 2, 2), exec_script=EXEC_SCRIPT)
        self.warnings = warnings
        self.port_opener = network
        self._programs = programs

    @property
    def programs(self) -> Sequence[EnvironmentProgram]:
        """The programs that were started in it and have not ended."""
        return tuple(self.exec_processes)

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        """See :class:`~danlu.engine.types.EnvironmentContainer`."""
        process = self._programs.build_process(request)
        return self.start_program(process, stdin=stdin, stdout=stdout, stderr=stderr)
