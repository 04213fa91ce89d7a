"""Run replicas as containers: images of the store, in an OCI runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from danlu.builder.embedded.bytecode_layers import add_bytecode_trees
from danlu.engine import embedded, procfs
from danlu.engine.cgroup import CgroupManager, ContainerCgroup, enter_script, open_procs_files
from danlu.engine.container_exec import (
    EXEC_ARGS,
    SHELL,
    ExecTarget,
    interpret_exit,
)
from danlu.engine.container_process import ContainerProcess, spawn_session
from danlu.engine.gpu.provider import provide_gpus
from danlu.engine.gpu.selection import GpuSelection
from danlu.engine.loopback_forwarder import LoopbackForwarder, proxy_ports
from danlu.engine.types import ContainerExit, ResourceUsage, RunningContainer
from danlu.errors import DanluError, MachineError, UsageError
from danlu.graph.image_config import ImageConfig, parse_image_config
from danlu.jobs.local.job_network import JobNetwork
from danlu.jobs.local.pod import ContainerSpec
from danlu.sandbox import container_processes, runtime, userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import prepare_run
from danlu.sandbox.types import (
    ContainerEdits,
    JoinedNetwork,
    Mount,
    ProcessSpec,
    RootFilesystem,
)
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from danlu.util.process_tree import list_descendants
from danlu.util.quantity import format_memory

# Set by enter_namespaces(), because the sandbox hides the cgroup file system.
_cgroups: CgroupManager | None = None


def enter_namespaces(paths: Paths) -> None:
    """Make this process one that can run containers; call once, before any thread or event loop.

    An unprivileged user becomes root of a user namespace; created files still belong to the user.
    Raises :class:`MachineError` if namespaces are not allowed.
    """
    global _cgroups
    if _cgroups is None:
        _cgroups = CgroupManager.detect()
    userns.enter(paths)


class _ReadyImage(msgspec.Struct, frozen=True):
    """An image whose layers are unpacked as ``trees``, lowest first."""

    trees: tuple[Path, ...]
    config: ImageConfig
    trusted: bool


class _StartedContainer(msgspec.Struct, frozen=True):
    """A running container: its bundle, the program it was given, and what to release."""

    bundle: Path
    process: ProcessSpec
    shell: bool
    container: ContainerSpec
    group: ContainerCgroup | None
    resources: ExitStack


class ContainerEngine:
    """Runs the containers of one job; requires :func:`enter_namespaces`.

    ``ports`` of the host's loopback address, and those of local proxies in this process's
    environment, are forwarded to the containers. Raises :class:`MachineError` if no OCI
    runtime is installed.
    """

    def __init__(self, paths: Paths, config: Configuration, *, ports: Sequence[int] = ()) -> None:
        if not userns.has_entered():
            raise RuntimeError("enter_namespaces() must be called before creating an engine")
        self._runtime = runtime.find_runtime(config.runtime)
        self._config = config
        self._resources = ExitStack()
        self._store = self._resources.enter_context(Store.open(paths.store))
        self._resources.enter_context(self._store.lease())
        self._work = self._resources.enter_context(self._store.staging())
        self._network_envs = {
            trusted: detect_network_environment(self._work, trusted=trusted)
            for trusted in (True, False)
        }
        self._network = JobNetwork(self._work / "network")
        self._forwarder = LoopbackForwarder()
        self._ports = tuple(dict.fromkeys((*ports, *proxy_ports(os.environ))))
        self._images: dict[str, _ReadyImage] = {}
        self._started: dict[ContainerProcess, _StartedContainer] = {}
        self._network_lock = anyio.Lock()
        self._network_open = False
        self._warnings: dict[str, None] = {}

    def warnings(self) -> Sequence[str]:
        """Return limits that are not enforced, and why the Internet is not reachable."""
        network = [self._network.warning] if self._network.warning else []
        return (*self._warnings, *network)

    async def start(self, container: ContainerSpec, *, output: int) -> RunningContainer:
        """Start a container; see :class:`~danlu.jobs.local.pod.ReplicaEngine`.

        Raises :class:`MachineError` for an image that is not in the store, and if this machine
        lacks something, such as a GPU; :class:`UsageError` for an invalid user or mount.
        """
        network = await self._join_network(container)
        resources = ExitStack()
        try:
            started = await to_thread.run_sync(self._prepare_bundle, container, network, resources)
            process = self._launch_runtime(started, output)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(resources.close)
            raise
        await process.wait_for_start()
        return process

    async def exec(
        self,
        running: RunningContainer,
        args: Sequence[str],
        streams: tuple[int, int, int],
    ) -> RunningContainer:
        """Run another program with the user and working directory of the container's program."""
        assert isinstance(running, ContainerProcess)
        started = self._started.get(running)
        if started is None:
            raise MachineError("the container has ended", hint="run `danlu jobs show` to see why")
        process = msgspec.structs.replace(started.process, args=tuple(args))
        group = started.group if started.shell else None
        stdin, stdout, stderr = streams
        target = ExecTarget(self._runtime, started.bundle, running, group)
        return target.start(process, stdin=stdin, stdout=stdout, stderr=stderr)

    async def close(self) -> None:
        """Stop all containers, and remove the network and the working directory."""
        with anyio.CancelScope(shield=True):
            for process in tuple(self._started):
                await process.stop(grace=0)
            await self._forwarder.close()
            await to_thread.run_sync(self._network.close)
            await to_thread.run_sync(self._resources.close)

    # -- starting ---------------------------------------------------------------------------------

    async def _join_network(self, container: ContainerSpec) -> JoinedNetwork:
        """Return the replica's network, which its first container creates."""
        replica, attempt = container.replica, container.attempt
        async with self._network_lock:
            if not self._network_open:
                await to_thread.run_sync(self._network.open)
                await self._network.connect()
                self._network_open = True
            join = partial(self._network.join, attempt=attempt, address=container.address)
            namespace, created = await to_thread.run_sync(join, replica)
            if created:
                await self._forwarder.add(namespace, self._ports)
        return JoinedNetwork(namespace, container.host, container.hosts, self._network.resolver)

    def _prepare_bundle(
        self, container: ContainerSpec, network: JoinedNetwork, resources: ExitStack
    ) -> _StartedContainer:
        """Prepare everything the runtime needs; what must be undone later is in ``resources``."""
        image = self._load_image(container.image)
        view = LayerView(image.trees)
        # Allocated to this replica, so CUDA_VISIBLE_DEVICES of the user says nothing more.
        gpus = GpuSelection(names=tuple(str(gpu) for gpu in container.limits.gpus))
        edits = provide_gpus(gpus, view, self._config, {})
        process = _build_process(container, image.config, view, edits)
        shell = view.entry(view.resolve(SHELL)) is not None
        group = self._create_cgroup(container, resources)
        entering = enter_script(group.fd_count) if group and shell else ""
        bundle = resources.enter_context(
            prepare_run(
                process,
                RootFilesystem(image.trees),
                mounts=_build_mounts(container),
                network_env=self._network_envs[image.trusted],
                network=network,
                work=self._work,
                shell=f"{entering}{embedded.WAIT_SCRIPT_ONE_STREAM}",
                seccomp=self._config.seccomp,
                edits=edits,
            )
        )
        return _StartedContainer(bundle, process, shell, container, group, resources)

    def _load_image(self, digest: str) -> _ReadyImage:
        if digest in self._images:
            return self._images[digest]
        image = self._store.image(digest)
        layers = self._store.layers(image.layers) if image is not None else None
        if image is None or layers is None:
            raise MachineError(
                f"image {digest} is not in the store",
                hint="build it with `danlu build`, or pull it with `danlu image pull`",
            )
        trees = add_bytecode_trees(self._store, image, layers)
        config = parse_image_config(image.config)
        self._images[digest] = _ReadyImage(trees, config, image.is_built_here)
        return self._images[digest]

    def _create_cgroup(
        self, container: ContainerSpec, resources: ExitStack
    ) -> ContainerCgroup | None:
        limits = container.limits
        missing = "cgroups are not available" if _cgroups is None else _cgroups.missing
        if missing and (limits.cpu is not None or limits.memory is not None):
            self._warnings[f"resources: not enforced: {missing}"] = None
        if _cgroups is None:
            return None
        group = _cgroups.create(f"{container.mark}-{container.name}", limits)
        resources.callback(group.close)
        return group

    def _launch_runtime(self, started: _StartedContainer, output: int) -> ContainerProcess:
        group = started.group
        with open_procs_files(group) as procs_files:
            count = len(procs_files) if started.shell else 0
            command = self._runtime.command(started.bundle, descriptors=count)
            if procs_files and not started.shell:
                # Nothing inside can enter the group, so the runtime itself does.
                script = f"{enter_script(len(procs_files))}{EXEC_ARGS}"
                command = [SHELL, "-c", script, "danlu", *command]
            pid = spawn_session(command, (None, output, output, *procs_files))
        process = ContainerProcess(
            pid,
            finish=lambda code: self._collect_exit(process, code),
            measure=lambda: _measure_usage(group, pid),
        )
        self._started[process] = started
        return process

    def _collect_exit(self, process: ContainerProcess, code: int) -> ContainerExit:
        started = self._started.pop(process)
        exit = interpret_exit(code, started.bundle / "log", started.process.args[0])
        if exit.code and started.group is not None and started.group.had_oom_kill():
            limit = started.container.limits.memory
            message = f"limit {format_memory(limit)}" if limit else ""
            exit = ContainerExit(exit.code, "OOMKilled", message)
        # What cannot be removed now is removed with the staging directory.
        with suppress(OSError, DanluError):
            started.resources.close()
        return exit


