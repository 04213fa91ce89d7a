"""Find, list, stop and remove environments."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from danlu.engine.contexts import (
    Context,
    is_same_place,
    read_contexts,
)
from danlu.engine.environment_control import StopRequest, request_from_supervisor
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    check_environment_name,
    list_environments,
    lock_environment,
)
from danlu.engine.registry import find_engine, name_engine_context
from danlu.engine.resource_allocator import ledger_file, read_gpu_owners
from danlu.engine.settings import Settings
from danlu.engine.ssh.ssh_config import host_name
from danlu.environments.ssh_hosts import configure_ssh, remove_ssh_host
from danlu.errors import OutsideError, StoreError, UsageError
from danlu.project.project import DEFAULT_FUNCTION, Project
from danlu.sandbox import userns
from danlu.store import Store
from danlu.util.danlu_program import CALLER_DIRECTORY_VARIABLE, DEFAULT_ENGINE, LOCAL_CONTEXT
from danlu.util.files import remove_tree
from danlu.util.paths import Paths
from danlu.util.suggest import closest_match

_REMOVED_PREFIX = ".removed-"
_POLL_SECONDS = 0.02
_STOP_MARGIN_SECONDS = 15.0


@dataclass(frozen=True)
class EnvironmentView:
    """What is known of one environment.

    Attributes:
        assigned_gpus: Indexes of the GPUs that danlu has given it while it runs.
    """

    name: str
    spec: EnvironmentSpec
    state: EnvironmentState
    assigned_gpus: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields that scripts can rely on."""
        started, ended = self.state.started, self.state.ended
        return {
            "name": self.name,
            "phase": self.state.phase,
            "reason": self.state.reason,
            "stopped_by_user": self.state.stopped_by_user,
            "project": self.spec.project,
            "target": self.spec.target,
            "image": self.spec.image,
            "engine": self.spec.engine,
            "context": find_context_name(self.spec),
            "gpus": self.spec.gpus or "none",
            "assigned_gpus": list(self.assigned_gpus),
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
                for port in self.spec.listed_ports
            ],
        }


@dataclass(frozen=True)
class DamagedEnvironmentView:
    """What is known of an environment whose spec cannot be read."""

    name: str
    error: StoreError

    def to_json(self) -> dict[str, Any]:
        """Return the fields of :meth:`EnvironmentView.to_json` that are known, and the hint."""
        return {
            "name": self.name,
            "phase": "Damaged",
            "reason": self.error.message,
            "hint": self.error.hint,
            "stopped_by_user": False,
            "project": "",
            "target": "",
            "image": "",
            "engine": "",
            "context": LOCAL_CONTEXT,
            "gpus": "none",
            "assigned_gpus": [],
            "created": None,
            "started": None,
            "ended": None,
            "warnings": [],
            "services": [],
            "ports": [],
        }


def find_environment(name: str, paths: Paths) -> EnvironmentDirectory:
    """Return the environment called ``name``; raise :class:`UsageError` if it does not exist."""
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


def find_own_environment(target: Project | Path, paths: Paths) -> EnvironmentDirectory:
    """Return the environment of a project, or of a directory without a build file.

    It is the one with :func:`default_name`, else the only one, which was renamed or got another
    name from the start. Raises :class:`UsageError` if it has none or several.
    """
    directory = target if isinstance(target, Path) else target.directory
    # `danlu up --image` needs no build file, and has no target.
    targets = {"", f"{target.file}:{target.target}" if isinstance(target, Project) else ""}
    default = EnvironmentDirectory(paths.environments / default_name(target))
    owner = str(directory)
    if default.exists():
        try:
            owner = default.read_spec().project
        except StoreError:
            return default  # a damaged one can be removed
        if owner == str(directory):
            return default
    names = [
        view.name
        for view in list_environment_views(paths)
        if isinstance(view, EnvironmentView)
        and (view.spec.project, view.spec.target in targets) == (str(directory), True)
    ]
    if len(names) == 1:
        return EnvironmentDirectory(paths.environments / names[0])
    if names:
        raise UsageError(
            f"{directory} has several environments: {', '.join(names)}", hint="name one of them"
        )
    if owner != str(directory):
        raise UsageError(
            f"environment {default.name} belongs to {owner}",
            hint="name one that `danlu ps` lists, or start one with `danlu up --name NAME`",
        )
    raise UsageError(
        f"no environment of {os.environ.get(CALLER_DIRECTORY_VARIABLE, directory)} found",
        hint="name one that `danlu ps` lists, or start one with `danlu up`",
    )


def check_new_name(name: str, paths: Paths) -> None:
    """Raise :class:`UsageError` if an environment must not be created with that name.

    ``a.b`` has the same SSH host as ``a`` in a context called ``b``. Existing ones keep it.
    """
    check_environment_name(name)
    for context, place in read_contexts(paths).contexts.items():
        if place.is_remote and name.endswith(f".{context}"):
            other = name.removesuffix(f".{context}")
            raise UsageError(
                f"the SSH host {host_name(name)} belongs to environment {other} of context"
                f" {context}",
                hint="choose another name, `danlu up` takes it with --name",
            )


def check_new_context(context: str, paths: Paths) -> None:
    """Raise :class:`UsageError` if an environment of this machine has an SSH host of the context.

    See :func:`check_new_name`.
    """
    for environment in list_environments(paths.environments):
        if environment.name.endswith(f".{context}"):
            raise UsageError(
                f"environment {environment.name} of this machine has an SSH host of context"
                f" {context}",
                hint="choose another name for the context, or rename the environment with"
                " `danlu rename`",
            )


