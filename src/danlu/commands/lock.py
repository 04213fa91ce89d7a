"""``danlu lock``: pin what the build file asks for, and say what that changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.inputs import Inputs
from danlu.environment.lock import FunctionLock, Lock
from danlu.environment.needs import fits, wants_python
from danlu.environment.types import Environment
from danlu.errors import Difference, LockError, UsageError
from danlu.graph import Log, Message, Platform, Progress
from danlu.util.space import told

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.resolve.resolve import Resolving
    from danlu.store import Layer, Store

__all__ = ["STDOUT", "LockReport", "Locking", "Outcome", "bring_up_to_date", "changes", "lock"]

#: The place to export to that is no file.
STDOUT = Path("-")

#: So many changes of one kind are named one by one; more are counted.
_NAMED = 12


class LockReport(msgspec.Struct, frozen=True):
    """What ``danlu lock`` did: whether the file changed, how, and where it is.

    ``exported`` is the text of the ``pylock.toml`` that was asked for.
    """

    changed: bool
    lines: tuple[str, ...]
    path: Path
    exported: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """A lock that fits, and a line for each thing that had to change."""

    lock: FunctionLock
    lines: tuple[str, ...] = ()


class Locking(msgspec.Struct, frozen=True):
    """What is to be locked, and what that may do.

    ``upgrade`` names packages that may take a newer version, ``upgrade_all`` lets all; ``frozen``
    forbids every change.
    """

    project: Project
    environment: Environment
    inputs: Inputs
    platform: Platform
    settings: Settings
    progress: Progress
    frozen: bool = False
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False

    @property
    def section(self) -> FunctionLock | None:
        """The lock of the project's function as it is."""
        return self.project.lock.functions.get(self.project.function)

    @property
    def stale(self) -> str:
        """What of the lock no longer fits, or an empty string."""
        old = self.section
        return fits(self.environment, old, self.platform, self.inputs) if old else "everything"


def lock(
    project: Project,
    *,
    settings: Settings,
    progress: Progress,
    upgrade: tuple[str, ...] | None = None,
    upgrade_all: bool = False,
    check: bool = False,
    export: Path | None = None,
) -> LockReport:
    """Bring the lock up to date with the build file, or with ``check`` only say whether it is.

    ``upgrade`` names packages that may take a newer version, ``upgrade_all`` lets all. ``export``
    is the ``pylock.toml`` to write then; ``-`` writes none, its text is in the report. Raises
    :class:`Difference` where ``check`` finds the lock stale, :class:`UsageError` for an ``export``
    that cannot be, :class:`OutsideError` where an index no longer has a file to name in it.
    """
    import anyio

    fresh = upgrade_all or bool(upgrade)
    locking = _locking(project, settings, progress, upgrade, upgrade_all=upgrade_all)
    if export:
        _check_export(locking, export)
    stale = locking.stale
    if check and stale:
        raise Difference(
            f"{project.lock_path.name} does not fit {project.file}: {stale}",
            hint="run `danlu lock`",
        )
    outcome = Outcome(locking.section) if locking.section else None
    if outcome is None or stale or fresh:
        from danlu.sandbox import userns

        userns.enter(settings.paths)
        outcome = anyio.run(_lock_async, locking)
    exported = anyio.run(_export, locking, outcome.lock, export) if export else ""
    return LockReport(bool(outcome.lines), outcome.lines, project.lock_path, exported)


def _locking(
    project: Project,
    settings: Settings,
    progress: Progress,
    upgrade: tuple[str, ...] | None,
    *,
    upgrade_all: bool,
) -> Locking:
    from danlu.commands.build import parse_platform

    environment = project.environment(refresh=upgrade_all or bool(upgrade))
    return Locking(
        project,
        environment,
        project.inputs(environment),
        parse_platform(""),
        settings,
        progress,
        upgrade=upgrade or (),
        upgrade_all=upgrade_all,
    )


def _check_export(locking: Locking, path: Path) -> None:
    """Raise :class:`UsageError` for what cannot be exported, before anything is resolved."""
    from danlu.resolve.pylock import check_pylock_name

    if path != STDOUT:
        check_pylock_name(path.name)
    if not wants_python(locking.environment):
        project = locking.project
        raise UsageError(
            f"{project.file}:{project.function} has no Python, so there is nothing to export",
            hint="a pylock.toml holds Python packages only",
        )


async def _export(locking: Locking, lock: FunctionLock, path: Path) -> str:
    """The ``pylock.toml`` of ``lock``, written to ``path`` unless that is stdout."""
    from danlu.resolve.pylock import export_pylock
    from danlu.resolve.python_addresses import file_addresses
    from danlu.sources import downloads
    from danlu.util.files import write_atomic

    project, paths = locking.project, locking.settings.paths
    with told(f"danlu's data ({paths.data})"), downloads.in_use(paths.cache):
        urls = await file_addresses(
            locking.environment, lock, project=project.directory, paths=paths
        )
    text = export_pylock(lock, urls, project=project.directory, directory=path.parent)
    if path != STDOUT:
        with told(str(path)):
            write_atomic(path, text.encode())
    return text


