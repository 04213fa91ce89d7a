"""Resolve the Python packages of an environment, and find the URLs of locked files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock, LockedPackage, LockedSetting
from danlu.environment.requirements import list_python_packages
from danlu.environment.types import Environment
from danlu.errors import DanluError, OutsideError, ResolveError
from danlu.resolve.context import ResolveContext
from danlu.resolve.python.build_requirements import LockedBuilds, lock_build_requirements
from danlu.resolve.python.request import PythonRequest, SandboxRunner
from danlu.resolve.python.resolver import resolve_python
from danlu.sandbox.types import Mount
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.restrictions import read_restrictions, select_restrictions
from danlu.sources.pypi.sdist_build import BUILDER_UID
from danlu.sources.pypi.simple_index import find_file
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import Pin, locate_urls
from danlu.util.config import Configuration
from danlu.util.paths import Paths


async def resolve_packages(
    environment: Environment,
    lock: FunctionLock,
    kept: Sequence[LockedPackage],
    builds: Sequence[LockedPackage],
    context: ResolveContext,
) -> LockedBuilds:
    """Return all packages that the environment needs, sorted by name, with what they are built
    with; ``kept`` versions and their ``builds`` stay if possible.

    Raises :class:`ResolveError` with the responsible line, :class:`OutsideError` for an index that
    does not respond.
    """
    assert lock.python is not None
    declared = list_python_packages(environment)
    if not declared:
        return LockedBuilds(())
    request = PythonRequest(
        declared=declared,
        target=PlatformTarget(lock.python.version, lock.base.libc, context.platform.architecture),
        project=context.project,
        paths=context.paths,
        indexes=collect_indexes(environment, context.project, context.config),
        restrictions=read_restrictions(context.project),
        offline=context.offline,
        executable=lock.python.executable,
        run_in_sandbox=_sandbox_runner(lock, context),
        report=context.report,
    )
    packages = await resolve_python(
        request, kept, upgrade=context.upgrade, upgrade_all=context.upgrade_all
    )
    locked = LockedBuilds(packages)
    if any(not package.file.endswith(".whl") for package in packages):
        with tempfile.TemporaryDirectory(prefix=".builds-", dir=context.paths.cache) as scratch:
            locked = await lock_build_requirements(
                request,
                packages,
                LockedBuilds(tuple(kept), tuple(builds)),
                upgrade=context.upgrade,
                scratch=Path(scratch),
            )
    return replace(locked, settings=_list_settings(request, locked))


def _list_settings(request: PythonRequest, locked: LockedBuilds) -> tuple[LockedSetting, ...]:
    """Return the settings of this machine that restricted the packages."""
    applied = select_restrictions(
        request.restrictions.entries,
        (package.name for package in locked.packages),
        (wheel.name for wheel in locked.wheels),
    )
    settings = {
        LockedSetting(entry.setting, entry.value, entry.origin, entry.package) for entry in applied
    }
    return tuple(sorted(settings, key=msgspec.structs.astuple))


def _sandbox_runner(lock: FunctionLock, context: ResolveContext) -> SandboxRunner:
    """Return a function that runs programs in the base and system packages of ``lock``."""

    async def run(
        args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> int:
        # Only for packages that must be built to be resolved; the layers are built here, too.
        from danlu.sandbox.sandbox import Sandbox
        from danlu.sandbox.types import ProcessSpec, RootFilesystem

        layers = await context.build_system(lock)
        with context.store.staging() as work:
            config = context.config
            sandbox = Sandbox(work, name=config.runtime, seccomp=config.seccomp)
            upper = work / "upper"
            upper.mkdir()
            root = RootFilesystem(tuple(layer.tree for layer in layers), upper)
            process = ProcessSpec(tuple(args), environment, uid=BUILDER_UID, gid=BUILDER_UID)
            return await sandbox.run(process, root, mounts=mounts, on_line=context.on_output)

    return run


def collect_indexes(
    environment: Environment, project: Path, config: Configuration
) -> IndexSettings:
    """Return the package indexes that the environment and its requirements files name."""
    declared = list_python_packages(environment)
    return read_index_settings(environment.pip_index, declared, project, mirrors=config.mirrors)


async def find_file_urls(
    environment: Environment,
    lock: FunctionLock,
    *,
    project: Path,
    paths: Paths,
    config: Configuration,
) -> dict[str, str]:
    """Return the URL of each file of ``lock`` that comes from an index, by sha256.

    Raises :class:`OutsideError` naming a file that the user's indexes no longer have.
    """
    assert lock.python is not None
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
