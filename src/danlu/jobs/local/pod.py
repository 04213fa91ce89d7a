"""The containers of a replica's pod, and the interface of the engines that run them.

A replica runs like a pod: first its init containers one by one, then its other containers together.
The container that the framework names (or else the first one) is the *main* container: when it
ends, the replica ends, and the sidecars are stopped. :func:`build_pod` turns a rendered pod into
containers with all references resolved. An engine runs single containers and knows nothing about
jobs.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import msgspec

from danlu.engine.types import RunningContainer
from danlu.errors import UsageError
from danlu.jobs.local.host_resources import available_cores
from danlu.jobs.types import Submission
from danlu.sandbox.types import PROJECT_DIRECTORY, Mount, ResourceLimits
from danlu.training.pod_template import expand_references, list_containers
from danlu.training.types import ReplicaId
from danlu.util.quantity import parse_quantity

GPU_RESOURCE = "nvidia.com/gpu"

MOVED_PROJECT_DIRECTORY = "/run/danlu-project"
"""Where containers see the project if the manifest mounts a volume at its usual path."""

_PYTHONS = ("python", "python3")

ManifestObjects = Mapping[str, Mapping[str, Any]]
"""The other documents of a manifest: ``{"ConfigMap/name": document}``."""

_MACHINE_RESOURCES: Mapping[str, Callable[[], float]] = {
    "cpu": available_cores,
    "memory": lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
}

_LABEL_PATH = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ReplicaContainer(msgspec.Struct, frozen=True):
    """A container of one attempt at a replica, with all references resolved.

    Attributes:
        mark: Unique to the attempt.
        args: Empty to run the image's own command.
        environment: The job's variables; the engine adds the image's or the host's below them.
        image: Config digest of an image in the store; empty to run a process on the host.
        host: The replica's own host name; ``address`` is its IP address, ``hosts`` maps the names
            of all replicas to addresses.
        ports: Declared container ports by name.
        arguments: ``args`` follow the image's entry point (``args`` without ``command`` in the
            manifest).
        defaults: Variables set only if neither the job nor the image (for a process: the
            supervisor's environment) sets them.
        user: Name or number and, after a colon, group; empty for the image's. Processes have the
            supervisor's. ``non_root`` forbids root.
        post_start, pre_stop: Handlers (``exec`` or ``sleep``) as in the manifest.
        probes: The ``startup`` and the ``liveness`` probe, in this order.
    """

    replica: ReplicaId
    attempt: int
    name: str
    mark: str
    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    image: str = ""
    limits: ResourceLimits = ResourceLimits()
    volumes: tuple[Mount, ...] = ()
    host: str = ""
    address: str = ""
    hosts: Mapping[str, str] = {}
    ports: Mapping[str, int] = {}
    arguments: bool = False
    defaults: Mapping[str, str] = {}
    user: str = ""
    non_root: bool = False
    post_start: Mapping[str, Any] | None = None
    pre_stop: Mapping[str, Any] | None = None
    probes: Mapping[str, Mapping[str, Any]] = {}


class ReplicaEngine(Protocol):
    """Runs containers; each supervisor has one object per engine."""

    def warnings(self) -> Sequence[str]:
        """Return what the host could not enforce or provide (``resources: not enforced: …``)."""

    async def start(self, container: ReplicaContainer, *, output: int) -> RunningContainer:
        """Start a container with stdout and stderr at the descriptor ``output`` and no stdin.

        Raises :class:`danlu.errors.MachineError` if it cannot be started on this machine.
        """

    async def exec(
        self,
        running: RunningContainer,
        args: Sequence[str],
        streams: tuple[int, int, int],
    ) -> RunningContainer:
        """Run another program in a running container, like ``kubectl exec`` (used by MPI)."""

    async def close(self) -> None:
        """Stop and remove everything that the engine created."""


class PodContainers(msgspec.Struct, frozen=True):
    """The containers of one attempt; ``grace`` is the pod's grace period, None if not set."""

    init_containers: tuple[ReplicaContainer, ...]
    main: ReplicaContainer
    sidecars: tuple[ReplicaContainer, ...]
    grace: float | None = None


class PodContext(msgspec.Struct, frozen=True):
    """What a pod's containers get in addition to their own specification.

    Attributes:
        environment: Variables of all containers, which the pod's own override.
        main_environment: More of them, for the main container only.
        main_defaults: Variables of the main container that its image or (for a process) the
            supervisor's environment override, too.
        volumes: The host path of each of the pod's volumes, by name.
        mounts: Mounts of all containers; of processes, their paths are replaced in commands.
    """

    replica: ReplicaId
    attempt: int
    mark: str
    main: str
    host: str
    address: str
    hosts: Mapping[str, str]
    gpus: tuple[int, ...] = ()
    environment: Mapping[str, str] = {}
    main_environment: Mapping[str, str] = {}
    main_defaults: Mapping[str, str] = {}
    volumes: Mapping[str, Path] = {}
    mounts: tuple[Mount, ...] = ()


def build_pod(pod: Mapping[str, Any], submission: Submission, context: PodContext) -> PodContainers:
    """Build the containers of ``pod``; raises :class:`UsageError` for a dangling reference."""
    spec = pod["spec"]
    node = os.uname().nodename
    source = EnvSource(pod, submission.objects, address=context.address, node=node)
    builder = _ContainerBuilder(submission, context, source, spec.get("securityContext") or {})
    containers = spec["containers"]
    # The API server turns a negative one into 1.
    grace = spec.get("terminationGracePeriodSeconds")
    named = (container for container in containers if container.get("name") == context.main)
    main = next(named, containers[0])
    return PodContainers(
        tuple(builder.build(container) for container in spec.get("initContainers") or ()),
        builder.build(main, context.main_environment, context.main_defaults),
        tuple(builder.build(container) for container in containers if container is not main),
        None if grace is None else grace if grace >= 0 else 1.0,
    )


def requested_gpus(template: Mapping[str, Any]) -> int:
    """Return the number of GPUs that all containers of a pod template request."""
    return sum(map(_container_gpus, list_containers(template)))


def _container_gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return int(parse_quantity(requested.get(GPU_RESOURCE, 0)))


class _ContainerBuilder:
    """Builds the containers of one pod, assigning its GPUs in order."""

    def __init__(
        self,
        submission: Submission,
        context: PodContext,
        source: EnvSource,
        security_context: Mapping[str, Any],
    ) -> None:
        self._submission = submission
        self._context = context
        self._source = source
        self._gpus = list(context.gpus)
        self._security_context = security_context

    def build(
        self,
        container: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> ReplicaContainer:
        context, image = self._context, self._submission.images.get(container.get("image") or "")
        first = {**context.environment, **(environment or {})}
        env = resolve_env(container, self._source, first)
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        args = tuple(expand_references(str(word), env.get) for word in words)
        directory = container.get("workingDir") or ""
        volumes = self._volume_mounts(container, env)
        if image is None:
            mounts = (*volumes, *context.mounts)
            own = (str(self._submission.directory), os.path.dirname(self._submission.python))
            replace_paths = partial(replace_mounted_paths, mounts=mounts, kept=own)
            args = tuple(map(replace_paths, args))
            env |= {
                name: replace_paths(env[name])
                for name in (entry["name"] for entry in container.get("env") or ())
                if name in env
            }
            args, env, directory = self._adapt_to_host(args, env, replace_paths(directory))
        else:
            volumes = self._add_project(volumes)
        return ReplicaContainer(
            replica=context.replica,
            attempt=context.attempt,
            name=str(container.get("name") or ""),
            mark=context.mark,
            args=args,
            environment=env,
            directory=directory,
            image=image.digest if image else "",
            limits=self._resource_limits(container),
            volumes=volumes,
            host=context.host,
            address=context.address,
            hosts=context.hosts,
            ports=_container_ports(container),
            arguments=bool(args) and not container.get("command"),
            defaults=defaults or {},
            **self._security_fields(container),
            **_find_handlers(container),
        )

    def _security_fields(self, container: Mapping[str, Any]) -> dict[str, Any]:
        context = {**self._security_context, **(container.get("securityContext") or {})}
        user, group = context.get("runAsUser"), context.get("runAsGroup")
        account = "" if user is None else str(user)
        return {
            "user": account if group is None else f"{account}:{group}",
            "non_root": bool(context.get("runAsNonRoot")),
        }

    def _adapt_to_host(
        self, args: tuple[str, ...], env: dict[str, str], directory: str
    ) -> tuple[tuple[str, ...], dict[str, str], str]:
        """Use the user's Python and project directory for a process."""
        python, project = self._submission.python, str(self._submission.directory)
        if python:
            path = env.get("PATH") or os.environ.get("PATH") or os.defpath
            env = {**env, "PATH": f"{os.path.dirname(python)}:{path}"}
            if args and args[0] in _PYTHONS:
                args = (python, *args[1:])
        if directory == PROJECT_DIRECTORY or directory.startswith(f"{PROJECT_DIRECTORY}/"):
            directory = project + directory.removeprefix(PROJECT_DIRECTORY)
        return args, env, os.path.join(project, directory) if directory else project

    def _resource_limits(self, container: Mapping[str, Any]) -> ResourceLimits:
        limits = (container.get("resources") or {}).get("limits") or {}
        number = _container_gpus(container)
        gpus, self._gpus = tuple(self._gpus[:number]), self._gpus[number:]
        return ResourceLimits(
            parse_quantity(limits["cpu"]) if "cpu" in limits else None,
            int(parse_quantity(limits["memory"])) if "memory" in limits else None,
            gpus,
        )

    def _volume_mounts(
        self, container: Mapping[str, Any], env: Mapping[str, str]
    ) -> tuple[Mount, ...]:
        return tuple(
            _volume_mount(mount, self._context.volumes, env)
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in self._context.volumes
        )

    def _add_project(self, volumes: tuple[Mount, ...]) -> tuple[Mount, ...]:
        """Return all mounts of a container; a volume at the project's path is not hidden by it."""
        hidden = any(mount.target.rstrip("/") == PROJECT_DIRECTORY for mount in volumes)
        target = MOVED_PROJECT_DIRECTORY if hidden else PROJECT_DIRECTORY
        mounts = (*volumes, Mount(target, self._submission.directory), *self._context.mounts)
        return tuple(
            # Without links, so that the engine notices one that a container makes.
            msgspec.structs.replace(mount, source=mount.source.resolve()) if mount.source else mount
            for mount in mounts
        )


def replace_mounted_paths(text: str, mounts: Iterable[Mount], kept: Iterable[str]) -> str:
    """Return a text of a process with the paths of what nothing mounts for it.

    A path is replaced as a whole, and not in the middle of another path or of an address. Those
    below ``kept``, and where the mounts come from, are paths of this machine already.
    """
    sources = {mount.target.rstrip("/"): str(mount.source) for mount in mounts}
    places = {path: path for path in (*kept, *sources.values())} | sources
    # Pods mount an emptyDir at /dev/shm to enlarge it; a process uses the host's.
    places = {path: place for path, place in places.items() if path not in ("", "/dev/shm")}
    targets = "|".join(re.escape(target) for target in sorted(places, key=len, reverse=True))
    if not targets:
        return text
    return re.sub(rf"(?<![\w./-])({targets})(?![\w.-])", lambda found: places[found[1]], text)


def _find_handlers(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the handlers of a container that can be run here."""
    hooks = container.get("lifecycle") or {}
    probes = {}
    for kind in ("startup", "liveness"):
        probe = container.get(f"{kind}Probe")
        if probe and not probe.get("exec"):
            break  # before a startup probe has succeeded, the liveness probe would stop a program
        if probe:
            probes[kind] = probe
    return {
        "post_start": hooks.get("postStart"),
        "pre_stop": hooks.get("preStop"),
        "probes": probes,
    }


def _volume_mount(
    mount: Mapping[str, Any], volumes: Mapping[str, Path], env: Mapping[str, str]
) -> Mount:
    source = volumes[mount["name"]]
    path = mount.get("subPath") or expand_references(mount.get("subPathExpr") or "", env.get)
    if path:
        if ".." in path.split("/") or path.startswith("/") or "$(" in path:
            raise UsageError(f"volume {mount['name']}: invalid path {path!r} in the volume")
        place = (source / path).resolve()
        if not place.is_relative_to(source.resolve()):
            raise UsageError(f"volume {mount['name']}: {path} is a link out of the volume")
        _make_directories(place, source)
        source = place
    return Mount(mount["mountPath"], source, readonly=bool(mount.get("readOnly")))


def _make_directories(place: Path, volume: Path) -> None:
    """Create what does not exist of a path in a volume, for the users of the volume."""
    if not place.exists():
        _make_directories(place.parent, volume)
        place.mkdir(exist_ok=True)
        place.chmod(volume.stat().st_mode & 0o777)


def _container_ports(container: Mapping[str, Any]) -> dict[str, int]:
    return {
        port.get("name") or f"port-{number}": int(port["containerPort"])
        for number, port in enumerate(container.get("ports") or ())
    }


# -- environment -----------------------------------------------------------------------------------


class EnvSource:
    """Resolves the references in the environment of one pod's containers.

    ``pod`` is the rendered pod, ``address`` its IP address and ``node`` the name of its machine.
    """

    def __init__(
        self, pod: Mapping[str, Any], objects: ManifestObjects, *, address: str, node: str
    ) -> None:
        self.objects = objects
        self._metadata = pod.get("metadata") or {}
        self._containers = list_containers(pod)
        self._fields = {
            "metadata.name": self._metadata.get("name", ""),
            "metadata.namespace": self._metadata.get("namespace", ""),
            "metadata.uid": self._metadata.get("uid", ""),
            "spec.nodeName": node,
            "spec.serviceAccountName": (pod.get("spec") or {}).get("serviceAccountName", "default"),
            "status.podIP": address,
            "status.podIPs": address,
            "status.hostIP": "127.0.0.1",
            "status.hostIPs": "127.0.0.1",
        }

    def find_container(
        self, reference: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the container that a ``resourceFieldRef`` names; without a name, its own."""
        name = reference.get("containerName")
        named = (container for container in self._containers if container.get("name") == name)
        found = next(named, None) if name else own
        if found is None:
            raise UsageError(f"resourceFieldRef: container {name!r} not found")
        return found

    def field(self, path: str) -> str:
        """Return a field of the pod (``fieldRef``); raises :class:`UsageError` if unknown."""
        if path in self._fields:
            return str(self._fields[path])
        match = _LABEL_PATH.fullmatch(path)
        if match is None:
            hint = "supported fields: " + ", ".join(sorted(self._fields))
            raise UsageError(f"fieldRef: unknown field {path!r}", hint=hint)
        return str((self._metadata.get(match[1]) or {}).get(match[2], ""))


def resolve_env(
    container: Mapping[str, Any], source: EnvSource, first: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a container; ``first`` are variables that it may override.

    Raises :class:`UsageError` for a reference to something that does not exist, unless it is
    optional.
    """
    env = dict(first)
    for entry in container.get("envFrom") or ():
        env.update(_env_from_object(entry, source))
    for entry in container.get("env") or ():
        value = _entry_value(entry, container, source, env)
        if value is not None:
            env[entry["name"]] = value
    return env


def _env_from_object(entry: Mapping[str, Any], source: EnvSource) -> dict[str, str]:
    prefix = entry.get("prefix", "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if reference := entry.get(field):
            data = object_data(source.objects, kind, reference, binary=False) or {}
            return {prefix + key: value.decode() for key, value in data.items()}
    return {}


def _entry_value(
    entry: Mapping[str, Any],
    container: Mapping[str, Any],
    source: EnvSource,
    before: Mapping[str, str],
) -> str | None:
    origin = entry.get("valueFrom")
    if not origin:
        return expand_references(str(entry.get("value") or ""), before.get)
    if reference := origin.get("fieldRef"):
        return source.field(reference["fieldPath"])
    if reference := origin.get("resourceFieldRef"):
        return _resource_field(reference, source.find_container(reference, container))
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if reference := origin.get(field):
            return _object_key(reference, kind, source)
    raise UsageError(f"variable {entry.get('name')}: unsupported valueFrom")


def _object_key(reference: Mapping[str, Any], kind: str, source: EnvSource) -> str | None:
    data = object_data(source.objects, kind, reference, binary=False)
    value = None if data is None else data.get(reference["key"])
    if value is None and not reference.get("optional"):
        raise UsageError(f"{kind} {reference.get('name')} has no key {reference['key']!r}")
    return None if value is None else value.decode()


def object_data(
    objects: ManifestObjects, kind: str, reference: Mapping[str, Any], *, binary: bool = True
) -> dict[str, bytes] | None:
    """Return the data of a ConfigMap or Secret; None if it does not exist and is optional.

    ``binary`` includes a ConfigMap's ``binaryData``, which variables cannot have. ``reference``
    has the keys ``name`` (``secretName`` in volumes) and ``optional``. Raises :class:`UsageError`
    if the object does not exist.
    """
    name = reference.get("name") or reference.get("secretName") or ""
    document = objects.get(f"{kind}/{name}")
    if document is None:
        if reference.get("optional"):
            return None
        raise UsageError(
            f"{kind} {name!r} not found", hint="add it to the same file, after a `---` line"
        )
    plain, encoded = ("stringData", "data") if kind == "Secret" else ("data", "binaryData")
    texts = (document.get(encoded) or {}) if binary or kind == "Secret" else {}
    data = {key: base64.b64decode(text) for key, text in texts.items()}
    return data | {key: str(text).encode() for key, text in (document.get(plain) or {}).items()}


def _resource_field(reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return a limit or a request; without a limit, what this machine has."""
    kind, _, name = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if kind == "limits":
        value = limits.get(name, _MACHINE_RESOURCES.get(name, lambda: 0)())
    else:
        value = requests.get(name, limits.get(name, 0))
    divisor = parse_quantity(reference.get("divisor") or 1) or 1
    return str(ceil(parse_quantity(value) / divisor))
