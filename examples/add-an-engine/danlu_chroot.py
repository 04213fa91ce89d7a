"""An engine for danlu: containers made with ``unshare`` and ``mount`` of util-linux.

A container is the image's layers under the environment's writable one, in namespaces for mounts and
processes. It has the machine's network and devices: this is an example, and no protection.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import danlu_chroot_exec

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.command_container import CommandContainer, FirstProcessState
from danlu.engine.container_scripts import HOLD_SCRIPT
from danlu.engine.engine import Engine, EngineFeatures, EngineProgram, StartContainer
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.environment_image import find_environment_image
from danlu.engine.first_process import FirstProcess
from danlu.engine.types import ExecRequest
from danlu.engine.vscode_servers import find_server_mount
from danlu.graph.image_config import parse_image_config
from danlu.sandbox import userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.overlay import mount_root
from danlu.sandbox.prepare import MountPoint, check_mounts, create_mount_points, expand_home
from danlu.sandbox.types import PROJECT_DIRECTORY, SYSTEM_PATH, Mount, RootFilesystem
from danlu.sandbox.users import find_user
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from danlu.util.process_tree import child_pids, send_signal

#: Becomes the first process of the root ``$1``, which runs ``$2``, with shared memory of ``$3``
#: bytes. Mounts follow as source, target and ``ro``.
START_SCRIPT = r"""set -e
root=$1 hold=$2 shm=$3; shift 3
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o "mode=1777,size=$shm" tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
while [ $# -gt 0 ]; do
  if [ -n "$1" ]; then mount --rbind "$1" "$root$2"; else mount -t tmpfs tmpfs "$root$2"; fi
  [ -z "$3" ] || mount -o remount,bind,ro "$root$2"
  shift 3
done
exec chroot "$root" /bin/sh -c "$hold" danlu"""


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
        self,
        environment: EnvironmentDirectory,
        spec: EnvironmentSpec,
        paths: Paths,
        resources: ExitStack,
    ) -> None:
        store = resources.enter_context(Store.open(paths.store))
        resources.enter_context(store.lease())
        work = resources.enter_context(store.staging())
        image, layers = find_environment_image(store, spec)
        config = parse_image_config(image.config)
        super().__init__(spec.user or config.user)
        trees = tuple(layer.tree for layer in layers)
        self._layers = (*trees, environment.upper)
        network = detect_network_environment(work, trusted=image.is_built_here)
        self._directory = PROJECT_DIRECTORY if spec.project else config.working_directory or "/"
        self._variables = {
            "PATH": SYSTEM_PATH,
            "DANLU_ENVIRONMENT": spec.name,
            **network.environment,
            **dict(config.environment),
            **spec.environment,
        }
        own = [Mount(PROJECT_DIRECTORY, Path(spec.project))] if spec.project else []
        if servers := find_server_mount(paths.vscode_servers):
            own.append(servers)
        home = find_user(LayerView(self._layers), self._user).home
        given = expand_home((*spec.mounts, *own), home)
        check_mounts(given)
        files = [Mount(f"/etc/{name}", Path("/etc", name)) for name in ("hosts", "resolv.conf")]
        view = LayerView(trees)
        lacking = [item for item in network.defaults if not view.entry(view.resolve(item.target))]
        # A mount hides what was mounted below its target before.
        self._mounts = sorted(
            (*files, *network.mounts, *lacking, *given), key=lambda mount: mount.target.split("/")
        )
        # What is missing to mount on is in a layer of its own: no change of the environment's.
        points = [MountPoint(path, directory=True) for path in ("/proc", "/sys", "/dev")]
        points += [
            MountPoint(m.target, not (m.source and m.source.is_file())) for m in self._mounts
        ]
        (work / "points").mkdir()
        create_mount_points(view, points, work / "points")
        stack = RootFilesystem((*trees, work / "points"), environment.upper, durable=True)
        self._shm_size = spec.shm_size or 64 << 20
        self._root = resources.enter_context(mount_root(stack, work))

    def start_command(self) -> Sequence[str]:
        """See :class:`CommandContainer`."""
        words = [
            word
            for mount in self._mounts
            for word in (str(mount.source or ""), mount.target, "ro" * mount.readonly)
        ]
        clean = ("/usr/bin/env", "-i", f"PATH={SYSTEM_PATH}")
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        script = ("/bin/sh", "-c", START_SCRIPT, "danlu", str(self._root), HOLD_SCRIPT)
        return *clean, *namespaces, *script, str(self._shm_size), *words

    def exec_command(self, request: ExecRequest) -> tuple[Sequence[str], Mapping[str, str]]:
        """See :class:`CommandContainer`."""
        user = find_user(LayerView(self._layers), request.user)
        ids = ",".join(map(str, (user.uid, user.gid, *user.groups)))
        variables = {"HOME": user.home, **self._variables, **request.environment}
        program = (sys.executable, "-I", "-S", danlu_chroot_exec.__file__, str(self.pid))
        terminal = "terminal" if request.terminal else "streams"
        words = (*program, terminal, ids, request.directory or self._directory, *request.args)
        # In one variable, because some would change how Python itself starts.
        return words, {danlu_chroot_exec.VARIABLES: json.dumps(variables)}

    async def read_state(self, first: FirstProcess) -> FirstProcessState:
        """See :class:`CommandContainer`."""
        inside = child_pids(first.pid) if first.returncode is None else []
        return FirstProcessState(inside[0] if inside else 0, first.returncode or 0)

    async def kill(self, first: FirstProcess) -> None:
        """See :class:`CommandContainer`."""
        send_signal(child_pids(first.pid))


ENGINE = ChrootEngine()
