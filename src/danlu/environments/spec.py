"""Build the spec of an environment from the build file and the user's options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from danlu.engine.container_options import (
    parse_shm_size,
    parse_variable,
    parse_volume,
    select_mounts,
)
from danlu.engine.environment_directory import (
    INIT_LOG,
    EnvironmentSpec,
    NamedVolume,
    PortForward,
    ServiceSpec,
)
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.registry import find_engine
from danlu.engine.runtime_mounts import resolve_mounts
from danlu.engine.ssh.authorized_keys import read_authorized_keys
from danlu.environment.runtime_settings import ExposedPort, RuntimeSettings
from danlu.environments.jupyter import SERVICE_NAME as JUPYTER_SERVICE
from danlu.environments.jupyter import add_jupyter
from danlu.errors import UsageError
from danlu.project.project import Project
from danlu.sandbox.types import Mount, ResourceLimits
from danlu.util.config import NetworkName
from danlu.util.danlu_program import DEFAULT_ENGINE
from danlu.util.human import parse_size
from danlu.util.paths import Paths

SSH_PORT, SSH_SERVICE = 22, "ssh"

#: Logs and services that do not come from ``runtime.daemon``.
_RESERVED_NAMES = (INIT_LOG, JUPYTER_SERVICE)

_VOLUME_NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class UpOptions:
    """The user's options for an environment; unset ones keep the build file's settings.

    Attributes:
        name: Empty for the project's name.
        volumes: ``SRC:DST[:ro]``.
        environment: ``K=V``, or ``K`` for this process's value.
        ports: ``[ADDRESS:][HOST:]PORT``.
        cpus: Number of cores, such as ``1.5``.
        memory: Bytes with a unit, such as ``16G``.
        gpus: ``all``, ``none``, a number of GPUs, or their indexes and UUIDs.
        shm_size: Bytes with a unit.
        allow_mounts: Whether included repositories may mount files of this machine.
        recreate: Start over from the image, discarding the writable layer.
        grace: Seconds that the programs of an earlier one have to end when it is recreated.
        engine: What runs it; empty for what runs it already, or the context's engine.
        network: ``host`` or ``private``; empty for the configured one.
        ssh_port: ``[ADDRESS:]PORT`` at which to serve SSH; empty for none.
        authorized_keys: A file of public keys that may log in there; empty for none.
    """

    name: str = ""
    volumes: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    cpus: str = ""
    memory: str = ""
    gpus: str = ""
    shm_size: str = ""
    user: str = ""
    allow_mounts: bool = False
    recreate: bool = False
    grace: float = 10.0
    offline: bool = False
    frozen: bool = False
    engine: str = ""
    network: NetworkName | None = None
    ssh_port: str = ""
    authorized_keys: str = ""


def build_spec(
    name: str,
    target: Project | Path | None,
    image: str,
    runtime: RuntimeSettings,
    options: UpOptions,
    paths: Paths,
    *,
    engine: str = DEFAULT_ENGINE,
    context: str = "",
    network: NetworkName = "host",
    gpus: str = "",
    earlier: EnvironmentSpec | None,
) -> EnvironmentSpec:
    """Return how the environment of ``target`` is started, from the image with that digest.

    ``gpus`` are those of the options or the build file
    (:func:`danlu.engine.gpu_options.decide_gpus`). ``context`` is recorded for a cluster's
    environments. ``earlier`` is how it was started last, whose
    ports and token it keeps. Raises :class:`UsageError` for an invalid option, and for a mount
    without a source on this machine.
    """
    directory = Path(name_directory(target) or "/")
    named: tuple[NamedVolume, ...] = ()
    given: tuple[Mount, ...] = ()
    features = find_engine(engine).features
    if features.mounts_files:
        given = tuple(parse_volume(text) for text in options.volumes)
    else:
        named = tuple(parse_named_volume(text) for text in options.volumes)
    declared = resolve_mounts(
        select_mounts(runtime.mounts, given), directory, paths, allow_included=options.allow_mounts
    )
    shm_size = parse_shm_size(options.shm_size) if options.shm_size else 0
    spec = EnvironmentSpec(
        name=name,
        image=image,
        created=datetime.now(UTC),
        project=name_directory(target),
        target=f"{target.file}:{target.target}" if isinstance(target, Project) else "",
        mounts=(*declared, *given),
        environment=dict(parse_variable(text) for text in options.environment),
        user=options.user,
        limits=ResourceLimits(
            cpu=_parse_cores(options.cpus) if options.cpus else None,
            memory=_parse_memory(options.memory) if options.memory else None,
        ),
        gpus=gpus,
        shares_gpus=bool(gpus and not options.gpus),
        shm_size=shm_size or (runtime.shm_size or 0) << 20,
        init=runtime.init,
        services=name_services(runtime.daemons),
        ports=_list_ports(runtime.ports, options.ports),
        engine=engine,
        context=context if features.is_cluster else "",
        volumes=named,
        network=network,
        ssh_port=_parse_ssh_port(options.ssh_port) if options.ssh_port else None,
        authorized_keys=_read_keys(options),
    )
    if parse_gpus(gpus) and features.gpus == "none":
        raise missing_feature(engine, "GPUs")
    if spec.limits != ResourceLimits() and not features.limits:
        raise missing_feature(engine, "limits of CPU and memory")
    return add_jupyter(spec, runtime.jupyter, earlier) if runtime.jupyter else spec


def missing_feature(engine: str, what: str) -> UsageError:
    """Return the error for what environments of an engine cannot have."""
    return UsageError(
        f"environments of the {engine} engine cannot have {what}",
        hint="use danlu's own engine: `--on local`",
    )


def name_directory(target: Project | Path | None) -> str:
    """Return the directory that is mounted as the project; empty for none."""
    directory = target.directory if isinstance(target, Project) else target
    return str(directory) if directory is not None else ""


def _list_ports(
    declared: tuple[ExposedPort, ...], given: tuple[str, ...]
) -> tuple[PortForward, ...]:
    """Return the ports of the command line, then those of the build file for other ports."""
    ports = [parse_port(text) for text in given]
    known = {port.port for port in ports}
    ports += [_expose_port(port) for port in declared if port.port not in known]
    _check_host_ports(ports)
    return tuple(ports)


def _check_host_ports(ports: list[PortForward]) -> None:
    seen: dict[tuple[str, int], PortForward] = {}
    for port in ports:
        place = port.address, port.host_port
        first = seen.setdefault(place, port)
        if first.port != port.port:
            raise UsageError(
                f"ports {first.port} and {port.port} cannot both be reached at"
                f" {port.address}:{port.host_port}",
                hint="choose another one with --port HOST:PORT",
            )


def _expose_port(port: ExposedPort) -> PortForward:
    # Host port 0 means any, so use the same one: the environment shares the host's network.
    return PortForward(port.port, port.host_port or port.port, port.address, port.service)


def name_services(daemons: tuple[tuple[str, ...], ...]) -> tuple[ServiceSpec, ...]:
    """Name programs after their files; a second one of a name gets a number."""
    services: list[ServiceSpec] = []
    for args in daemons:
        base = re.sub(r"[^A-Za-z0-9_.-]", "-", os.path.basename(args[0])) or "service"
        same = sum(service.name.partition("#")[0] == base for service in services)
        # A program called `jupyter` is not the server of config.jupyter, which has a token.
        same += base in _RESERVED_NAMES
        services.append(ServiceSpec(f"{base}#{same + 1}" if same else base, args))
    return tuple(services)


def parse_named_volume(text: str) -> NamedVolume:
    """Parse ``NAME:DST[:ro|:rw]``; raise :class:`UsageError` if it is invalid."""
    parts = text.split(":")
    mode = parts.pop() if len(parts) == 3 else "rw"
    if len(parts) != 2 or mode not in ("ro", "rw") or not parts[1].startswith("/"):
        raise UsageError(f"invalid volume {text!r}", hint="use NAME:/DST or NAME:/DST:ro")
    if not _VOLUME_NAME.fullmatch(parts[0]):
        raise UsageError(
            f"cannot mount {parts[0]!r}: nodes do not have this machine's files",
            hint="name a volume of the cluster with lower-case letters, digits and '-'",
        )
    return NamedVolume(parts[0], parts[1], readonly=mode == "ro")


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


def _parse_ssh_port(text: str) -> PortForward:
    """Parse ``[ADDRESS:]PORT``."""
    address, _, number = text.rpartition(":")
    try:
        forward = parse_port(f"{address}:{number}:{number}" if address else number)
    except UsageError:
        raise UsageError(f"invalid SSH port {text!r}", hint="use PORT or ADDRESS:PORT") from None
    return PortForward(SSH_PORT, forward.host_port, forward.address, SSH_SERVICE)


def _read_keys(options: UpOptions) -> tuple[str, ...]:
    if not options.authorized_keys:
        return ()
    if not options.ssh_port:
        raise UsageError("--authorized-keys needs --ssh-port", hint="add --ssh-port 2222")
    return read_authorized_keys(Path(options.authorized_keys).expanduser())


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
    """Return notes on how an environment differs from what the user now wants."""
    notes = []
    if existing.image != wanted.image:
        notes.append(
            f"{existing.name} uses an older image than the build file describes;"
            " `danlu up --recreate` starts over with the new one and discards changes inside"
        )
    settings = (
        *("mounts", "volumes", "environment", "user", "limits", "gpus", "shm_size", "init"),
        *("services", "ports", "network", "ssh_port", "authorized_keys"),
    )
    changed = [name for name in settings if getattr(existing, name) != getattr(wanted, name)]
    if running and changed:
        notes.append(
            f"{existing.name} runs with other {' and '.join(changed)}; `danlu stop {existing.name}`"
            " and `danlu up` apply the new ones"
        )
    return notes
