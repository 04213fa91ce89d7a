"""How an environment is started: what the build file says, and what the user asks for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from danlu.commands.container_options import (
    parse_shm_size,
    parse_variable,
    parse_volume,
    select_mounts,
)
from danlu.commands.environments.jupyter import add_jupyter
from danlu.commands.project import Project
from danlu.commands.runtime_mounts import resolve_mounts
from danlu.engine.environment_directory import EnvironmentSpec, PortForward, ServiceSpec
from danlu.engine.types import ResourceLimits, VolumeMount
from danlu.environment.runtime_settings import ExposedPort, RuntimeSettings
from danlu.errors import UsageError
from danlu.util.human import parse_size
from danlu.util.paths import Paths


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
        shm_size: Bytes with a unit.
        allow_mounts: Whether included repositories may mount files of this machine.
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
    allow_mounts: bool = False
    recreate: bool = False
    offline: bool = False
    frozen: bool = False


def build_spec(
    name: str,
    target: Project | Path,
    image: str,
    runtime: RuntimeSettings,
    options: UpOptions,
    paths: Paths,
    *,
    earlier: EnvironmentSpec | None,
) -> EnvironmentSpec:
    """Return how the environment of ``target`` is started, from the image with that digest.

    ``earlier`` is how it was started last, whose ports and token it keeps. Raises
    :class:`UsageError` for an invalid option, and for a mount without a source on this machine.
    """
    directory = target.directory if isinstance(target, Project) else target
    given = tuple(parse_volume(text) for text in options.volumes)
    declared = resolve_mounts(
        select_mounts(runtime.mounts, given), directory, paths, allow_included=options.allow_mounts
    )
    shm_size = parse_shm_size(options.shm_size) if options.shm_size else 0
    spec = EnvironmentSpec(
        name=name,
        image=image,
        created=datetime.now(UTC),
        project=str(directory),
        target=f"{target.file}:{target.target}" if isinstance(target, Project) else "",
        mounts=tuple(
            VolumeMount(mount.source, mount.target, mount.readonly)
            for mount in (*declared, *given)
            if mount.source is not None
        ),
        environment=dict(parse_variable(text) for text in options.environment),
        user=options.user,
        limits=ResourceLimits(
            cpu=_parse_cores(options.cpus) if options.cpus else None,
            memory=_parse_memory(options.memory) if options.memory else None,
        ),
        shm_size=shm_size or (runtime.shm_size or 0) << 20,
        init=runtime.init,
        services=name_services(runtime.daemons),
        ports=_list_ports(runtime.ports, options.ports),
    )
    return add_jupyter(spec, runtime.jupyter, earlier) if runtime.jupyter else spec


def _list_ports(
    declared: tuple[ExposedPort, ...], given: tuple[str, ...]
) -> tuple[PortForward, ...]:
    """Return the ports of the command line, then those of the build file for other ports."""
    ports = [parse_port(text) for text in given]
    known = {port.port for port in ports}
    ports += [_expose_port(port) for port in declared if port.port not in known]
    return tuple(ports)


def _expose_port(port: ExposedPort) -> PortForward:
    # Host port 0 is any: the environment shares the host's network, so its own will do.
    return PortForward(port.port, port.host_port or port.port, port.address, port.service)


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


def _parse_memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from error


def explain_differences(
    existing: EnvironmentSpec, wanted: EnvironmentSpec, *, running: bool
) -> list[str]:
    """Return sentences about an environment that is not as the user now wants it."""
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
