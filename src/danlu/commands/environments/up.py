"""Start the project's environment, which is built and created if needed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import msgspec

from danlu.commands.driver_check import check_driver
from danlu.commands.environments.manage import (
    default_name,
    environment_image_tag,
    find_environment,
    remove_environment,
    stop_environment,
)
from danlu.commands.project import Project
from danlu.commands.project_environment import find_project_environment
from danlu.commands.run import find_named_image, parse_volume
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    PortForward,
    ServiceSpec,
    check_environment_name,
)
from danlu.engine.port_forwarder import find_listener_conflict
from danlu.engine.supervisor_start import start_supervisor
from danlu.engine.types import ResourceLimits, VolumeMount
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import UsageError
from danlu.graph.progress import Progress
from danlu.store import Store, StoredImage
from danlu.util.files import private_directory
from danlu.util.human import parse_size
from danlu.util.locks import file_lock


@dataclass(frozen=True)
class UpOptions:
    """What the user asks of one environment; unset values leave what the build file says.

    Attributes:
        name: Empty for the project's name.
        volumes: ``SRC:DST[:ro]``.
        environment: ``K=V``, or ``K`` for this process's value.
        ports: ``[ADDRESS:][HOST:]PORT``.
        cpus: Number of cores, such as ``1.5``.
        memory: Bytes with a unit, such as ``16G``.
        recreate: Start over from the image, discarding the writable layer.
    """

    name: str = ""
    volumes: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    cpus: str = ""
    memory: str = ""
    shm_size: str = ""
    user: str = ""
    recreate: bool = False
    offline: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class UpResult:
    """The environment, which runs; ``created`` and ``started`` say what was done.

    ``notes`` are sentences for the user: an image that is older than the build file, a port that
    another program uses.
    """

    environment: EnvironmentDirectory
    created: bool = False
    started: bool = False
    notes: tuple[str, ...] = field(default=())


def start_environment(
    target: Project | Path,
    *,
    settings: Settings,
    options: UpOptions,
    progress: Progress,
    image: str = "",
) -> UpResult:
    """Start the environment of ``target``; do nothing if it runs.

    ``target`` is a project, or a directory to mount if ``image`` names a local image. Raises
    :class:`~danlu.errors.DanluError` if it could not be built or started.
    """
    if isinstance(target, Path):
        stored, directory, runtime = find_named_image(image, settings), target, RuntimeSettings()
    else:
        stored, runtime = find_project_environment(
            target, settings, progress, offline=options.offline, frozen=options.frozen
        )
        directory = target.directory
        check_driver(target, progress, required=False)
    name = check_environment_name(options.name or default_name(target))
    root = settings.paths.environments
    with file_lock(root / f"{name}.lock"):
        environment = EnvironmentDirectory(root / name)
        wanted = _build_spec(name, target, directory, stored, runtime, options)
        notes: list[str] = []
        existing = _read_existing(environment, wanted)
        if existing is not None and options.recreate:
            stop_environment(environment)
            remove_environment(environment, settings)
            existing = None
        if existing is None:
            _create_environment(environment, wanted, settings)
        elif environment.is_running():
            notes += _explain_differences(existing, wanted, running=True)
        else:
            notes += _explain_differences(existing, wanted, running=False)
            kept = msgspec.structs.replace(wanted, image=existing.image, created=existing.created)
            environment.write_spec(kept)
        if not environment.is_running():
            notes += _describe_port_conflicts(wanted)
        started = start_supervisor(environment, settings.paths)
    return UpResult(environment, existing is None, started, tuple(notes))


def restart_environment(name: str, settings: Settings) -> UpResult:
    """Start a stopped environment as it was started last; do nothing if it runs."""
    environment = find_environment(name, settings.paths)
    with file_lock(settings.paths.environments / f"{name}.lock"):
        notes = (
            () if environment.is_running() else _describe_port_conflicts(environment.read_spec())
        )
        started = start_supervisor(environment, settings.paths)
    return UpResult(environment, started=started, notes=tuple(notes))


def _read_existing(
    environment: EnvironmentDirectory, wanted: EnvironmentSpec
) -> EnvironmentSpec | None:
    """Return the spec of an environment of that name, which must belong to the same project."""
    try:
        spec = environment.read_spec()
    except FileNotFoundError:
        return None
    if spec.project != wanted.project:
        raise UsageError(
            f"environment {environment.name} belongs to {spec.project}",
            hint="choose another name with --name",
        )
    return spec


def _create_environment(
    environment: EnvironmentDirectory, spec: EnvironmentSpec, settings: Settings
) -> None:
    """Create the directory and protect the image from garbage collection."""
    with Store.open(settings.paths.store) as store:
        store.tag(environment_image_tag(environment.name), spec.image)
    place = private_directory(settings.paths.environments, ".new")
    EnvironmentDirectory(place).write_spec(spec)
    place.rename(environment.directory)


def _build_spec(
    name: str,
    target: Project | Path,
    directory: Path,
    image: StoredImage,
    runtime: RuntimeSettings,
    options: UpOptions,
) -> EnvironmentSpec:
    volumes = (parse_volume(text) for text in options.volumes)
    mounts = [
        VolumeMount(mount.source, mount.target, mount.readonly) for mount in volumes if mount.source
    ]
    return EnvironmentSpec(
        name=name,
        image=image.digest,
        created=datetime.now(UTC),
        project=str(directory),
        target=f"{target.file}:{target.target}" if isinstance(target, Project) else "",
        mounts=tuple(mounts),
        environment=dict(_parse_variable(text) for text in options.environment),
        user=options.user,
        limits=ResourceLimits(
            cpu=_parse_cores(options.cpus) if options.cpus else None,
            memory=parse_size(options.memory) if options.memory else None,
        ),
        shm_size=parse_size(options.shm_size) if options.shm_size else 0,
        init=runtime.init,
        services=name_services(runtime.daemons),
        ports=tuple(parse_port(text) for text in options.ports),
    )


def name_services(daemons: tuple[tuple[str, ...], ...]) -> tuple[ServiceSpec, ...]:
    """Name programs after their files; a second one of a name gets a number."""
    services: list[ServiceSpec] = []
    for args in daemons:
        base = re.sub(r"[^A-Za-z0-9_.-]", "-", os.path.basename(args[0])) or "service"
        same = sum(service.name.partition("#")[0] == base for service in services)
        services.append(ServiceSpec(f"{base}#{same + 1}" if same else base, args))
    return tuple(services)


def parse_port(text: str) -> PortForward:
    """Parse ``[ADDRESS:][HOST:]PORT``; raise :class:`UsageError` if it is invalid."""
    words = text.rsplit(":", 2)
    address = words.pop(0).strip("[]") if len(words) == 3 else "127.0.0.1"
    try:
        ip_address(address)
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < 65536 for number in numbers):
        raise UsageError(f"invalid port {text!r}", hint="use PORT, HOST:PORT or ADDRESS:HOST:PORT")
    return PortForward(numbers[-1], numbers[0], address)


def _parse_cores(text: str) -> float:
    try:
        cores = float(text)
    except ValueError:
        cores = 0
    if not 0 < cores < float("inf"):
        raise UsageError(f"invalid number of cores {text!r}", hint="use a number such as 2 or 0.5")
    return cores


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"invalid variable {text!r}", hint="use NAME=VALUE or NAME")
    return name, value if equals else os.environ.get(name, "")


def _explain_differences(
    existing: EnvironmentSpec, wanted: EnvironmentSpec, *, running: bool
) -> list[str]:
    notes = []
    if existing.image != wanted.image:
        notes.append(
            f"{existing.name} uses an older image than the build file describes;"
            " `danlu up --recreate` starts over with the new one and discards changes inside"
        )
    settings = ("mounts", "environment", "user", "limits", "shm_size", "init", "services", "ports")
    changed = [name for name in settings if getattr(existing, name) != getattr(wanted, name)]
    if running and changed:
        notes.append(
            f"{existing.name} runs with other {' and '.join(changed)}; `danlu stop {existing.name}`"
            " and `danlu up` apply the new ones"
        )
    return notes


def _describe_port_conflicts(spec: EnvironmentSpec) -> list[str]:
    conflicts = []
    for port in spec.ports:
        reason = find_listener_conflict(port)
        if reason:
            conflicts.append(
                f"port {port.host_port} of {port.address} cannot be used: {reason};"
                " find the program with `ss -ltnp`"
            )
    return conflicts
