"""Update the lock of a build function, describe what changed, and export it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock
from danlu.environment.requirements import digest_base_inputs, needs_python
from danlu.environment.types import Environment, ProjectDigests
from danlu.errors import DifferenceFound, LockError, UsageError
from danlu.graph.ops import Platform
from danlu.graph.progress import Log, Message, Progress
from danlu.lang.functions import LOCK_SECTIONS
from danlu.project.build_request import choose_platforms
from danlu.resolve.lockfile import find_stale_section
from danlu.sandbox import userns
from danlu.sandbox.emulation import host_platform, is_foreign
from danlu.sources import downloads
from danlu.store import Store
from danlu.util.disk_full import translate_disk_full
from danlu.util.files import write_atomic

# Builds import this module, and the resolver takes 40 ms to load: it is imported when something
# has to be resolved or exported.
if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.project.project import Project
    from danlu.resolve.context import ResolveContext

#: Export to the report instead of a file.
STDOUT = Path("-")

#: More changes of one kind than this are counted, not listed.
_MAX_LISTED_CHANGES = 12


class LockOptions(msgspec.Struct, frozen=True):
    """The options of ``danlu lock``; see the reference of the command line.

    ``platform`` are platforms to lock as well (``linux/amd64,linux/arm64``); this machine's and
    those that are locked already always are. ``export`` is the ``pylock.toml`` to write (for the
    first platform), or :data:`STDOUT`.
    """

    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False
    check: bool = False
    export: Path | None = None
    platform: str = ""

    @property
    def refresh(self) -> bool:
        """Whether versions may change although nothing in the build file has."""
        return self.upgrade_all or bool(self.upgrade)


_DEFAULTS = LockOptions()


class LockReport(msgspec.Struct, frozen=True):
    """The result of ``danlu lock``; ``exported`` is the text of the exported ``pylock.toml``."""

    changed: bool
    lines: tuple[str, ...]
    path: Path
    exported: str = ""


class LockResult(msgspec.Struct, frozen=True):
    """An up-to-date lock, and a line for each change."""

    lock: FunctionLock
    lines: tuple[str, ...] = ()


class LockRequest(msgspec.Struct, frozen=True):
    """What to lock, and what may change.

    ``target`` is the function with its arguments if it is not the project's own, but one that this
    copies from. ``upgrade`` names packages to upgrade, ``upgrade_all`` upgrades everything;
    ``frozen`` forbids every change.
    """

    project: Project
    environment: Environment
    inputs: ProjectDigests
    platform: Platform
    settings: Settings
    progress: Progress
    frozen: bool = False
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False
    target: str = ""

    @property
    def name(self) -> str:
        """The function with its arguments: its name in the lock."""
        return self.target or self.project.target

    @property
    def section(self) -> FunctionLock | None:
        """The current lock of the function."""
        return self.project.lock.find(self.name, self.platform)

    @property
    def all_targets(self) -> tuple[LockRequest, ...]:
        """The requests for the functions that this one copies from, and this one at the end."""
        sources = (
            replace(self, environment=environment, inputs=self.inputs.sources[name], target=name)
            for name, environment in self.environment.sources.items()
        )
        return (*sources, self)

    @property
    def host(self) -> LockRequest:
        """The request for the platform of this machine."""
        return replace(self, platform=host_platform())

    @property
    def stale(self) -> str:
        """What is out of date (``"Python packages"``), or an empty string."""
        old = self.section
        return (
            find_stale_section(self.environment, old, self.platform, self.inputs)
            if old
            else "everything"
        )


def lock(
    project: Project,
    *,
    settings: Settings,
    progress: Progress,
    options: LockOptions = _DEFAULTS,
) -> LockReport:
    """Update the lock, or with ``check`` only verify that it is up to date.

    Raises :class:`DifferenceFound` if ``check`` finds the lock out of date, :class:`UsageError` if
    it cannot be exported, :class:`OutsideError` if an index no longer has a locked file, whose URL
    the export needs.
    """
    with nullcontext() if options.check else project.update_exclusively(progress):
        return update_project_lock(project, settings, progress, options)


def update_project_lock(
    project: Project,
    settings: Settings,
    progress: Progress,
    options: LockOptions = _DEFAULTS,
) -> LockReport:
    """Do what :func:`lock` does, inside :meth:`Project.update_exclusively`."""
    from danlu.resolve.lockfile import has_conflict_markers

    before = project.lock_text
    conflicted = has_conflict_markers(before) and not options.check
    if conflicted:
        from danlu.resolve.lock_merge import merge_conflicted_text

        project.lock_file.stage(merge_conflicted_text(before, project.lock_path.name))
    environment = project.environment(refresh=options.refresh)
    request = LockRequest(
        project,
        environment,
        project.inputs(environment),
        host_platform(),
        settings,
        progress,
        upgrade=options.upgrade,
        upgrade_all=options.upgrade_all,
    )
    if options.export:
        _check_export(request, options.export)
    platforms = [
        replace(request, platform=target)
        for target in _choose_locked_platforms(project, options.platform)
    ]
    asked = choose_platforms(options.platform) if options.platform else ()
    first = next((item for item in platforms if item.platform in asked), platforms[0])
    requests = [target for item in platforms for target in item.all_targets]
    outdated = [item for item in requests if item.stale or options.refresh]
    lines: tuple[str, ...] = ()
    if outdated and options.check:
        raise _difference_error(outdated[0])
    if outdated:
        # Source distributions are built in the sandbox, which needs a user namespace.
        userns.enter(settings.paths)
        lines = anyio.run(_lock_in_store, outdated).lines
    elif conflicted:
        project.lock_file.write(project.lock)
    if conflicted:
        lines = (f"merged both sides of the conflicts in {project.lock_path.name}", *lines)
    exported = anyio.run(_export_pylock, first, options.export) if options.export else ""
    return LockReport(project.lock_text != before, lines, project.lock_path, exported)


def explain(project: Project, name: str, *, settings: Settings) -> tuple[str, ...]:
    """Return why the Python package ``name`` is in the lock, in lines to show.

    Raises :class:`UsageError` if the package is not in the lock.
    """
    from danlu.environment.package_names import normalize_name
    from danlu.resolve.python.reasons import explain_package

    environment = project.environment()
    section = project.lock.find(project.target, host_platform())
    wanted = normalize_name(name)
    if section is None or all(package.name != wanted for package in section.packages):
        versions = {**_base_versions(section), **_system_versions(section)} if section else {}
        raise UsageError(
            f"{name} is not a Python package in {project.lock_path.name}",
            hint="it is a system package: see `danlu plan`"
            if name in versions
            else "run `danlu lock` if the build file has changed",
        )
    return anyio.run(
        partial(
            explain_package,
            environment,
            section,
            wanted,
            project=project.directory,
            paths=settings.paths,
            config=settings.config,
        )
    )


def merge_files(base: Path, ours: Path, theirs: Path) -> None:
    """Merge three versions of a lockfile into ``ours``: a merge driver of git (gitattributes(5)).

    Raises :class:`LockError` if one is invalid; ``ours`` is unchanged then.
    """
    from danlu.resolve.lock_merge import merge_lock_texts
    from danlu.resolve.lockfile import write_lock

    try:
        texts = [path.read_text(encoding="utf-8") for path in (base, ours, theirs)]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read a version of danlu.lock: {error}") from error
    merged = merge_lock_texts(*texts, file="danlu.lock")
    with translate_disk_full(str(ours)):
        write_atomic(ours, write_lock(merged).encode())


def _choose_locked_platforms(project: Project, text: str) -> tuple[Platform, ...]:
    """Return the platforms to lock, this machine's first: others are configured by its programs."""
    asked = choose_platforms(text) if text else ()
    locked = project.lock.list_platforms(project.target)
    return tuple(dict.fromkeys((host_platform(), *locked, *asked)))


