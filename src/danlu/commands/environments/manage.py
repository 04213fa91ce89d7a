"""Find, list, stop and remove environments."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from danlu.commands.environments.ssh_hosts import remove_ssh_host
from danlu.commands.project import DEFAULT_FUNCTION, Project
from danlu.commands.settings import Settings
from danlu.engine.environment_control import StopRequest, request_from_supervisor
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    check_environment_name,
    list_environments,
)
from danlu.engine.procfs import (
    descendants,
    find_namespace_members,
    measure_usage,
    read_command,
)
from danlu.engine.types import ResourceUsage
from danlu.errors import OutsideError, UsageError
from danlu.sandbox import userns
from danlu.store import Store
from danlu.util.files import remove_tree
from danlu.util.fork import run_in_child
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from danlu.util.suggest import closest_match

_POLL_SECONDS = 0.02
_STOP_MARGIN_SECONDS = 15.0
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class EnvironmentView:
    """What is known of one environment."""

    name: str
    spec: EnvironmentSpec
    state: EnvironmentState

    def to_json(self) -> dict[str, Any]:
        """Return the fields that scripts can rely on."""
        started, ended = self.state.started, self.state.ended
        return {
            "name": self.name,
            "phase": self.state.phase,
            "reason": self.state.reason,
            "project": self.spec.project,
            "target": self.spec.target,
            "image": self.spec.image,
            "created": self.spec.created.isoformat(),
            "started": started.isoformat() if started else None,
            "ended": ended.isoformat() if ended else None,
            "warnings": list(self.state.warnings),
            "services": [
                {
                    "name": service.name,
                    "running": service.running,
                    "restarts": service.restarts,
                    "exit_code": service.exit_code,
                    "reason": service.reason,
                }
                for service in self.state.services
            ],
            "ports": [
                {
                    "port": port.port,
                    "address": port.address,
                    "host_port": port.host_port,
                    "service": port.service,
                }
                for port in self.spec.ports
            ],
        }


@dataclass(frozen=True)
class ProcessRow:
    """A process of an environment: host process id, cores used, bytes of memory, command line."""

    pid: int
    cpu: float
    memory: int
    command: str


def find_environment(name: str, paths: Paths) -> EnvironmentDirectory:
    """Return the environment called ``name``; raise :class:`UsageError` if there is none."""
    environment = EnvironmentDirectory(paths.environments / name)
    if "/" not in name and environment.exists():
        return environment
    names = [found.name for found in list_environments(paths.environments)]
    match = closest_match(name, names)
    raise UsageError(
        f"environment {name} not found",
        hint=f"did you mean {match}?"
        if match
        else "`danlu ps` lists environments, `danlu up` starts the project's",
    )


def default_name(target: Project | Path) -> str:
    """Return the name of a project's environment: its directory, and the function if not build."""
    directory = target if isinstance(target, Path) else target.directory
    words = [directory.name]
    if isinstance(target, Project) and target.target != DEFAULT_FUNCTION:
        words.append(target.target)
    text = re.sub(r"[^a-z0-9_.-]+", "-", "-".join(words).lower()).strip("-._")
    return text[:63] or "environment"


def list_environment_views(paths: Paths) -> Iterator[EnvironmentView]:
    """Yield all environments of this machine, by name."""
    for environment in list_environments(paths.environments):
        yield read_environment_view(environment)


def read_environment_view(environment: EnvironmentDirectory) -> EnvironmentView:
    """Return what is known of an environment."""
    return EnvironmentView(environment.name, environment.read_spec(), environment.read_state())


def stop_environment(environment: EnvironmentDirectory, *, grace: float = 10.0) -> bool:
    """Stop an environment and wait until it has stopped; return whether it was running.

    Its writable layer stays. Raises :class:`OutsideError` if it does not stop.
    """
    if not environment.is_running():
        return False
    deadline = time.monotonic() + grace + _STOP_MARGIN_SECONDS
    requested = False
    while environment.is_running():
        # A supervisor does not answer before the container runs, and after it has ended.
        with suppress(UsageError):
            if not requested:
                request_from_supervisor(environment, StopRequest(grace))
                requested = True
        if time.monotonic() > deadline:
            raise OutsideError(
                f"environment {environment.name} does not stop",
                hint=f"see {environment.supervisor_log}",
            )
        time.sleep(_POLL_SECONDS)
    return True


