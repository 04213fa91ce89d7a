"""Bring a lock up to date with its environment: resolve only the sections whose inputs changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from danlu.environment.conda import has_conda_python
from danlu.environment.image_layout import CONDA_PREFIX
from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedConda,
    LockedPackage,
    LockedPython,
    LockedSetting,
    LockedSystem,
    list_pinned_packages,
)
from danlu.environment.requirements import (
    digest_base_inputs,
    digest_conda_table,
    digest_package_inputs,
    digest_python_inputs,
    digest_system_inputs,
    has_build_requirements,
    list_system_packages,
    needs_python,
    requested_python_version,
)
from danlu.environment.types import Environment, PipIndex, ProjectDigests, UvTool
from danlu.errors import DanluError, OutsideError, ResolveError, Span, UsageError
from danlu.graph.ops import DebPackage
from danlu.graph.processor_level import LEVEL_ARCHITECTURE
from danlu.lang.functions import LOCK_SECTIONS
from danlu.resolve.context import ResolveContext

# The resolvers of the sections are imported where they are used: adding a package to a locked
# environment is measured in tenths of a second, and must not load apt, OCI and sandbox code.


class _ProblemCollector:
    """Collects what is wrong with a build file, so that one error lists all of it.

    Failures of the network or the machine are not collected: they end the resolution.
    """

    def __init__(self) -> None:
        self._errors: list[UsageError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep a :class:`UsageError` of the block for :meth:`raise_all`."""
        try:
            yield
        except UsageError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raise the error, or one that lists all errors in the order of the file."""
        if not self._errors:
            return
        errors = sorted(self._errors, key=lambda error: error.span.line if error.span else 0)
        if len(errors) == 1:
            raise errors[0]
        details: list[str] = []
        for error in errors:
            details.append(f"{error.span}: {error.message}" if error.span else error.message)
            details += [f"    {line}" for line in error.details]
            if error.hint:
                details.append(f"    hint: {error.hint}")
        raise ResolveError(
            f"{len(errors)} problems", span=errors[0].span, details=tuple(details)
        ) from errors[0]


@contextmanager
def _blame_line(span: Span | None) -> Iterator[None]:
    """Add the line of the declaration that failed to errors without a location."""
    try:
        yield
    except DanluError as error:
        error.span = error.span or (span if span and span.line else None)
        raise


async def resolve(
    environment: Environment,
    old: FunctionLock | None,
    inputs: ProjectDigests,
    context: ResolveContext,
) -> FunctionLock:
    """Return the lock of ``environment``; sections of ``old`` are kept if their ``inputs`` still
    match.

    Raises :class:`ResolveError` for requirements that cannot be satisfied and :class:`OutsideError`
    for sources that cannot be reached, with the line of the build file if one is responsible.
    """
    _check_upgrades(old, context)
    if environment.apt_source is not None:
        from danlu.resolve.system import confine_apt_source

        confine_apt_source(environment.apt_source, context.project)
    base = await _lock_base(environment, old, context)
    problems = _ProblemCollector()
    conda: LockedConda | None = None
    with problems.collect():
        conda = await _lock_conda(environment, old, base, inputs, context)
    # Pins may need system packages, so they come first.
    sections = await _lock_sections(environment, old, base, context, problems)
    pinned = list_pinned_packages(sections)
    python: LockedPython | None = None
    names: tuple[str, ...] = ()
    system: LockedSystem | None = None
    with problems.collect():
        python, names = await _lock_python(environment, old, base, pinned, conda, context)
    with problems.collect():
        system = await _lock_system(environment, old, base, python, (names, pinned), context)
    problems.raise_all()
    lock = FunctionLock(
        platform=str(context.platform),
        base=base,
        python=python,
        system=system,
        conda=conda,
        sections=sections,
    )
    lock = await _lock_packages(environment, old, lock, inputs, context)
    for declaration in environment.declarations:
        declaration.check_lock(lock)
    return lock


def _check_upgrades(old: FunctionLock | None, context: ResolveContext) -> None:
    """Raise if a package to upgrade is not in the lock."""
    if not context.upgrade:
        return
    known: list[str] = []
    if old is not None:
        debs = (*old.base.packages, *(old.system.packages if old.system else ()))
        known = [*(deb.name for deb in debs), *(package.name for package in old.packages)]
        known += [package.name for package in old.conda.packages] if old.conda else []
        if old.python and old.python.archive:
            known.append(old.python.archive.name)
        for section in LOCK_SECTIONS.values():
            known += [section.describe(pin)[0] for pin in section.pins(old)]
    for name in context.upgrade:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "run `danlu lock` to lock it first"
            raise UsageError(f"{name} is not in the lock", hint=hint)


async def _lock_base(
    environment: Environment, old: FunctionLock | None, context: ResolveContext
) -> LockedBase:
    wanted = digest_base_inputs(environment, context.platform)
    is_leveled = context.platform.architecture == LEVEL_ARCHITECTURE
    variant = environment.base.variant if is_leveled else ""
    if old and not context.refresh:
        # Another level of processors needs no other packages.
        before = replace(environment.base, variant=old.base.variant)
        same = replace(environment, base=before)
        if old.base.inputs == digest_base_inputs(same, context.platform):
            return replace(old.base, inputs=wanted, variant=variant)
    with _blame_line(environment.base.span):
        base = await _resolve_base(environment, old, context)
    return replace(base, inputs=wanted, variant=variant)


async def _resolve_base(
    environment: Environment, old: FunctionLock | None, context: ResolveContext
) -> LockedBase:
    if environment.base.image:
        from danlu.resolve.image import resolve_image_base

        return await resolve_image_base(environment.base.image, context)
    from danlu.resolve.system import resolve_base

    return await resolve_base(
        environment.base.os,
        context.platform,
        apt=environment.apt_source,
        paths=context.paths,
        config=context.config,
        offline=context.offline,
        refresh=context.refresh,
        keep=_reusable_base_debs(old, context),
    )


def _reusable_base_debs(
    old: FunctionLock | None, context: ResolveContext
) -> tuple[DebPackage, ...]:
    if old is None or context.upgrade_all:
        return ()
    return tuple(deb for deb in old.base.packages if deb.name not in context.upgrade)


async def _lock_conda(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    inputs: ProjectDigests,
    context: ResolveContext,
) -> LockedConda | None:
    wanted = digest_conda_table(environment, base, context.platform, inputs)
    if not wanted:
        return None
    if old and old.conda and old.conda.inputs == wanted and not context.refresh:
        return old.conda
    from danlu.resolve.conda import resolve_conda

    kept = old.conda.packages if old and old.conda else ()
    return LockedConda(wanted, await resolve_conda(environment, base, kept, context))


async def _lock_python(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    pinned: tuple[str, ...],
    conda: LockedConda | None,
    context: ResolveContext,
) -> tuple[LockedPython | None, tuple[str, ...]]:
    """Return the interpreter and the system packages that provide it."""
    if not needs_python(environment):
        return None, ()
    version = requested_python_version(environment)
    wanted = digest_python_inputs(environment, base, conda)
    if has_conda_python(environment):
        if conda is None:
            return None, ()  # its problem is collected
        package = conda.find("python")
        assert package is not None, "list_all_conda_packages() asks for one"
        minor = ".".join(package.version.split(".")[:2])
        executable = f"{CONDA_PREFIX}/bin/python{minor}"
        return LockedPython(wanted, package.version, executable, "conda"), ()
    if base.interpreter and _version_matches(base.python, version):
        return LockedPython(wanted, base.python, base.interpreter, "image"), ()
    if _can_reuse_python(environment, old, base, wanted, pinned) and not context.refresh:
        assert old is not None
        return old.python, ()
    declared = environment.python or environment.find(UvTool)
    with _blame_line(declared.span if declared else None):
        python, names = await _find_python(version, environment, old, base, context)
    return replace(python, inputs=wanted), names


async def _find_python(
    version: str,
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    context: ResolveContext,
) -> tuple[LockedPython, tuple[str, ...]]:
    """Return the distribution's Python with its packages, else a standalone build."""
    from danlu.resolve.system import distribution_python

    try:
        choice = await distribution_python(
            base,
            version,
            platform=context.platform,
            paths=context.paths,
            config=context.config,
            offline=context.offline,
            apt=environment.apt_source,
        )
        return LockedPython("", choice.version, choice.executable, "apt"), choice.names
    except UsageError as error:
        if not version:
            raise
        from danlu.resolve.python.standalone import lock_standalone_python

        python = await lock_standalone_python(
            version,
            base,
            old.python if old else None,
            context,
            declared=environment.mirrors(),
            failure=error,
        )
        return python, ()