def _difference_error(request: LockRequest) -> DifferenceFound:
    project, platform = request.project, request.platform
    if request.section is None and project.lock.list_platforms(request.name):
        return DifferenceFound(
            f"{project.lock_path.name} is out of date: {project.file} is not locked for {platform}",
            hint=f"run `danlu lock --platform {platform}` to update it",
        )
    where = f"{project.file}:{request.name}" if request.target else project.file
    return DifferenceFound(
        f"{project.lock_path.name} is out of date: {request.stale} changed in {where}",
        hint="run `danlu lock` to update it",
    )


def _check_export(request: LockRequest, path: Path) -> None:
    """Raise :class:`UsageError` if the lock cannot be exported, before anything is resolved."""
    from danlu.resolve.python.pylock import check_pylock_name

    if path != STDOUT:
        check_pylock_name(path.name)
    if not needs_python(request.environment):
        project = request.project
        raise UsageError(
            f"cannot export {project.file}:{project.target}: it has no Python packages",
            hint="a pylock.toml contains only Python packages",
        )


async def _export_pylock(request: LockRequest, path: Path) -> str:
    """Return the ``pylock.toml`` of the lock; write it to ``path`` unless that is stdout."""
    from danlu.resolve.python.file_urls import find_file_urls
    from danlu.resolve.python.pylock import export_pylock, files_outside

    project, paths, lock = request.project, request.settings.paths, request.section
    assert lock is not None
    with (
        translate_disk_full(f"danlu's data ({paths.data})"),
        downloads.prevent_pruning(paths.cache),
    ):
        urls = await find_file_urls(
            request.environment,
            lock,
            project=project.directory,
            paths=paths,
            config=request.settings.config,
        )
    text = export_pylock(lock, urls, project=project.directory, directory=path.parent)
    outside = files_outside(urls, project.directory)
    if outside:
        warning = f"warning: {path.name} contains paths that only exist on this machine: "
        more = f" and {len(outside) - 3} more" if outside[3:] else ""
        request.progress(Message(warning + ", ".join(outside[:3]) + more, 0.0))
    if path != STDOUT:
        with translate_disk_full(str(path)):
            write_atomic(path, text.encode())
    return text


