"""Python packages of an environment: what it asks for, handed to the resolver, and its pins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.needs import python_needs
from danlu.environment.types import Environment
from danlu.sources.pypi import (
    File,
    Pin,
    Target,
    Uv,
    compile_pins,
    indexes_of,
    locate_files,
)

if TYPE_CHECKING:
    from danlu.resolve.resolve import Resolving

__all__ = ["resolve_packages"]


async def resolve_packages(
    environment: Environment,
    lock: FunctionLock,
    kept: tuple[LockedPackage, ...],
    resolving: Resolving,
) -> tuple[LockedPackage, ...]:
    """All packages that the environment needs, sorted by name."""
    assert lock.python is not None
    needs = python_needs(environment)
    files = [resolving.project / one.requirements for one in needs if one.requirements]
    uv = Uv(
        resolving.paths.cache / "uv",
        resolving.project,
        indexes_of(environment.pip_index, files),
        offline=resolving.offline,
    )
    target = Target(lock.python.version, lock.base.libc, resolving.platform.architecture)
    with resolving.store.staging() as scratch:
        source = scratch / "requirements.in"
        names = sorted({name for one in needs for name in one.names})
        wheels = [str(resolving.project / one) for need in needs for one in need.local_wheels]
        source.write_text("".join(f"{line}\n" for line in (*names, *wheels)))
        sources = [str(source), *map(str, files)]
        if not kept:
            found = await locate_files(uv, sources, target, scratch=scratch, dependencies=True)
            return tuple(_locked(one) for one in found)
        return await _again(uv, sources, target, kept, scratch)


async def _again(
    uv: Uv, sources: list[str], target: Target, kept: tuple[LockedPackage, ...], scratch: Path
) -> tuple[LockedPackage, ...]:
    """Resolve with the locked versions preferred, and locate files only for what is new."""
    preferences = [Pin(one.name, one.version) for one in kept if one.source == "index"]
    pins = await compile_pins(uv, sources, target, scratch=scratch, preferences=preferences)
    known = {(one.name, one.version): one for one in kept}
    stays = [known[pin.name, pin.version] for pin in pins if (pin.name, pin.version) in known]
    new = [pin for pin in pins if (pin.name, pin.version) not in known]
    if not new:
        return tuple(sorted(stays, key=lambda one: one.name))
    wanted = scratch / "new.in"
    wanted.write_text("".join(f"{pin.line}\n" for pin in new))
    found = await locate_files(uv, [str(wanted)], target, scratch=scratch)
    return tuple(sorted((*stays, *map(_locked, found)), key=lambda one: one.name))


def _locked(one: File) -> LockedPackage:
    return LockedPackage(
        name=one.name,
        version=one.version,
        source="index",
        file=one.file,
        sha256=one.sha256,
        size=one.size,
    )
