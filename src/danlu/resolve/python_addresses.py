"""Where locked Python packages can be downloaded now: the lock itself holds no addresses."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.needs import python_needs
from danlu.environment.types import Environment
from danlu.errors import DanluError, OutsideError, ResolveError
from danlu.sources.pypi import Indexes, Pin, Target, Uv, indexes_of
from danlu.sources.pypi.compiling import locate_addresses
from danlu.sources.pypi.simple import find_file
from danlu.util.paths import Paths

__all__ = ["declared_indexes", "file_addresses"]


def declared_indexes(environment: Environment, project: Path) -> Indexes:
    """The package indexes that the environment and its requirements files name."""
    declared = python_needs(environment)
    files = [project / one.requirements for one in declared if one.requirements]
    return indexes_of(environment.pip_index, files)


async def file_addresses(
    environment: Environment, lock: FunctionLock, *, project: Path, paths: Paths
) -> dict[str, str]:
    """The address of each file of ``lock`` that comes from an index, by sha256.

    Raises :class:`OutsideError` naming a file that the user's indexes no longer have.
    """
    assert lock.python is not None
    architecture = lock.platform.split("/")[1]
    target = Target(lock.python.version, lock.base.libc, architecture)
    uv = Uv(paths.cache / "uv", project, declared_indexes(environment, project))
    wheels = [one for one in lock.packages if one.source == "index"]
    found = await _of_wheels(uv, wheels, target, paths.cache) if wheels else {}
    for one in lock.packages:
        # uv is no help: it would run a source distribution to know what it needs.
        if one.source == "sdist":
            found[one.sha256] = await find_file(uv, one.name, one.file, cache=paths.cache / "http")
    return found


async def _of_wheels(
    uv: Uv, wheels: Sequence[LockedPackage], target: Target, cache: Path
) -> dict[str, str]:
    pins = [Pin(one.name, one.version) for one in wheels]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=cache) as scratch:
        try:
            found = await locate_addresses(uv, pins, target, scratch=Path(scratch))
        except ResolveError as error:
            raise await _missing(uv, wheels, error, cache) from error
    for one in wheels:
        if one.sha256 not in found:
            raise OutsideError(
                f"no package index has {one.file} as the lock names it",
                hint=f"`danlu lock --upgrade {one.name}` replaces it by what there is",
            )
    return {one.sha256: found[one.sha256] for one in wheels}


async def _missing(
    uv: Uv, wheels: Sequence[LockedPackage], refused: ResolveError, cache: Path
) -> DanluError:
    """The error for the file that made uv refuse exact versions."""
    for one in wheels:
        try:
            await find_file(uv, one.name, one.file, cache=cache / "http")
        except OutsideError as error:
            return error
    return refused
