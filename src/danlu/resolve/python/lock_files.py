"""Packages that a ``pylock.toml`` or ``uv.lock`` of the project has locked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from packaging.requirements import Requirement

from danlu.environment.lock import LockedPackage
from danlu.environment.package_names import normalize_name, requirement_name
from danlu.errors import ResolveError
from danlu.resolve.python.pylock import import_pylock, marker_environment
from danlu.resolve.python.request import ResolveTask
from danlu.resolve.python.requirements import (
    DeclaredRequirements,
    UvRequirement,
    collect_requirements,
)
from danlu.resolve.python.sandboxed import hash_sources
from danlu.resolve.python.uv_lock import import_uv_lock
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import attach_span
from danlu.util.urls import mask_credentials


async def import_lock_file(
    task: ResolveTask,
) -> tuple[tuple[LockedPackage, ...], ResolveTask | None]:
    """Return the packages of a ``pylock.toml`` or ``uv.lock``, and the task to resolve the others.

    That is None if the file has all that is declared.
    """
    request, wanted = task.request, task.wanted
    path = _find_lock_file(wanted)
    is_uv = bool(wanted.uv_locks)
    if is_uv:
        listed = await _import_uv_locks(task)
    else:
        where = next(
            (item.span for item in request.declared if item.requirements.endswith(path.name)), None
        )
        with attach_span(where if where and where.line else None):
            listed = import_pylock(path, request.target, project=request.project)
    packages = await hash_sources(request, listed)
    locked = {package.name: package for package in packages}
    # Packages implied by another declaration (with a `source`) may be missing: added below.
    users = [declared for declared in request.declared if not declared.source]
    declared = collect_requirements(users, request.project, request.target)
    if is_uv:  # it locks the project only
        lines = tuple(line for line in declared.lines if requirement_name(line.text) in locked)
        declared = replace(declared, lines=lines, sources=())
    conflicts = find_conflicts(packages, declared, request.target)
    if conflicts:
        raise ResolveError(
            f"{path.name} does not match the packages in the build file: {conflicts[0]}",
            details=tuple(conflicts[1:]),
            hint="add the requirement to pyproject.toml, and run `uv lock`"
            if is_uv
            else "generate it again from the requirements in the build file",
        )
    missing = tuple(line for line in wanted.lines if requirement_name(line.text) not in locked)
    kept, sources = dict(task.kept), wanted.sources[:0]
    if any(normalize_name(source.reference.name) not in locked for source in wanted.sources):
        # The others, too: these may require them, and no index has them.
        sources = wanted.sources
        missing = tuple(
            line
            for line in wanted.lines
            if line in missing or " @ " in line.text or requirement_name(line.text) in wanted.pins
        )
        kept |= locked
    if not missing and not sources:
        return packages, None
    # As constraints, so that the additions fit the file without changing it.
    pins = tuple(
        UvRequirement(f"{package.name}=={package.version}")
        for package in packages
        if package.version and package.source in ("index", "sdist")
    )
    additions = replace(
        wanted, lines=missing, constraints=pins, sources=sources, pylock_files=(), uv_locks=()
    )
    return packages, replace(task, wanted=additions, kept=kept)


def _find_lock_file(wanted: DeclaredRequirements) -> Path:
    """Return the one lock file that the environment uses; raise if there are several."""
    files = [*wanted.pylock_files, *dict.fromkeys(request.lock for request in wanted.uv_locks)]
    if len(files) > 1:
        raise ResolveError(
            f"{files[0].name} and {files[1].name} both lock a complete set of packages",
            hint="an environment can use only one pylock.toml or uv.lock",
        )
    return files[0]


async def _import_uv_locks(task: ResolveTask) -> tuple[LockedPackage, ...]:
    """Return the packages that all projects with this ``uv.lock`` need."""
    packages: dict[str, LockedPackage] = {}
    for number, wanted in enumerate(task.wanted.uv_locks):
        scratch = task.scratch / f"lock-{number}"
        scratch.mkdir()
        with attach_span(wanted.span):
            listed = await import_uv_lock(wanted, task.request.target, scratch, task.request.report)
        for package in listed:
            if packages.setdefault(package.name, package) != package:
                raise ResolveError(
                    f"{wanted.lock.name} has different versions of {package.name} for different"
                    " extras or groups",
                    span=wanted.span,
                )
    return tuple(packages[name] for name in sorted(packages))


def find_conflicts(
    packages: Sequence[LockedPackage], wanted: DeclaredRequirements, target: PlatformTarget
) -> list[str]:
    """Return a sentence for each declared requirement that a set of packages does not satisfy.

    For sets made by other tools. Only names and versions of the declared requirements are checked;
    the dependencies among the packages were the other tool's business.
    """
    by_name = {normalize_name(package.name): package for package in packages}
    environment = marker_environment(target)
    conflicts = [
        f"{mask_credentials(source.text)} is built from source and cannot be part of it"
        for source in wanted.sources
    ]
    for line in (*wanted.lines, *wanted.constraints):
        requirement = Requirement(line.text)
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            continue
        package = by_name.get(normalize_name(requirement.name))
        if package is None:
            if line in wanted.lines:
                conflicts.append(f"{line.text} is missing")
        elif package.version and not requirement.specifier.contains(
            package.version, prereleases=True
        ):
            conflicts.append(
                f"it has {package.name} {package.version}, but {line.text} is required"
            )
    return conflicts