async def _lock_in_store(requests: Sequence[LockRequest]) -> LockResult:
    with Store.open(requests[0].settings.paths.store) as store, store.lease():
        return await update_lock(requests, store)


async def update_lock(requests: Sequence[LockRequest], store: Store) -> LockResult:
    """Return the lock of the last request, and the changes of all; resolve what is out of date.

    The requests are for platforms and targets of one project. Its lock is written when all are
    resolved, inside the caller's :meth:`Project.update_exclusively`. Raises :class:`LockError` if
    something is out of date but ``frozen``.
    """
    project = requests[0].project
    before = project.lock
    is_changed = False
    lines: tuple[str, ...] = ()
    try:
        for request in requests:
            result = await _resolve_lock(request, store)
            if result.lock is not request.section:
                is_changed = True
                project.lock_file.stage(project.lock.replace_function(request.name, result.lock))
            lines += result.lines
        if is_changed:
            project.lock_file.write(project.lock)
    except BaseException:
        project.lock_file.stage(before)
        raise
    return LockResult(result.lock, lines)


async def _resolve_lock(request: LockRequest, store: Store) -> LockResult:
    old, stale = request.section, request.stale
    if old and not stale and not request.upgrade and not request.upgrade_all:
        return LockResult(old)
    project = request.project
    if request.frozen:
        locked = project.lock.list_platforms(request.name)
        missing = f"it is not locked for {request.platform}" if locked else "it is not locked yet"
        raise _frozen_error(request, f"{stale} changed" if old else missing)
    from danlu.resolve.resolve import resolve

    context = _make_resolve_context(request, store)
    everything = not old or request.upgrade_all
    what = "dependencies" if everything else ", ".join(request.upgrade) or stale
    context.report(f"resolving {what}{f' of {request.target}' if request.target else ''}…")
    paths = request.settings.paths
    with (
        translate_disk_full(f"danlu's data ({paths.data})"),
        downloads.prevent_pruning(paths.cache),
    ):
        known = old or _find_similar_lock(request)
        new = await resolve(request.environment, known, request.inputs, context)
    lines = tuple(describe_changes(old, new))
    if is_foreign(request.platform):
        lines = tuple(f"{request.platform}: {line}" for line in lines)
    if request.target:
        lines = tuple(f"{request.target}: {line}" for line in lines)
    return LockResult(new, lines)


