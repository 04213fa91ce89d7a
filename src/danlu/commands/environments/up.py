"""Start the project's environment, which is built and created if needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from danlu.commands.build_cache import lookup_environment
from danlu.commands.driver_check import check_driver, warn_about_gpus
from danlu.commands.environments.jupyter import replace_taken_port
from danlu.commands.environments.manage import (
    default_name,
    environment_image_tag,
    find_environment,
    remove_environment,
    stop_environment,
)
from danlu.commands.environments.spec import UpOptions, build_spec, explain_differences
from danlu.commands.environments.ssh_hosts import add_ssh_host
from danlu.commands.project import Project
from danlu.commands.project_environment import find_named_image, find_project_environment
from danlu.commands.settings import Settings
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    check_environment_name,
)
from danlu.engine.environment_ports import find_listener_conflict, needs_forward
from danlu.engine.supervisor_start import start_supervisor
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.errors import DanluError, UsageError
from danlu.graph.progress import Progress
from danlu.store import Store
from danlu.util.files import private_directory
from danlu.util.fork import run_in_child
from danlu.util.locks import file_lock


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
        directory, runtime = target, RuntimeSettings()
        digest: str = find_named_image(image, settings).digest
    else:
        directory = target.directory
        digest, runtime = _find_or_build(target, settings, progress, options)
        check_driver(target, progress, required=False)
        warn_about_gpus(runtime, progress)
    name = check_environment_name(options.name or default_name(target))
    root = settings.paths.environments
    with file_lock(root / f"{name}.lock"):
        environment = EnvironmentDirectory(root / name)
        existing = _read_existing(environment, directory)
        wanted = build_spec(
            name, target, digest, runtime, options, settings.paths, earlier=existing
        )
        notes: list[str] = []
        if existing is not None and options.recreate:
            stop_environment(environment)
            remove_environment(environment, settings)
            existing = None
        if existing is None:
            _create_environment(environment, wanted, settings)
        elif environment.is_running():
            notes += explain_differences(existing, wanted, running=True)
        else:
            notes += explain_differences(existing, wanted, running=False)
            kept = msgspec.structs.replace(wanted, image=existing.image, created=existing.created)
            environment.write_spec(kept)
        notes += _prepare_ports(environment)
        started = start_supervisor(environment, settings.paths)
        notes += _offer_ssh(environment, settings)
    return UpResult(environment, existing is None, started, tuple(notes))


def _offer_ssh(environment: EnvironmentDirectory, settings: Settings) -> list[str]:
    """Make the environment a host of the user's SSH configuration; return what prevented it."""
    try:
        add_ssh_host(environment, settings)
    except DanluError as error:
        return [f"no ssh to {environment.name}: {error}"]
    return []


def restart_environment(name: str, settings: Settings) -> UpResult:
    """Start a stopped environment as it was started last; do nothing if it runs."""
    environment = find_environment(name, settings.paths)
    with file_lock(settings.paths.environments / f"{name}.lock"):
        notes = _prepare_ports(environment)
        started = start_supervisor(environment, settings.paths)
    return UpResult(environment, started=started, notes=tuple(notes))


def _find_or_build(
    project: Project, settings: Settings, progress: Progress, options: UpOptions
) -> tuple[str, RuntimeSettings]:
    """Return the digest of the project's image, and how it is started."""
    with Store.open(settings.paths.store) as store:
        found = lookup_environment(store, project)
    if found is not None:
        return found[0].digest, found[1]

    def build() -> tuple[str, RuntimeSettings]:
        image, runtime = find_project_environment(
            project, settings, progress, offline=options.offline, frozen=options.frozen
        )
        return image.digest, runtime

    # A build enters namespaces for good, in which the supervisor must not be started.
    return run_in_child(build)


def _read_existing(environment: EnvironmentDirectory, project: Path) -> EnvironmentSpec | None:
    """Return the spec of an environment of that name, which must belong to the same project."""
    try:
        spec = environment.read_spec()
    except FileNotFoundError:
        return None
    if spec.project != str(project):
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


def _prepare_ports(environment: EnvironmentDirectory) -> list[str]:
    """Replace Jupyter's port if it is taken; return sentences about this and other taken ports.

    A port that has to be forwarded is an error of the supervisor if it is taken.
    """
    if environment.is_running():
        return []
    spec = environment.read_spec()
    free = replace_taken_port(spec)
    notes = []
    if free != spec:
        environment.write_spec(free)
        notes.append("another program uses Jupyter's port; it gets a new one")
    for port in free.ports:
        reason = "" if needs_forward(port) else find_listener_conflict(port)
        if reason:
            where = f"{port.address}:{port.host_port}"
            notes.append(f"the service at {where} will not start: {reason} (see `ss -ltnp`)")
    return notes
