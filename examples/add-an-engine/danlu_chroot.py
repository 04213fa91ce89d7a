"""An engine for danlu: containers made with ``unshare`` and ``mount`` of util-linux.

danlu prepares the root and the mounts, and here they get namespaces for mounts, processes and IPC.
Nothing else keeps programs in: no limits, no filter of system calls, all of root's capabilities.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import danlu_chroot_exec

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.command_container import CommandContainer, FirstProcessState
from danlu.engine.container_scripts import HOLD_SCRIPT
from danlu.engine.engine import Engine, EngineFeatures, EngineProgram, StartContainer
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.environment_image import find_environment_image, list_mounts
from danlu.engine.first_process import FirstProcess
from danlu.engine.types import ExecRequest
from danlu.sandbox import userns
from danlu.sandbox.launcher.image_root import image_process, open_image
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import ContainerSpec, prepare_bundle
from danlu.sandbox.types import PROJECT_DIRECTORY, SYSTEM_PATH, ProcessSpec, RootFilesystem
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from danlu.util.process_tree import child_pids, send_signal

#: Mounts types, sources, targets and options below ``$1``, and runs what follows ``--`` there.
START_SCRIPT = r"""set -e
root=$1; shift
while [ "$1" != -- ]; do mount -t "$1" -o "$4" "$2" "$root$3"; shift 4; done; shift
exec chroot "$root" "$@" """


class ChrootEngine(Engine):
    """What `danlu up --on chroot` uses."""

    name = "chroot"
    features = EngineFeatures(gpus="none", limits=False)
    program = EngineProgram(name="unshare", package="util-linux")

    def open_engine(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> StartContainer:
        """Become root in namespaces of this process, the supervisor's: mounts end with it."""
        userns.enter(paths)

        async def start_container(
            environment: EnvironmentDirectory, spec: EnvironmentSpec, resources: ExitStack
        ) -> CommandContainer:
            container = ChrootContainer(environment, spec, paths, resources)
            await container.start()
            return container

        return start_container


class ChrootContainer(CommandContainer):
    """A root with a first process, and how other programs enter it."""

    def __init__(
        self, place: EnvironmentDirectory, spec: EnvironmentSpec, paths: Paths, stack: ExitStack
    ) -> None:
        store = stack.enter_context(Store.open(paths.store))
        stack.enter_context(store.lease())
        work = stack.enter_context(store.staging())
        image, layers = find_environment_image(store, spec)
        self._image = open_image(store, image, layers, place.upper)
        super().__init__(spec.user or self._image.config.user)
        self._spec, self._upper = spec, place.upper
        self._network = detect_network_environment(work, trusted=image.is_built_here)
        container = ContainerSpec(
            self._build_process(ExecRequest(("/bin/sh", "-c", HOLD_SCRIPT), user=self._user)),
            RootFilesystem(self._image.trees, place.upper, durable=True),
            mounts=list_mounts(spec, paths),
            network_env=self._network,
            shm_size=spec.shm_size,
        )
        self._bundle = stack.enter_context(prepare_bundle(container, work=work))

    def _build_process(self, request: ExecRequest) -> ProcessSpec:
        return image_process(
            LayerView((*self._image.trees, self._upper)),
            self._image.config,
            request.args,
            directory=request.directory or (PROJECT_DIRECTORY if self._spec.project else ""),
            environment={**self._spec.environment, **request.environment},
            defaults={**self._network.environment, "DANLU_ENVIRONMENT": self._spec.name},
            user=request.user,
        )

    def start_command(self) -> Sequence[str]:
        """See :class:`CommandContainer`; the bundle is an OCI runtime's."""
        config = json.loads((self._bundle / "config.json").read_bytes())
        mounts: list[str] = []
        for mount in config["mounts"]:
            # mount(8) does not know `rro`, which also makes mounts below read-only.
            options = ",".join(mount["options"]).replace("rro", "ro")
            mounts += (mount["type"], mount["source"], mount["destination"], options)
        clean = ("/usr/bin/env", "-i", f"PATH={SYSTEM_PATH}")
        unshare = (*clean, "unshare", "--mount", "--pid", "--ipc", "--fork")
        script = ("/bin/sh", "-c", START_SCRIPT, "danlu", config["root"]["path"], *mounts, "--")
        return *unshare, *script, *config["process"]["args"]

    def exec_command(self, request: ExecRequest) -> tuple[Sequence[str], Mapping[str, str]]:
        """See :class:`CommandContainer`."""
        process = self._build_process(request)
        ids = ",".join(map(str, (process.uid, process.gid, *process.groups)))
        program = (sys.executable, "-I", "-S", danlu_chroot_exec.__file__, str(self.pid), ids)
        kind = "terminal" if request.terminal else "streams"
        words = (*program, process.working_directory, kind, *process.args)
        # In one variable, because some would change how Python itself starts.
        return words, {danlu_chroot_exec.VARIABLES: json.dumps(dict(process.environment))}

    async def read_state(self, first: FirstProcess) -> FirstProcessState:
        """See :class:`CommandContainer`."""
        inside = child_pids(first.pid) if first.returncode is None else []
        return FirstProcessState(inside[0] if inside else 0, first.returncode or 0)

    async def kill(self, first: FirstProcess) -> None:
        """See :class:`CommandContainer`."""
        send_signal(child_pids(first.pid))


ENGINE = ChrootEngine()