def _find_similar_lock(request: LockRequest) -> FunctionLock | None:
    """Return the lock whose versions a function keeps that is not locked yet.

    That of its first platform, of the function with its defaults, or of another function of the
    file on the same base: what runs in one image was developed in another.
    """
    functions = request.project.lock.functions
    if same := functions.get(request.name) or functions.get(request.environment.name):
        return same
    platform = request.platform
    wanted = digest_base_inputs(request.environment, platform)
    others = (lock for lock in functions.values() if lock.platform == str(platform))
    return next((lock for lock in others if lock.base.inputs == wanted), None)


def _make_resolve_context(request: LockRequest, store: Store) -> ResolveContext:
    from danlu.builder.embedded.build import run_in_system
    from danlu.builder.embedded.context import SolveRequest
    from danlu.resolve.context import ResolveContext

    started = time.monotonic()
    progress, settings = request.progress, request.settings
    directory = request.project.directory
    return ResolveContext(
        project=directory,
        paths=settings.paths,
        config=settings.config,
        platform=request.platform,
        store=store,
        run_in_system=partial(
            run_in_system,
            request.environment,
            tools=request.host.section if is_foreign(request.platform) else None,
            request=SolveRequest(directory, offline=request.offline),
            store=store,
            paths=settings.paths,
            config=settings.config,
            progress=progress,
            on_line=lambda line: progress(Log("", "resolve", line, time.monotonic() - started)),
        ),
        offline=request.offline,
        upgrade=request.upgrade,
        upgrade_all=request.upgrade_all,
        report=lambda text: progress(Message(text, time.monotonic() - started)),
    )


def _frozen_error(request: LockRequest, what: str) -> LockError:
    project = request.project
    option = "" if request.platform == host_platform() else f" --platform {request.platform}"
    return LockError(
        f"{project.lock_path.name} is out of date for {project.file}:{request.name}: {what}",
        hint=f"run `danlu lock{option}` and commit the lockfile",
    )


def describe_changes(old: FunctionLock | None, new: FunctionLock) -> Iterator[str]:
    """Describe what changed between two locks, in one line for each kind of change."""
    for what, before, after in _compare_sections(old, new):
        yield from _format_changes(what, before, after)


def _compare_sections(
    old: FunctionLock | None, new: FunctionLock
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    for what, versions in (
        ("base package", _base_versions),
        ("system package", _system_versions),
        ("conda package", _conda_versions),
        ("Python package", _python_versions),
    ):
        yield what, versions(old) if old else {}, versions(new)
    for section in LOCK_SECTIONS.values():
        before = dict(section.describe(pin) for pin in section.pins(old))
        after = dict(section.describe(pin) for pin in section.pins(new))
        yield section.singular, before, after


def _base_versions(lock: FunctionLock) -> Mapping[str, str]:
    if lock.base.image:
        return {lock.base.image.reference: lock.base.image.digest[7:19]}
    return {deb.name: deb.version for deb in lock.base.packages}


def _system_versions(lock: FunctionLock) -> Mapping[str, str]:
    return {deb.name: deb.version for deb in lock.system.packages} if lock.system else {}


def _conda_versions(lock: FunctionLock) -> Mapping[str, str]:
    packages = lock.conda.packages if lock.conda else ()
    return {package.name: f"{package.version} {package.build}" for package in packages}


def _python_versions(lock: FunctionLock) -> Mapping[str, str]:
    # The version of a repository or directory is only known once it has been built.
    return {
        package.name: package.version or package.commit[:12] or package.location
        for package in lock.packages
    }


def _format_changes(
    what: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[str]:
    added = [f"{name} {version}" for name, version in after.items() if name not in before]
    removed = [name for name in before if name not in after]
    moved = [
        f"{name} {before[name]} → {version}"
        for name, version in after.items()
        if name in before and before[name] != version
    ]
    for verb, names in (("locked", added), ("changed", moved), ("no longer needed:", removed)):
        if len(names) > _MAX_LISTED_CHANGES:
            yield f"{verb} {len(names)} {what}s"
        elif names:
            yield f"{verb} {what}{'s' if len(names) > 1 else ''} " + ", ".join(names)