async def _lock_async(locking: Locking) -> Outcome:
    from danlu.store import Store

    with Store.open(locking.settings.paths.store) as store, store.lease():
        return await bring_up_to_date(locking, store)


async def bring_up_to_date(locking: Locking, store: Store) -> Outcome:
    """The project's lock, resolved where it does not fit, and written where it changed.

    Raises :class:`LockError` where it does not fit and ``frozen`` forbids to change it.
    """
    old, stale = locking.section, locking.stale
    if old and not stale and not locking.upgrade and not locking.upgrade_all:
        return Outcome(old)
    project = locking.project
    if locking.frozen:
        raise _frozen(project, f"{stale} changed" if old else "there is no section for it")
    from danlu.resolve.resolve import resolve
    from danlu.sources import downloads

    resolving = _resolving(locking, store)
    everything = not old or locking.upgrade_all
    resolving.say(f"locking {'everything' if everything else ', '.join(locking.upgrade) or stale}")
    paths = locking.settings.paths
    with told(f"danlu's data ({paths.data})"), downloads.in_use(paths.cache):
        new = await resolve(locking.environment, old, locking.inputs, resolving)
    lines = tuple(changes(old, new))
    project.write_lock(Lock({**project.lock.functions, project.function: new}))
    return Outcome(new, lines)


def _resolving(locking: Locking, store: Store) -> Resolving:
    from danlu.resolve.resolve import Resolving

    began = time.monotonic()
    progress = locking.progress
    return Resolving(
        project=locking.project.directory,
        paths=locking.settings.paths,
        config=locking.settings.config,
        platform=locking.platform,
        store=store,
        build_system=partial(_system_layers, locking, store),
        offline=locking.offline,
        upgrade=locking.upgrade,
        upgrade_all=locking.upgrade_all,
        heard=lambda line: progress(Log("", "resolve", line, time.monotonic() - began)),
        say=lambda text: progress(Message(text, time.monotonic() - began)),
    )


def _frozen(project: Project, what: str) -> LockError:
    return LockError(
        f"{project.lock_path.name} does not fit {project.file}:{project.function}: {what}",
        hint="run `danlu lock` without --frozen, and commit the lock",
    )


async def _system_layers(locking: Locking, store: Store, lock: FunctionLock) -> Sequence[Layer]:
    """The layers of the base and the system packages of ``lock``, built where they are not."""
    from danlu.assemble import assemble_system
    from danlu.builder.embedded.build import solve
    from danlu.builder.types import Request
    from danlu.commands.build import parse_platform

    environment = locking.environment
    request = Request(
        project=locking.project.directory,
        offline=locking.offline,
        apt_source=environment.apt_source,
    )
    result, _ = await solve(
        assemble_system(environment, lock, parse_platform(lock.platform)),
        request,
        store=store,
        paths=locking.settings.paths,
        config=locking.settings.config,
        progress=locking.progress,
    )
    return result.stack


def changes(old: FunctionLock | None, new: FunctionLock) -> Iterator[str]:
    """What changed between two locks, a line each, many of one kind as a count."""
    for what, before, after in _compared(old, new):
        yield from _changed(what, before, after)


def _compared(
    old: FunctionLock | None, new: FunctionLock
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    for what, versions in (
        ("base package", _base),
        ("system package", _system),
        ("Python package", _python),
        ("file", lambda lock: {one.url: one.sha256[:12] for one in lock.http}),
        ("image", lambda lock: {one.reference: one.digest[7:19] for one in lock.images}),
        ("include", lambda lock: {one.url: one.commit[:12] for one in lock.includes}),
    ):
        yield what, versions(old) if old else {}, versions(new)


def _base(lock: FunctionLock) -> Mapping[str, str]:
    if lock.base.image:
        return {lock.base.image.reference: lock.base.image.digest[7:19]}
    return {deb.name: deb.version for deb in lock.base.packages}


def _system(lock: FunctionLock) -> Mapping[str, str]:
    return {deb.name: deb.version for deb in lock.system.packages} if lock.system else {}


def _python(lock: FunctionLock) -> Mapping[str, str]:
    return {one.name: one.version for one in lock.packages}


def _changed(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    added = [f"{name} {version}" for name, version in after.items() if name not in before]
    removed = [name for name in before if name not in after]
    moved = [
        f"{name} {before[name]} → {version}"
        for name, version in after.items()
        if name in before and before[name] != version
    ]
    for verb, names in (("locked", added), ("changed", moved), ("no longer needed:", removed)):
        if len(names) > _NAMED:
            yield f"{verb} {len(names)} {what}s"
        elif names:
            yield f"{verb} {what}{'s' if len(names) > 1 else ''} " + ", ".join(names)