def _measure_usage(group: ContainerCgroup | None, keeper: int) -> ResourceUsage | None:
    used = group.usage() if group is not None else None
    first = container_processes.find_container_init(keeper)
    if used is not None or first is None:
        return used
    return procfs.measure_usage([first, *list_descendants(first)])


# -- the runtime spec -----------------------------------------------------------------------------


def _build_process(
    container: ContainerSpec, config: ImageConfig, view: LayerView, edits: ContainerEdits
) -> ProcessSpec:
    """Combine the job's and the image's command and environment.

    Raises :class:`MachineError` if neither has a command, :class:`UsageError` for a user that does
    not exist in the image.
    """
    args = container.args
    command = (*config.entrypoint, *(args or config.command)) if container.arguments else args
    command = command or (*config.entrypoint, *config.command)
    if not command:
        raise MachineError(
            f"container {container.name} has no command, and neither has its image",
            hint="add a `command` to the container",
        )
    host = {"HOSTNAME": container.host} if container.host else {}
    image_env = dict(config.environment)
    defaults = {name: value for name, value in container.defaults.items() if name not in image_env}
    user = container.user
    if user.startswith(":"):
        user = f"{config.user.partition(':')[0] or 0}{user}"
    process = embedded.image_process(
        view,
        config,
        command,
        directory=container.directory,
        environment={**defaults, **host, **edits.environment, **container.environment},
        user=user,
        groups=edits.groups,
    )
    if container.non_root and process.uid == 0:
        raise UsageError(
            f"container {container.name} has runAsNonRoot, and would run as root",
            hint="set runAsUser",
        )
    return process


def _build_mounts(container: ContainerSpec) -> list[Mount]:
    """Return the container's volumes, parents before mounts below them."""
    # A mount hides what was mounted below its target before.
    return sorted(container.volumes, key=lambda mount: mount.target.rstrip("/").split("/"))
