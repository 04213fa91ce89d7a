"""Find the URLs of locked files of Python packages."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.types import Environment
from danlu.errors import DanluError, OutsideError, ResolveError, UsageError
from danlu.resolve.python.request import collect_indexes
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.simple_index import find_file
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import Pin, locate_urls
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.util.config import Configuration
from danlu.util.paths import Paths


async def find_file_urls(
    environment: Environment,
    lock: FunctionLock,
    *,
    project: Path,
    paths: Paths,
    config: Configuration,
) -> dict[str, str]:
    """Return the URL of each file of ``lock`` that comes from an index, by sha256.

    Raises :class:`OutsideError` naming a file that the user's indexes no longer have, and
    :class:`UsageError` for wheels that only some processors run.
    """
    assert lock.python is not None
    for package in lock.packages:
        if split_variant_label(package.file)[1]:
            # Installers must know the variants, which the index may change (PEP 825, pylock.toml).
            raise UsageError(
                f"cannot export {package.file}: it is for {lock.base.variant} processors",
                hint="remove `variant` from base() and lock again",
            )
    architecture = lock.platform.split("/")[1]
    target = PlatformTarget(lock.python.version, lock.base.libc, architecture)
    uv = Uv(paths.cache / "uv", project, collect_indexes(environment, project, config))
    wheels = [package for package in lock.packages if package.source == "index"]
    urls = await _find_wheel_urls(uv, wheels, target, paths.cache) if wheels else {}
    for package in lock.packages:
        # Not with uv: it would build a source distribution to get its metadata.
        if package.source == "sdist":
            urls[package.sha256] = await find_file(
                uv, package.name, package.file, cache=paths.cache / "http"
            )
    return urls


async def _find_wheel_urls(
    uv: Uv, wheels: Sequence[LockedPackage], target: PlatformTarget, cache: Path
) -> dict[str, str]:
    pins = [Pin(wheel.name, wheel.version) for wheel in wheels]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=cache) as scratch:
        try:
            urls = await locate_urls(uv, pins, target, scratch=Path(scratch))
        except ResolveError as error:
            raise await _missing_file_error(uv, wheels, error, cache) from error
    for wheel in wheels:
        if wheel.sha256 not in urls:
            raise OutsideError(
                f"no package index has the locked file {wheel.file}",
                hint=f"run `danlu lock --upgrade {wheel.name}` to lock an available version",
            )
    return {wheel.sha256: urls[wheel.sha256] for wheel in wheels}


async def _missing_file_error(
    uv: Uv, wheels: Sequence[LockedPackage], refused: ResolveError, cache: Path
) -> DanluError:
    """Return the error for the file that made uv reject exact versions."""
    for wheel in wheels:
        try:
            await find_file(uv, wheel.name, wheel.file, cache=cache / "http")
        except OutsideError as error:
            return error
    return refused
