"""Start the project's environment, which is built and created if needed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from danlu.changes.discarded_changes import describe_discarded_changes
from danlu.engine.apt_sources import list_apt_files
from danlu.engine.contexts import is_same_place
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    check_environment_name,
    lock_environment,
    try_environment_lock,
)
from danlu.engine.environment_ports import find_listener_conflict, needs_forward
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.gpu_options import decide_gpus
from danlu.engine.registry import find_engine, find_environment_engine
from danlu.engine.settings import Settings
from danlu.engine.supervisor_start import start_supervisor
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.environments.engine_host import create_engine_host
from danlu.environments.jupyter import connect_notebooks, replace_taken_port
from danlu.environments.manage import (
    check_new_name,
    default_name,
    discard_incomplete,
    environment_image_tag,
    find_environment,
    remove_environment,
    stop_environment,
)
from danlu.environments.spec import (
    UpOptions,
    build_spec,
    explain_differences,
    missing_feature,
    name_directory,
)
from danlu.environments.ssh_hosts import configure_ssh, ssh_configuration
from danlu.errors import OutsideError, UsageError
from danlu.graph.progress import Progress
from danlu.project.build_cache import list_dependencies, lookup_environment
from danlu.project.driver_check import check_driver, check_stored_image
from danlu.project.project import Project
from danlu.project.project_environment import find_named_image, find_project_environment
from danlu.sandbox import userns
from danlu.store import Store
from danlu.util.config import NetworkName
from danlu.util.epoch import read_epoch
from danlu.util.files import private_directory, remove_tree
from danlu.util.paths import Paths

_NEW_PREFIX = ".new."
_UNFINISHED = re.compile(r"\.new(?:\.(?P<name>.+))?\.[0-9a-f]{12}")


@dataclass(frozen=True)
class UpResult:
    """A running environment, and whether the call created or started it.

    Attributes:
        notes: Sentences for the user, such as that the image is older than the build file.
        depends_on: The files that a repeated call would compare. Empty if something was done, or if
            the call depends on more than files.
        epoch: The epoch of the store before the call.
        starts_alone: Whether the supervisor can start it again as long as nothing has changed.
    """

    environment: EnvironmentDirectory
    created: bool = False
    started: bool = False
    notes: tuple[str, ...] = field(default=())
    depends_on: tuple[Path, ...] = field(default=())
    epoch: str = ""
    starts_alone: bool = False


def start_environment(
    target: Project | Path | None,
    *,
    settings: Settings,
    options: UpOptions,
    progress: Progress,
    image: str = "",
    keep: Callable[[RuntimeSettings], RuntimeSettings] = lambda runtime: runtime,
) -> UpResult:
    """Start the environment of ``target``; do nothing if it runs.

    ``target`` is a project, or if ``image`` names a local image a directory to mount, or None for
    none (``options`` then have a name). ``keep`` changes the settings of the build file, which are
    empty for an image. Raises :class:`~danlu.errors.DanluError` if it
    could not be built or started.
    """
    epoch = read_epoch(settings.paths.store / "epoch")
    name = options.name or default_name(target or Path("environment"))
    check_environment_name(name)
    root = settings.paths.environments
    engine = _choose_engine(_find_spec(EnvironmentDirectory(root / name)), options, settings)
    features = find_environment_engine(engine).features
    _check_options(name, target, options, engine, settings)
    if isinstance(target, Project):
        digest, runtime = _find_or_build(target, settings, progress, options)
    else:
        digest, runtime = find_named_image(image, settings).digest, RuntimeSettings()
    runtime = keep(runtime)
    gpus = options.gpus or str(runtime.gpus or "")
    if features.gpus == "host":
        gpus = decide_gpus(options.gpus, runtime, settings.config, progress)
    required = bool(gpus and options.gpus)
    if features.gpus == "host" and isinstance(target, Project):
        check_driver(target, progress, required=required, config=settings.config)
    if features.mounts_files:
        uses_gpus = features.gpus == "host" and bool(gpus)
        check_stored_image(digest, settings, progress, uses_gpus=uses_gpus, required=required)
    with lock_environment(root, name):
        environment = EnvironmentDirectory(root / name)
        existing = _read_existing(environment, name_directory(target), settings.paths)
        # Again, because another process may have created the environment before we got the lock.
        engine = _choose_engine(existing, options, settings)
        wanted = build_spec(
            name,
            target,
            digest,
            runtime,
            options,
            settings.paths,
            engine=engine,
            context=settings.context,
            network=_choose_network(engine, options, settings),
            gpus=gpus,
            earlier=existing,
        )
        notes: list[str] = []
        if existing is not None and options.recreate:
            # If this fails, the old environment is still there.
            commands = find_engine(engine).load_commands()
            commands.deliver_image(wanted.image, create_engine_host(settings, progress))
            stop_environment(environment, grace=options.grace)
            notes += filter(None, [describe_discarded_changes(environment)])
            remove_environment(environment, settings, keep_image=wanted.image)
            existing = None
        if existing is None:
            _create_environment(environment, wanted, settings)
        elif environment.is_running():
            notes += explain_differences(existing, wanted, running=True)
        else:
            notes += explain_differences(existing, wanted, running=False)
            kept = msgspec.structs.replace(
                wanted,
                image=existing.image,
                created=existing.created,
                context=existing.context,
            )
            # An unchanged file keeps what `danlu up` and `exec` know about it (cli.command_stamp).
            if kept != existing:
                environment.write_spec(kept)
        notes += _prepare_ports(environment)
        try:
            started = _start_supervisor(environment, settings, progress, notes)
        except BaseException:
            # Even if the user has interrupted it.
            if existing is None and _has_failed(environment):
                remove_environment(environment, settings)
            raise
        notes += configure_ssh(environment, settings)
    depends_on: tuple[Path, ...] = ()
    if isinstance(target, Project) and not (started or notes or gpus) and _has_defaults(options):
        depends_on = _list_dependencies(target, environment, settings)
    # Ports may be taken meanwhile, and a project that is not mounted is copied.
    starts_alone = features.mounts_files and not (wanted.services or wanted.listed_ports)
    return UpResult(
        environment, existing is None, started, tuple(notes), depends_on, epoch, starts_alone
    )


def _check_options(
    name: str, target: Project | Path | None, options: UpOptions, engine: str, settings: Settings
) -> None:
    """Raise :class:`UsageError` for an invalid option, before anything is built."""
    parse_gpus(options.gpus)
    build_spec(
        name,
        target,
        "",
        RuntimeSettings(),
        options,
        settings.paths,
        engine=engine,
        network=_choose_network(engine, options, settings),
        gpus=options.gpus,
        earlier=None,
    )


def _has_failed(environment: EnvironmentDirectory) -> bool:
    """Return whether a new environment has never run, and no supervisor is starting it."""
    if environment.was_started() and environment.read_state().phase != "Failed":
        return False
    if environment.was_started():
        # Its supervisor has reported the failure, and is about to exit.
        with suppress(OutsideError):
            stop_environment(environment)
    # One that has just been spawned has not written its state, and keeps the environment.
    return not environment.is_running()


def _has_defaults(options: UpOptions) -> bool:
    """Return whether no option changes how the environment runs."""
    return options == UpOptions(
        name=options.name, engine=options.engine, offline=options.offline, frozen=options.frozen
    )


def _list_dependencies(
    project: Project, environment: EnvironmentDirectory, settings: Settings
) -> tuple[Path, ...]:
    """List the files that :func:`start_environment` compared; empty if it compared more."""
    with Store.open(settings.paths.store) as store:
        files = list_dependencies(store, project)
    if files is None:
        return ()
    return (
        *(project.directory / file for file in files),
        settings.paths.config_file,
        settings.paths.config / "contexts.json",
        environment.spec_file,
        settings.paths.vscode_servers,
        *list_apt_files(),
        *ssh_configuration(settings).list_files(environment.name),
    )


def _choose_engine(existing: EnvironmentSpec | None, options: UpOptions, settings: Settings) -> str:
    """Return the engine; an existing environment keeps its own, which has its files."""
    chosen = options.engine or settings.engine
    if existing is None or options.recreate:
        return chosen
    if existing.engine == chosen:
        recorded, wanted = existing.context, settings.context
        if options.engine and recorded and not is_same_place(recorded, wanted, settings.paths):
            raise UsageError(
                f"environment {existing.name} is in context {recorded}",
                hint="add --recreate to start over, or choose another name with --name",
            )
        return chosen
    if options.engine:
        raise UsageError(
            f"environment {existing.name} runs in the {existing.engine} engine",
            hint="add --recreate to start over, or choose another name with --name",
        )
    return existing.engine


def _choose_network(engine: str, options: UpOptions, settings: Settings) -> NetworkName:
    """Return the network of the environment; raise :class:`UsageError` if the engine lacks it."""
    if "private" in find_engine(engine).features.networks:
        return options.network or settings.config.network
    if options.network == "private":
        raise missing_feature(engine, "a private network")
    return "host"


def _start_supervisor(
    environment: EnvironmentDirectory,
    settings: Settings,
    progress: Progress,
    notes: list[str],
) -> bool:
    """Start the supervisor unless it runs; return whether it was started.

    What this machine could not provide is added to ``notes``.
    """
    if not environment.is_running():
        commands = find_engine(environment.read_spec().engine).load_commands()
        commands.prepare_container(environment, create_engine_host(settings, progress))
    started = start_supervisor(environment, settings.paths)
    if started:
        notes += environment.read_state().warnings
    notes += filter(None, [connect_notebooks(environment)])
    return started


def restart_environment(
    name: str, settings: Settings, progress: Progress = lambda event: None
) -> UpResult:
    """Start a stopped environment with its previous settings; do nothing if it runs."""
    environment = find_environment(name, settings.paths)
    with lock_environment(settings.paths.environments, name):
        notes = _prepare_ports(environment)
        started = _start_supervisor(environment, settings, progress, notes)
    return UpResult(environment, started=started, notes=tuple(notes))


def _find_or_build(
    project: Project, settings: Settings, progress: Progress, options: UpOptions
) -> tuple[str, RuntimeSettings]:
    """Return the digest of the project's image, built if needed, and its runtime settings."""
    with Store.open(settings.paths.store) as store:
        found = lookup_environment(store, project)
    if found is not None:
        return found[0].digest, found[1]

    def build() -> tuple[str, RuntimeSettings]:
        image, runtime = find_project_environment(
            project, settings, progress, offline=options.offline, frozen=options.frozen
        )
        return image.digest, runtime

    return userns.run_inside(settings.paths, build)


