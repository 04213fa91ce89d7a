"""A lock that fits its environment, with only those sections resolved again that no longer did."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from danlu.environment.inputs import Inputs
from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedHttp,
    LockedImage,
    LockedInclude,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.environment.needs import (
    base_inputs,
    packages_inputs,
    python_inputs,
    python_version,
    system_inputs,
    system_needs,
    wants_python,
)
from danlu.environment.types import Copy, Environment, Http
from danlu.errors import DanluError, ResolveError, Span, UsageError
from danlu.graph import Deb, Platform

if TYPE_CHECKING:
    from danlu.store import Layer, Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = ["Resolving", "resolve"]


class Resolving(msgspec.Struct, frozen=True):
    """What resolving works with: the project, the user's settings, and what may change.

    ``upgrade`` names packages that may take newer versions, ``upgrade_all`` lets everything;
    otherwise what is locked stays as it is wherever it can. ``build_system`` gives the layers of
    the base and system packages of a lock, to run programs in. ``say`` takes a line for the user,
    ``heard`` one that such a program printed.
    """

    project: Path
    paths: Paths
    config: Configuration
    platform: Platform
    store: Store
    build_system: Callable[[FunctionLock], Awaitable[Sequence[Layer]]]
    offline: bool = False
    upgrade: tuple[str, ...] = ()
    upgrade_all: bool = False
    say: Callable[[str], None] = lambda text: None
    heard: Callable[[str], None] = lambda text: None

    @property
    def refresh(self) -> bool:
        """Whether outside lists have to be looked at again."""
        return self.upgrade_all or bool(self.upgrade)


async def resolve(
    environment: Environment, old: FunctionLock | None, inputs: Inputs, resolving: Resolving
) -> FunctionLock:
    """The lock of ``environment``; ``old`` is kept wherever its ``inputs`` still match.

    Raises :class:`ResolveError` for what cannot be satisfied, :class:`OutsideError` for what
    cannot be reached; either with the line of the build file where one is to blame.
    """
    _check_upgrades(old, resolving)
    base = await _base(environment, old, resolving)
    python, names = await _python(environment, old, base, resolving)
    lock = FunctionLock(
        platform=str(resolving.platform),
        base=base,
        python=python,
        system=await _system(environment, old, base, python, names, resolving),
        http=await _http(environment, old, resolving),
        images=await _images(environment, old, resolving),
        includes=_includes(environment),
    )
    return await _packages(environment, old, lock, inputs, resolving)


def _check_upgrades(old: FunctionLock | None, resolving: Resolving) -> None:
    """Raise for a name to upgrade that is not locked."""
    if not resolving.upgrade:
        return
    known: list[str] = []
    if old is not None:
        debs = (*old.base.packages, *(old.system.packages if old.system else ()))
        known = [*(deb.name for deb in debs), *(one.name for one in old.packages)]
        known += [one.reference for one in old.images]
        known += [*(one.url for one in old.http), *(one.url for one in old.includes)]
    for name in resolving.upgrade:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`danlu lock` locks it first"
            raise UsageError(f"{name} is not in the lock", hint=hint)


async def _base(
    environment: Environment, old: FunctionLock | None, resolving: Resolving
) -> LockedBase:
    wanted = base_inputs(environment, resolving.platform)
    if old and old.base.inputs == wanted and not resolving.refresh:
        return old.base
    try:
        found = await _resolve_base(environment, old, resolving)
    except DanluError as error:
        error.span = error.span or _place(environment.base.span)
        raise
    return replace(found, inputs=wanted)


async def _resolve_base(
    environment: Environment, old: FunctionLock | None, resolving: Resolving
) -> LockedBase:
    if environment.base.image:
        from danlu.resolve.image import resolve_image_base

        return await resolve_image_base(environment.base.image, resolving)
    from danlu.resolve.base import resolve_base

    return await resolve_base(
        environment.base.os,
        resolving.platform,
        apt=environment.apt_source,
        paths=resolving.paths,
        config=resolving.config,
        offline=resolving.offline,
        refresh=resolving.refresh,
        keep=_kept_base(old, resolving),
    )


def _kept_base(old: FunctionLock | None, resolving: Resolving) -> tuple[Deb, ...]:
    if old is None or resolving.upgrade_all:
        return ()
    return tuple(deb for deb in old.base.packages if deb.name not in resolving.upgrade)


async def _python(
    environment: Environment, old: FunctionLock | None, base: LockedBase, resolving: Resolving
) -> tuple[LockedPython | None, tuple[str, ...]]:
    """The interpreter, and the system packages that bring it."""
    if not wants_python(environment):
        return None, ()
    version = python_version(environment)
    wanted = python_inputs(environment, base)
    if base.interpreter and _satisfies(base.python, version):
        return LockedPython(wanted, base.python, base.interpreter, "image"), ()
    if _python_stays(environment, old, base, wanted) and not resolving.refresh:
        assert old is not None
        return old.python, ()
    from danlu.resolve.system import distribution_python

    try:
        choice = await distribution_python(
            base,
            version,
            platform=resolving.platform,
            paths=resolving.paths,
            config=resolving.config,
            offline=resolving.offline,
            apt=environment.apt_source,
        )
    except DanluError as error:
        declared = environment.python or environment.uv
        error.span = error.span or (_place(declared.span) if declared else None)
        raise
    return LockedPython(wanted, choice.version, choice.executable, "apt"), choice.names


def _python_stays(
    environment: Environment, old: FunctionLock | None, base: LockedBase, wanted: str
) -> bool:
    """Whether the interpreter and the system packages it came with are as they were."""
    if old is None or old.python is None or old.system is None or old.python.inputs != wanted:
        return False
    return old.system.inputs == system_inputs(environment, base, old.python)


def _satisfies(have: str, wanted: str) -> bool:
    return not wanted or have == wanted or have.startswith(wanted + ".")


async def _system(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    python: LockedPython | None,
    interpreter: tuple[str, ...],
    resolving: Resolving,
) -> LockedSystem | None:
    wanted = system_inputs(environment, base, python)
    if old and old.system and old.system.inputs == wanted and not resolving.refresh:
        return old.system
    names = tuple(sorted({*system_needs(environment), *interpreter}))
    if not names:
        return LockedSystem(inputs=wanted)
    from danlu.resolve.system import resolve_system

    try:
        packages = await resolve_system(
            base,
            names,
            keep=_kept_debs(old, resolving),
            platform=resolving.platform,
            paths=resolving.paths,
            config=resolving.config,
            offline=resolving.offline,
            refresh=resolving.refresh,
            apt=environment.apt_source,
            status=await _installed(base, resolving),
        )
    except DanluError as error:
        error.span = error.span or _naming_system(environment, error.message)
        raise
    return LockedSystem(inputs=wanted, packages=packages, requested=names)


async def _installed(base: LockedBase, resolving: Resolving) -> str | None:
    """What an image says is installed in it; None for a base of packages, whose lock tells."""
    if base.image is None:
        return None
    from danlu.resolve.image import dpkg_status

    return await dpkg_status(base, resolving)


def _kept_debs(old: FunctionLock | None, resolving: Resolving) -> tuple[Deb, ...]:
    if old is None or old.system is None or resolving.upgrade_all:
        return ()
    return tuple(deb for deb in old.system.packages if deb.name not in resolving.upgrade)


def _naming_system(environment: Environment, message: str) -> Span | None:
    """The line whose package the message names, else the first line that asks for any."""
    for declared in environment.system_packages:
        if any(name.partition("=")[0] in message for name in declared.names):
            return _place(declared.span)
    first = environment.system_packages[:1]
    return _place(first[0].span) if first else None


async def _http(
    environment: Environment, old: FunctionLock | None, resolving: Resolving
) -> tuple[LockedHttp, ...]:
    from danlu.sources.http import fetch

    known = {one.url: one for one in old.http} if old else {}
    locked: dict[str, LockedHttp] = {}
    for step in environment.steps:
        if not isinstance(step, Http) or step.url in locked:
            continue
        stays = step.url not in resolving.upgrade and not resolving.upgrade_all
        before = known.get(step.url) if stays else None
        declared = step.checksum.removeprefix("sha256:")
        if before and declared in ("", before.sha256):
            locked[step.url] = before
            continue
        try:
            fetched = await fetch(
                step.url,
                declared or None,
                cache=resolving.paths.cache / "http",
                offline=resolving.offline,
            )
        except DanluError as error:
            error.span = error.span or _place(step.span)
            raise
        locked[step.url] = LockedHttp(step.url, fetched.sha256, fetched.size)
    return tuple(locked[url] for url in sorted(locked))


async def _images(
    environment: Environment, old: FunctionLock | None, resolving: Resolving
) -> tuple[LockedImage, ...]:
    from danlu.resolve.image import resolve_digest

    known = {one.reference: one for one in old.images} if old else {}
    locked: dict[str, LockedImage] = {}
    for step in environment.steps:
        if not isinstance(step, Copy) or not step.image or step.image in locked:
            continue
        stays = step.image not in resolving.upgrade and not resolving.upgrade_all
        if stays and step.image in known:
            locked[step.image] = known[step.image]
            continue
        try:
            digest = await resolve_digest(step.image, resolving)
        except DanluError as error:
            error.span = error.span or _place(step.span)
            raise
        locked[step.image] = LockedImage(step.image, digest)
    return tuple(locked[name] for name in sorted(locked))


def _includes(environment: Environment) -> tuple[LockedInclude, ...]:
    used = {(one.url, one.ref, one.commit) for one in environment.includes}
    return tuple(LockedInclude(*one) for one in sorted(used))


async def _packages(
    environment: Environment,
    old: FunctionLock | None,
    lock: FunctionLock,
    inputs: Inputs,
    resolving: Resolving,
) -> FunctionLock:
    if lock.python is None:
        return replace(lock, packages_inputs=packages_inputs(environment, lock.base, None, inputs))
    wanted = packages_inputs(environment, lock.base, lock.python, inputs)
    if old and old.packages_inputs == wanted and not resolving.refresh:
        return replace(lock, packages=old.packages, packages_inputs=wanted)
    from danlu.resolve.packages import resolve_packages

    kept: tuple[LockedPackage, ...] = ()
    if old and not resolving.upgrade_all:
        kept = tuple(one for one in old.packages if one.name not in resolving.upgrade)
    try:
        packages = await resolve_packages(environment, lock, kept, resolving)
    except ResolveError as error:
        error.span = error.span or _first_packages(environment)
        raise
    return replace(lock, packages=packages, packages_inputs=wanted)


def _first_packages(environment: Environment) -> Span | None:
    spans = [one.span for one in environment.python_packages if one.span.line]
    return spans[0] if spans else None


def _place(span: Span) -> Span | None:
    return span if span.line else None