def _can_reuse_python(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    wanted: str,
    pinned: tuple[str, ...],
) -> bool:
    """Return whether the interpreter and the system packages it came with are unchanged."""
    if old is None or old.python is None or old.system is None or old.python.inputs != wanted:
        return False
    return old.system.inputs == digest_system_inputs(environment, base, old.python, pinned)


def _version_matches(have: str, wanted: str) -> bool:
    return not wanted or have == wanted or have.startswith(wanted + ".")


async def _lock_system(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    python: LockedPython | None,
    extra: tuple[tuple[str, ...], tuple[str, ...]],
    context: ResolveContext,
) -> LockedSystem | None:
    """Lock the declared packages, and ``extra``: those of the interpreter and those of pins."""
    interpreter, pinned = extra
    wanted = digest_system_inputs(environment, base, python, pinned)
    if old and old.system and old.system.inputs == wanted and not context.refresh:
        return old.system
    names = tuple(sorted({*list_system_packages(environment), *interpreter, *pinned}))
    if not names:
        return LockedSystem(inputs=wanted)
    from danlu.resolve.system import require_apt, resolve_system

    try:
        require_apt(base, names)
        packages = await resolve_system(
            base,
            names,
            keep=_reusable_system_debs(old, context),
            platform=context.platform,
            paths=context.paths,
            config=context.config,
            offline=context.offline,
            refresh=context.refresh,
            apt=environment.apt_source,
            status=await _read_installed_status(base, context),
        )
    except DanluError as error:
        error.span = error.span or _find_system_span(environment, error.message)
        raise
    return LockedSystem(inputs=wanted, packages=packages, requested=names)


