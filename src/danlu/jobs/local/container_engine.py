"""Run replicas as containers: images of the store, in an OCI runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

import anyio
import msgspec
from anyio import to_thread

from danlu.engine.gpu.provider import provide_gpus
from danlu.engine.gpu.selection import GpuSelection
from danlu.engine.loopback_forwarder import LoopbackForwarder, proxy_ports
from danlu.engine.types import RunningContainer
from danlu.errors import DanluError, MachineError, UsageError
from danlu.graph.image_config import ImageConfig
from danlu.jobs.local.job_network import JobNetwork
from danlu.jobs.local.pod import ReplicaContainer
from danlu.sandbox import userns
from danlu.sandbox.launcher.cgroup import CgroupManager
from danlu.sandbox.launcher.container import ContainerLauncher, PreparedContainer
from danlu.sandbox.launcher.container_process import StartedContainer
from danlu.sandbox.launcher.image_root import ImageRoot, image_process, open_image
from danlu.sandbox.launcher.waiting_shell import WAIT_SCRIPT_ONE_STREAM
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import ContainerSpec
from danlu.sandbox.types import ContainerEdits, JoinedNetwork, ProcessSpec, RootFilesystem
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths

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


class ContainerEngine:
    """Runs the containers of one job; requires :func:`enter_namespaces`.

    ``ports`` of the host's loopback address, and those of local proxies in this process's
    environment, are forwarded to the containers. Raises :class:`MachineError` if no OCI
    runtime is installed.
    """

    def __init__(self, paths: Paths, config: Configuration, *, ports: Sequence[int] = ()) -> None:
        if _cgroups is None:
            raise RuntimeError("enter_namespaces() must be called before creating an engine")
        self._config = config
        self._cgroups = _cgroups
        self._resources = ExitStack()
        self._store = self._resources.enter_context(Store.open(paths.store))
        self._resources.enter_context(self._store.lease())
        work = self._resources.enter_context(self._store.staging())
        self._launcher = ContainerLauncher(
            work, runtime=config.runtime, seccomp=config.seccomp, cgroups=_cgroups
        )
        self._network_envs = {
            trusted: detect_network_environment(work, trusted=trusted) for trusted in (True, False)
        }
        self._network = JobNetwork(work / "network")
        self._forwarder = LoopbackForwarder()
        self._ports = tuple(dict.fromkeys((*ports, *proxy_ports(os.environ))))
        self._images: dict[str, ImageRoot] = {}
        self._started: set[StartedContainer] = set()
        self._network_lock = anyio.Lock()
        self._network_open = False
        self._warnings: dict[str, None] = {}

    def warnings(self) -> Sequence[str]:
        """Return limits that are not enforced, and why the Internet is not reachable."""
        network = [self._network.warning] if self._network.warning else []
        return (*self._warnings, *network)

    async def start(self, container: ReplicaContainer, *, output: int) -> RunningContainer:
        """Start a container; see :class:`~danlu.jobs.local.pod.ReplicaEngine`.

        Raises :class:`MachineError` for an image that is not in the store, and if this machine
        lacks something, such as a GPU; :class:`UsageError` for an invalid user or mount.
        """
        network = await self._join_network(container)
        resources = ExitStack()
        try:
            prepared = await to_thread.run_sync(
                self._prepare_container, container, network, resources
            )
            started = self._launch_container(prepared, output, resources)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(resources.close)
            raise
        await started.wait_for_start()
        return started

    async def exec(
        self,
        running: RunningContainer,
        args: Sequence[str],
        streams: tuple[int, int, int],
    ) -> RunningContainer:
        """Run another program with the user and working directory of the container's program."""
        assert isinstance(running, StartedContainer)
        if running not in self._started:
            raise MachineError("the container has ended", hint="run `danlu jobs show` to see why")
        process = msgspec.structs.replace(running.prepared.process, args=tuple(args))
        stdin, stdout, stderr = streams
        return running.start_program(process, stdin=stdin, stdout=stdout, stderr=stderr)

    async def close(self) -> None:
        """Stop all containers, and remove the network and the working directory."""
        with anyio.CancelScope(shield=True):
            for process in tuple(self._started):
                await process.stop(grace=0)
            await self._forwarder.close()
            await to_thread.run_sync(self._network.close)
            await to_thread.run_sync(self._resources.close)

    # -- starting ---------------------------------------------------------------------------------

    async def _join_network(self, container: ReplicaContainer) -> JoinedNetwork:
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

    def _prepare_container(
        self, container: ReplicaContainer, network: JoinedNetwork, resources: ExitStack
    ) -> PreparedContainer:
        for mount in container.volumes:
            if mount.source is not None and mount.source.resolve() != mount.source:
                raise MachineError(f"{mount.source}, for {mount.target}, was replaced by a link")
        image = self._load_image(container.image)
        view = LayerView(image.trees)
        # Allocated to this replica, so CUDA_VISIBLE_DEVICES of the user says nothing more.
        gpus = GpuSelection(names=tuple(str(gpu) for gpu in container.limits.gpus))
        edits = provide_gpus(gpus, view, self._config, {})
        if warning := self._cgroups.explain_missing(container.limits):
            self._warnings[warning] = None
        spec = ContainerSpec(
            _build_process(container, image.config, view, edits),
            RootFilesystem(image.trees),
            script=WAIT_SCRIPT_ONE_STREAM,
            mounts=container.volumes,
            network=network,
            network_env=self._network_envs[image.is_built_here],
            edits=edits,
            group=f"{container.mark}-{container.name}",
            limits=container.limits,
        )
        return self._launcher.prepare(spec, resources)

    def _load_image(self, digest: str) -> ImageRoot:
        if digest not in self._images:
            image = self._store.image(digest)
            layers = self._store.layers(image.layers) if image is not None else None
            if image is None or layers is None:
                raise MachineError(
                    f"image {digest} is not in the store",
                    hint="build it with `danlu build`, or pull it with `danlu image pull`",
                )
            self._images[digest] = open_image(self._store, image, layers)
        return self._images[digest]

    def _launch_container(
        self, prepared: PreparedContainer, output: int, resources: ExitStack
    ) -> StartedContainer:
        def release() -> None:
            self._started.remove(started)
            # What cannot be removed now is removed with the staging directory.
            with suppress(OSError, DanluError):
                resources.close()

        started = StartedContainer(prepared, (None, output, output), release=release)
        self._started.add(started)
        return started


def _build_process(
    container: ReplicaContainer, config: ImageConfig, view: LayerView, edits: ContainerEdits
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
    user = container.user
    if user.startswith(":"):
        user = f"{config.user.partition(':')[0] or 0}{user}"
    process = image_process(
        view,
        config,
        command,
        directory=container.directory,
        environment={**host, **container.environment},
        defaults=container.defaults,
        edits=edits,
        user=user,
    )
    if container.non_root and process.uid == 0:
        raise UsageError(
            f"container {container.name} has runAsNonRoot, and would run as root",
            hint="set runAsUser",
        )
    return process