def is_in_context(spec: EnvironmentSpec, named: tuple[str, Context], paths: Paths) -> bool:
    """Return whether an environment of this machine is in a context, given with its name.

    One of an earlier version, which recorded no context, is in every context of its engine.
    """
    name, context = named
    if spec.engine != context.engine_name:
        return False
    return not spec.context or is_same_place(spec.context, name, paths)


def find_context_name(spec: EnvironmentSpec) -> str:
    """Return the name of the context that an environment of this machine is in."""
    return spec.context or name_engine_context(spec.engine)


def list_environment_views(paths: Paths) -> Iterator[EnvironmentView | DamagedEnvironmentView]:
    """Yield all environments of this machine, by name."""
    for environment in list_environments(paths.environments):
        try:
            yield read_environment_view(environment)
        except StoreError as error:
            yield DamagedEnvironmentView(environment.name, error)
        except FileNotFoundError:
            continue  # it is being removed


def read_environment_view(environment: EnvironmentDirectory) -> EnvironmentView:
    """Return what is known of an environment."""
    spec = environment.read_spec()
    gpus: tuple[int, ...] = ()
    if spec.gpus:
        gpus = read_gpu_owners(ledger_file()).get(environment.directory, ())
    return EnvironmentView(environment.name, spec, environment.read_state(), gpus)


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
    state = environment.read_state()
    if state.phase == "Failed":
        raise OutsideError(f"environment {environment.name} has stopped, but {state.reason}")
    return True


def remove_environment(
    environment: EnvironmentDirectory, settings: Settings, *, keep_image: str = ""
) -> None:
    """Remove a stopped environment and its writable layer.

    Its engine keeps the image with the digest ``keep_image``. Forks, so the process must not have
    other threads.
    """
    name = environment.name
    try:
        engine = environment.read_spec().engine
    except StoreError:
        engine = DEFAULT_ENGINE  # it is damaged: there are only its files
    find_engine(engine).load_commands().remove_container(environment, keep_image)
    with Store.open(settings.paths.store) as store:
        store.untag(environment_image_tag(name))
    # Gone from lists at once, even if removing the files is interrupted.
    remove_ssh_host(name, settings)
    _remove_directory(environment, settings)


def discard_incomplete(environment: EnvironmentDirectory, settings: Settings) -> None:
    """Remove a directory that is not an environment, which would block its name.

    An interrupted `danlu up` left it. The caller holds the environment's lock. Raises
    :class:`OutsideError` if a supervisor runs in it and does not stop.
    """
    if environment.directory.exists() and not environment.exists():
        stop_environment(environment)
        _remove_directory(environment, settings)


def _remove_directory(environment: EnvironmentDirectory, settings: Settings) -> None:
    name = environment.name
    grave = environment.directory.with_name(f"{_REMOVED_PREFIX}{name}-{time.time_ns()}")
    environment.directory.rename(grave)

    def remove_files() -> None:
        # They may belong to other users of the container.
        remove_tree(grave)
        # Those that an interrupted command has left; another one may be removing them now.
        for left in grave.parent.glob(f"{_REMOVED_PREFIX}*"):
            with suppress(OSError):
                remove_tree(left)

    userns.run_inside(settings.paths, remove_files)


def rename_environment(old: str, new: str, settings: Settings) -> list[str]:
    """Rename a stopped environment; its keys for SSH are made again. Return notes for the user.

    Raises :class:`UsageError` if it runs, or if the new name is invalid or taken.
    """
    check_new_name(new, settings.paths)
    root = settings.paths.environments
    # Both locks in one order, so that two renames never wait for each other.
    first, second = sorted((old, new))
    if first == second:
        raise UsageError(f"environment {old} has that name already")
    with lock_environment(root, first), lock_environment(root, second):
        environment = find_environment(old, settings.paths)
        renamed = EnvironmentDirectory(root / new)
        if environment.is_running():
            raise UsageError(
                f"environment {old} is running", hint=f"stop it first with `danlu stop {old}`"
            )
        if renamed.exists():
            raise UsageError(f"environment {new} exists already")
        discard_incomplete(renamed, settings)
        spec = environment.read_spec()
        with Store.open(settings.paths.store) as store:
            store.tag(environment_image_tag(new), spec.image)
        remove_ssh_host(old, settings)
        remove_tree(environment.directory / "ssh")
        find_engine(spec.engine).load_commands().rename_container(environment, renamed)
        environment.write_spec(msgspec.structs.replace(spec, name=new))
        environment.directory.rename(renamed.directory)
        with Store.open(settings.paths.store) as store:
            store.untag(environment_image_tag(old))
        return configure_ssh(renamed, settings)


def take_down(name: str, settings: Settings, *, grace: float = 10.0) -> None:
    """Stop and remove an environment with everything that belongs to it."""
    environment = find_environment(name, settings.paths)
    with lock_environment(settings.paths.environments, name):
        find_environment(name, settings.paths)  # another process may have removed it meanwhile
        stop_environment(environment, grace=grace)
        remove_environment(environment, settings)


def environment_image_tag(name: str) -> str:
    """Return the name that keeps an environment's image in the store."""
    return f"danlu.local/environment/{name}:current"


def seconds_since(moment: datetime | None, now: datetime) -> float:
    """Return the seconds since ``moment``, 0 if it is None."""
    return (now - moment).total_seconds() if moment else 0.0