def list_user_programs(environment: EnvironmentDirectory) -> list[str]:
    """Return the commands that stopping would end, services and waiting processes aside."""
    state = environment.read_state()
    if state.container is None:
        return []
    services = {service.pid for service in state.services if service.pid is not None}
    served = {pid for service in services for pid in (service, *descendants(service))}
    commands = [
        read_command(pid)
        for pid in _container_processes(state)
        if pid not in served and pid != state.container
    ]
    return [command for command in commands if command and not command.startswith("sleep 86400")]


def measure_processes(environment: EnvironmentDirectory) -> list[ProcessRow]:
    """Return the processes of a running environment, by memory; CPU is measured for 0.5 s."""
    state = environment.read_state()
    before = {pid: measure_usage([pid]) for pid in _container_processes(state)}
    time.sleep(_SAMPLE_SECONDS)
    rows = []
    for pid, earlier in before.items():
        now = measure_usage([pid])
        if now is not None:
            rows.append(ProcessRow(pid, _core_share(earlier, now), now.memory, read_command(pid)))
    return sorted(rows, key=lambda row: -row.memory)


def remove_environment(environment: EnvironmentDirectory, settings: Settings) -> None:
    """Remove a stopped environment and its writable layer.

    Forks, so the process must not have other threads.
    """
    name = environment.name
    with Store.open(settings.paths.store) as store:
        store.untag(environment_image_tag(name))
    # Gone from lists at once, even if removing the files is interrupted.
    remove_ssh_host(name, settings)
    grave = environment.directory.with_name(f".removed-{name}-{time.time_ns()}")
    environment.directory.rename(grave)

    def remove_files() -> None:
        # They may belong to other users of the container.
        userns.enter(settings.paths)
        remove_tree(grave)

    run_in_child(remove_files)


def rename_environment(old: str, new: str, settings: Settings) -> None:
    """Rename a stopped environment; its keys for SSH are made again.

    Raises :class:`UsageError` if it runs, or if the new name is invalid or taken.
    """
    check_environment_name(new)
    root = settings.paths.environments
    # Both locks in one order, so that two renames never wait for each other.
    first, second = sorted((old, new))
    if first == second:
        raise UsageError(f"environment {old} has that name already")
    with file_lock(root / f"{first}.lock"), file_lock(root / f"{second}.lock"):
        environment = find_environment(old, settings.paths)
        renamed = EnvironmentDirectory(root / new)
        if environment.is_running():
            raise UsageError(
                f"environment {old} is running", hint=f"stop it first with `danlu stop {old}`"
            )
        if renamed.exists():
            raise UsageError(f"environment {new} exists already")
        spec = environment.read_spec()
        with Store.open(settings.paths.store) as store:
            store.tag(environment_image_tag(new), spec.image)
        remove_ssh_host(old, settings)
        remove_tree(environment.directory / "ssh")
        environment.write_spec(msgspec.structs.replace(spec, name=new))
        environment.directory.rename(renamed.directory)
        with Store.open(settings.paths.store) as store:
            store.untag(environment_image_tag(old))


def take_down(name: str, settings: Settings, *, grace: float = 10.0) -> None:
    """Stop and remove an environment; nothing of it stays."""
    environment = find_environment(name, settings.paths)
    with file_lock(settings.paths.environments / f"{name}.lock"):
        find_environment(name, settings.paths)  # another process may have removed it meanwhile
        stop_environment(environment, grace=grace)
        remove_environment(environment, settings)


def environment_image_tag(name: str) -> str:
    """Return the name that keeps an environment's image in the store."""
    return f"danlu.local/environment/{name}:current"


def seconds_since(moment: datetime | None, now: datetime) -> float:
    """Return the seconds since ``moment``, 0 if it is None."""
    return (now - moment).total_seconds() if moment else 0.0


def _container_processes(state: EnvironmentState) -> list[int]:
    """Return the host's process ids of the container's processes.

    Programs that users start are children of the OCI runtime, so they are found by the namespace
    that they share with the first process.
    """
    if state.container is None:
        return []
    return find_namespace_members(state.container)


def _core_share(earlier: ResourceUsage | None, now: ResourceUsage) -> float:
    return (now.cpu - earlier.cpu) / _SAMPLE_SECONDS if earlier is not None else 0.0