def _read_existing(
    environment: EnvironmentDirectory, project: str, paths: Paths
) -> EnvironmentSpec | None:
    """Return the spec of an environment of that name, which must belong to the same project.

    Returns None if it may be created.
    """
    spec = _find_spec(environment)
    if spec is None:
        check_new_name(environment.name, paths)
        return None
    if spec.project != project:
        raise UsageError(
            f"environment {environment.name} belongs to {spec.project or 'no project'}",
            hint="choose another name with --name",
        )
    return spec


def _find_spec(environment: EnvironmentDirectory) -> EnvironmentSpec | None:
    try:
        return environment.read_spec()
    except FileNotFoundError:
        return None


def _create_environment(
    environment: EnvironmentDirectory, spec: EnvironmentSpec, settings: Settings
) -> None:
    """Create the directory and protect the image from garbage collection."""
    discard_incomplete(environment, settings)
    _collect_unfinished(settings.paths.environments, environment.name)
    place = private_directory(settings.paths.environments, f"{_NEW_PREFIX}{environment.name}")
    try:
        EnvironmentDirectory(place).write_spec(spec)
        with Store.open(settings.paths.store) as store:
            store.tag(environment_image_tag(environment.name), spec.image)
        place.rename(environment.directory)
    except BaseException:
        remove_tree(place)
        raise


def _collect_unfinished(root: Path, name: str) -> None:
    """Remove the directories of `danlu up` that was killed before it had created an environment.

    The caller holds the lock of ``name``; those of others are removed if nobody holds theirs.
    """
    for entry in os.scandir(root):
        # Environments may have such names as well, and so have lock files.
        owner = _UNFINISHED.fullmatch(entry.name)
        if owner is None or not entry.is_dir(follow_symlinks=False):
            continue
        # Earlier versions wrote no name.
        if owner["name"] in (None, name):
            remove_tree(Path(entry.path))
            continue
        with try_environment_lock(root, owner["name"]) as is_free:
            if is_free:
                remove_tree(Path(entry.path))


def _prepare_ports(environment: EnvironmentDirectory) -> list[str]:
    """Replace Jupyter's port if it is taken; return notes about this and other taken ports.

    Forwarded ports are left to the supervisor, which fails if one is taken.
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
        reason = "" if needs_forward(port, free) else find_listener_conflict(port)
        if reason:
            where = f"{port.address}:{port.host_port}"
            notes.append(f"the service at {where} will not start: {reason} (see `ss -ltnp`)")
    return notes