async def _read_installed_status(base: LockedBase, context: ResolveContext) -> str | None:
    """Return the dpkg status of an image base; None if the lock lists its packages."""
    if base.image is None:
        return None
    from danlu.resolve.image import read_dpkg_status

    return await read_dpkg_status(base, context)


def _reusable_system_debs(
    old: FunctionLock | None, context: ResolveContext
) -> tuple[DebPackage, ...]:
    if old is None or old.system is None or context.upgrade_all:
        return ()
    return tuple(deb for deb in old.system.packages if deb.name not in context.upgrade)


def _find_system_span(environment: Environment, message: str) -> Span | None:
    """Return the line whose package the message names, or else the first line with packages."""
    declaring = [
        item
        for item in (*environment.declarations, environment.base)
        if item.system_packages() and item.span.line
    ]
    for declaration in declaring:
        if any(name.partition("=")[0] in message for name in declaration.system_packages()):
            return declaration.span
    return declaring[0].span if declaring else None


async def _lock_sections(
    environment: Environment,
    old: FunctionLock | None,
    base: LockedBase,
    context: ResolveContext,
    problems: _ProblemCollector,
) -> dict[str, tuple[msgspec.Struct, ...]]:
    """Return the pins of all build functions that own a section of the lock."""
    sections: dict[str, tuple[msgspec.Struct, ...]] = {}
    # Files and digests are for a platform, and so is what was pinned.
    before = old if old and old.platform == str(context.platform) else None
    for name, section in LOCK_SECTIONS.items():
        pins = section.pins(before)
        if context.refresh or section.is_stale(environment, pins):
            from danlu.resolve.sections import SectionSources

            sources = SectionSources(environment, base, context)
            with problems.collect():
                pins = await section.resolve(environment, pins, sources)
        if pins:
            sections[name] = pins
    return sections


async def _lock_packages(
    environment: Environment,
    old: FunctionLock | None,
    lock: FunctionLock,
    inputs: ProjectDigests,
    context: ResolveContext,
) -> FunctionLock:
    if lock.python is None:
        return replace(
            lock, packages_inputs=digest_package_inputs(environment, lock.base, None, inputs)
        )
    wanted = digest_package_inputs(environment, lock.base, lock.python, inputs)
    # The same requirements resolve to other wheels on another platform.
    is_current = (
        old is not None
        and old.platform == lock.platform
        and old.packages_inputs == wanted
        and has_build_requirements(old)
    )
    if old and is_current and not context.refresh:
        return replace(
            lock,
            packages=old.packages,
            build_packages=old.build_packages,
            package_settings=old.package_settings,
            packages_inputs=wanted,
        )
    from danlu.resolve.python.resolver import resolve_packages

    kept: tuple[LockedPackage, ...] = ()
    if old and not context.upgrade_all:
        kept = tuple(package for package in old.packages if package.name not in context.upgrade)
    spans = [packages.span for packages in environment.python_packages if packages.span.line]
    indexes = [index.span for index in environment.find_all(PipIndex)]
    try:
        builds = old.build_packages if old and not context.upgrade_all else ()
        resolved = await resolve_packages(environment, lock, kept, builds, context)
    except ResolveError as error:
        error.span = error.span or next(iter(spans), None)
        reason = " ".join((error.message, *error.details))
        hints = (declaration.explain_conflict(reason) for declaration in environment.declarations)
        error.hint = next((hint for hint in hints if hint), error.hint)
        raise
    except OutsideError as error:
        error.span = error.span or next(iter((*indexes, *spans)), None)
        raise
    if lock.python.lacks_gil:
        _reject_binary_wheels(resolved.packages, environment)
    return replace(
        lock,
        packages=resolved.packages,
        build_packages=resolved.wheels,
        package_settings=_merge_settings(resolved.settings, old, kept, resolved.packages),
        packages_inputs=wanted,
    )


def _merge_settings(
    settings: tuple[LockedSetting, ...],
    old: FunctionLock | None,
    kept: Sequence[LockedPackage],
    packages: Sequence[LockedPackage],
) -> tuple[LockedSetting, ...]:
    """Return ``settings`` with those of the old lock that chose a package that is unchanged."""
    same = {package.name for package in set(kept) & set(packages)}
    before = [item for item in old.package_settings if item.package in same] if old else []
    return tuple(sorted({*settings, *before}, key=msgspec.structs.astuple))


def _reject_binary_wheels(packages: Sequence[LockedPackage], environment: Environment) -> None:
    """Raise if a package has C code: uv selects wheels for Python with the GIL only."""
    for package in packages:
        if not package.file.endswith("-none-any.whl"):
            named = [item for item in environment.python_packages if item.span.line]
            raise ResolveError(
                f"{package.name} {package.version} has compiled code, and danlu cannot select "
                "wheels for a free-threaded Python yet",
                span=named[0].span if named else None,
                hint="use the same version without `t`, or only packages that are pure Python",
            )
