"""Lock what source distributions are built with: the requirements of their build backends.

Wheels only, so that nothing has to be built to build something. A backend may ask for more than
``build-system.requires`` (PEP 517, ``get_requires_for_build_wheel``); it is asked in the sandbox.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.lock import LockedPackage, LockedSetting
from danlu.environment.package_names import normalize_name, requirement_name
from danlu.errors import OutsideError, ResolveError
from danlu.resolve.python.request import PythonRequest, fits_target, to_locked_package
from danlu.resolve.python.requirements import DeclaredRequirements
from danlu.resolve.python.sandboxed import read_sandbox_output
from danlu.sandbox.machine_settings import WHEN_LOCKING
from danlu.sandbox.types import SYSTEM_PATH, Mount
from danlu.sources import git
from danlu.sources.http import fetch
from danlu.sources.pypi.build_system import LOAD_BACKEND, BuildSystem, parse_build_system
from danlu.sources.pypi.editable_metadata import copy_for_editable
from danlu.sources.pypi.requirements import urls_with_credentials
from danlu.sources.pypi.scm_version import VERSION_VARIABLE, write_description
from danlu.sources.pypi.sdist_build import BUILD_WHEELS, UV_INSIDE, chown_to_builder
from danlu.sources.pypi.simple_index import fetch_file
from danlu.sources.pypi.source_tree import copy_source
from danlu.sources.pypi.uv import Uv, find_uv
from danlu.sources.pypi.uv_compile import Pin, locate_files
from danlu.util.decoding import decode_json
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import mask_credentials

_WORK = "/run/danlu/resolve"

_UNPACK = """\
cd /run/danlu/resolve && mkdir unpacked && "$PYTHON" -c \
    'import shutil, sys; shutil.unpack_archive(sys.argv[1], "unpacked")' "$ARCHIVE" 2>messages.txt \
    || exit 1
set -- unpacked/*
[ $# = 1 ] && [ -d "$1" ] && exec mv "$1" source
exec mv unpacked source
"""

_ASK_BACKEND = """\
export HOME=/tmp UV_CACHE_DIR=/run/danlu/resolve/cache UV_NO_PROGRESS=1 NO_COLOR=1
export UV_PYTHON_DOWNLOADS=never UV_OFFLINE=1 PIP_NO_INDEX=1
cd "/run/danlu/resolve/source/$SUBDIRECTORY" || exit 125
exec 2>/run/danlu/resolve/messages.txt
/run/danlu/uv venv -q --python "$PYTHON" /tmp/build || exit
/run/danlu/uv pip install -q --no-deps --no-index --find-links /run/danlu/build-wheels \
    --python /tmp/build/bin/python -r /run/danlu/resolve/pins.txt || exit
exec /tmp/build/bin/python /run/danlu/resolve/hook.py >/run/danlu/resolve/output.txt
"""

#: The hook script's exit code if the backend cannot build that kind of wheel.
_LACKS_HOOK = 66

_HOOK = f"""{LOAD_BACKEND}
kind = os.environ["KIND"]
if not hasattr(backend, "build_" + kind):
    sys.exit({_LACKS_HOOK})
hook = getattr(backend, "get_requires_for_build_" + kind, None)
requires = list(hook()) if hook else []
with open("/run/danlu/resolve/requires.json", "w") as file:
    json.dump(requires, file)
"""


class LockedBuilds(msgspec.Struct, frozen=True):
    """Packages with their build requirements (``NAME==VERSION``), and the wheels of these.

    ``settings`` are those of this machine that restricted them.
    """

    packages: tuple[LockedPackage, ...]
    wheels: tuple[LockedPackage, ...] = ()
    settings: tuple[LockedSetting, ...] = ()


async def lock_build_requirements(
    request: PythonRequest,
    packages: Sequence[LockedPackage],
    old: LockedBuilds,
    *,
    upgrade: Sequence[str] = (),
    scratch: Path,
) -> LockedBuilds:
    """Return ``packages`` with the build requirements of those that must be built.

    A package that did not change keeps them, unless one is in ``upgrade``. Raises
    :class:`ResolveError` naming the package if its requirements have no wheels, or its backend
    fails.
    """
    known = {package.name: package for package in old.packages}
    wheels = {pin_wheel(wheel): wheel for wheel in old.wheels if fits_target(wheel, request.target)}
    found: dict[str, LockedPackage] = {}
    locked = []
    for number, package in enumerate(packages):
        if package.file.endswith(".whl"):
            locked.append(package)
            continue
        before = known.get(package.name)
        pins = before.build if before and _is_same_source(before, package) else None
        extra = _list_extra_requirements(request, package, packages)
        if pins is not None and not _fits_settings(request, pins, extra):
            pins = None
        names = {pin.partition("==")[0] for pin in pins or ()}
        if pins is None or names & set(upgrade) or not wheels.keys() >= set(pins):
            place = scratch / f"build-{number}"
            place.mkdir()
            # Locked versions stay if possible, as those of packages do.
            pairs = [pin.split("==") for pin in (before.build if before else None) or ()]
            kept = [Pin(name, version) for name, version in pairs if name not in upgrade]
            listed = await _resolve_build(request, package, extra, kept, place)
            wheels |= {pin_wheel(wheel): wheel for wheel in listed}
            pins = tuple(sorted(pin_wheel(wheel) for wheel in listed))
        found |= {pin: wheels[pin] for pin in pins}
        locked.append(replace(package, build=pins))
    return LockedBuilds(tuple(locked), tuple(found[pin] for pin in sorted(found)))


def pin_wheel(wheel: LockedPackage) -> str:
    """Return how a package's ``build`` names a wheel."""
    return f"{wheel.name}=={wheel.version}"


def _is_same_source(before: LockedPackage, package: LockedPackage) -> bool:
    return replace(before, build=None) == replace(package, build=None)


def _list_extra_requirements(
    request: PythonRequest, package: LockedPackage, packages: Sequence[LockedPackage]
) -> tuple[str, ...]:
    """Return what this machine's settings add to the build of ``package``."""
    versions = {locked.name: locked.version for locked in packages}
    listed = []
    for extra in request.restrictions.extra_builds.get(package.name, ()):
        name = requirement_name(extra.requirement)
        if extra.match_runtime and name not in versions:
            raise ResolveError(
                f"{name} is not installed, but the build of {package.name} must match its version",
                hint="correct `extra-build-dependencies` in uv's configuration",
            )
        pin = f"{name}=={versions[name]}" if extra.match_runtime else extra.requirement
        listed.append(pin)
    return tuple(listed)


def _fits_settings(request: PythonRequest, pins: Sequence[str], extra: Sequence[str]) -> bool:
    """Return whether locked build requirements are what the settings allow, and have ``extra``."""
    versions = dict(pin.split("==") for pin in pins)
    wanted = [Requirement(text) for text in extra]
    return request.restrictions.allows_build(pins) and all(
        (version := versions.get(normalize_name(requirement.name)))
        and requirement.specifier.contains(version, prereleases=True)
        for requirement in wanted
    )


async def _resolve_build(
    request: PythonRequest,
    package: LockedPackage,
    extra: Sequence[str],
    kept: Sequence[Pin],
    place: Path,
) -> tuple[LockedPackage, ...]:
    """Return the wheels that ``package`` is built with; ``place`` is an empty directory."""
    locate = partial(_locate_wheels, request, package, kept)
    work = place / "work"
    work.mkdir()
    try:
        await _unpack_source(request, package, work)
        system = _read_build_system(work, package)
        system = replace(system, requires=(*system.requires, *extra))
        wheels = await locate(system.requires, place / "static")
        more = await _ask_backend(request, package, system, wheels, work)
        if more:
            wheels = await locate((*system.requires, *more), place / "dynamic")
        return wheels
    finally:
        await anyio.to_thread.run_sync(partial(shutil.rmtree, work, ignore_errors=True))


async def _unpack_source(request: PythonRequest, package: LockedPackage, work: Path) -> None:
    """Put the source tree into ``work/source``; an archive is unpacked in the sandbox."""
    cache, source = request.paths.cache, work / "source"
    urls = urls_with_credentials(request.declared, request.project)
    url = urls.get(package.location, package.location)
    if package.source == "git":

        def check_out() -> None:
            tree = git.checkout(url, package.commit, cache=cache / "git", offline=request.offline)
            shutil.copytree(tree, source, symlinks=True)

        await anyio.to_thread.run_sync(check_out)
    elif not package.file:
        copy = copy_for_editable if package.editable else copy_source
        await anyio.to_thread.run_sync(partial(copy, request.project, package.location, source))
    else:
        if package.source == "sdist":
            file = await _fetch_locked(request, package)
        else:
            if package.source == "local":
                with ProjectTree(request.project) as tree:
                    url = tree.resolve(package.location).as_uri()
            fetched = await fetch(
                url, package.sha256, cache=cache / "http", offline=request.offline
            )
            file = fetched.path
        shutil.copyfile(file, work / package.file)
        variables = {"ARCHIVE": package.file}
        if await _run_script(request, _UNPACK, work, variables):
            raise ResolveError(f"cannot unpack {package.file}", details=_last_lines(work))


async def _fetch_locked(request: PythonRequest, package: LockedPackage) -> Path:
    cache = request.paths.cache
    uv = Uv(cache / "uv", request.project, request.indexes, offline=request.offline)
    fetched = await fetch_file(uv, package.name, package.file, package.sha256, cache=cache / "http")
    return fetched.path


def _read_build_system(work: Path, package: LockedPackage) -> BuildSystem:
    """Return the build system of the source in ``work``."""
    name = "/".join(filter(None, ("source", package.subdirectory, "pyproject.toml")))
    return parse_build_system(read_sandbox_output(work, name), package.name)


async def _locate_wheels(
    request: PythonRequest,
    package: LockedPackage,
    kept: Sequence[Pin],
    requires: Sequence[str],
    scratch: Path,
) -> tuple[LockedPackage, ...]:
    """Return wheels for build requirements and their dependencies, ``kept`` ones if possible."""
    if not requires:
        return ()
    scratch.mkdir()
    lines = [_check_requirement(text, package) for text in requires]
    listing = scratch / "requires.txt"
    listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    constraints = scratch / "constraints.txt"
    restrictions = request.restrictions
    limits = restrictions.list_lines("building")
    constraints.write_text("".join(f"{line}\n" for line in limits), encoding="utf-8")
    uv = Uv(
        request.paths.cache / "uv",
        request.project,
        request.indexes,
        offline=request.offline,
        decisions=WHEN_LOCKING,
    )
    try:
        files = await locate_files(
            uv,
            [
                *(str(listing), "--constraints", str(constraints)),
                *restrictions.to_options("resolving"),
                *restrictions.to_options("building"),
            ],
            request.target,
            scratch=scratch,
            dependencies=True,
            preferences=kept,
        )
    except ResolveError as error:
        restrictions.explain(error)
        error.message = f"build requirements of {package.name}: {error.message}"
        raise
    return tuple(to_locked_package(file, DeclaredRequirements()) for file in files)


def _check_requirement(text: str, package: LockedPackage) -> str:
    """Return a requirement in canonical form: uv gets no other text of a stranger."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ResolveError(
            f"invalid build requirement {mask_credentials(text)!r} of {package.name}"
        ) from error
    if requirement.url is not None:
        raise ResolveError(
            f"build requirement {requirement.name} of {package.name} is a URL, which cannot be"
            " locked",
            hint="build a wheel of the package and install it with local_wheels=",
        )
    return str(requirement)


async def _ask_backend(
    request: PythonRequest,
    package: LockedPackage,
    system: BuildSystem,
    wheels: Sequence[LockedPackage],
    work: Path,
) -> tuple[str, ...]:
    """Return what the backend requires beyond ``system.requires``."""
    directory = work.with_name("wheels")
    directory.mkdir()
    if not package.file and package.source == "local":
        write_description(work / "source" / package.subdirectory)
    for wheel in wheels:
        shutil.copyfile(await _fetch_locked(request, wheel), directory / wheel.file)
    (work / "pins.txt").write_text("".join(f"{pin_wheel(wheel)}\n" for wheel in wheels))
    (work / "hook.py").write_text(_HOOK)
    variables = {
        **system.to_variables(),
        "KIND": "editable" if package.editable else "wheel",
        "SUBDIRECTORY": package.subdirectory,
    }
    if not package.file and package.source == "local" and package.version:
        variables[VERSION_VARIABLE] = package.version
    mounts = [Mount(BUILD_WHEELS, directory, readonly=True)]
    code = await _run_script(request, _ASK_BACKEND, work, variables, mounts)
    if code == _LACKS_HOOK and package.editable:
        raise ResolveError(
            f"{package.name} cannot be installed with -e: its build backend"
            f" {system.build_backend} does not support it (PEP 660)",
            hint=f"use a newer version of the backend, or ./{package.location} without -e",
        )
    if code:
        raise ResolveError(
            f"the build backend of {package.name} failed",
            details=_last_lines(work),
            hint="if it needs programs, add them with install.apt_packages(...)",
        )
    try:
        text = read_sandbox_output(work, "requires.json")
        return decode_json(text, tuple[str, ...])
    except msgspec.DecodeError as error:
        raise OutsideError(
            f"the build backend of {package.name} reported no requirements"
        ) from error


async def _run_script(
    request: PythonRequest,
    script: str,
    work: Path,
    variables: Mapping[str, str],
    mounts: Sequence[Mount] = (),
) -> int:
    if request.run_in_sandbox is None:
        raise ResolveError("packages must be built from source, which is not possible here")
    chown_to_builder(work)
    environment = {"LC_ALL": "C.UTF-8", "PATH": SYSTEM_PATH, "PYTHON": request.executable}
    return await request.run_in_sandbox(
        ("/bin/sh", "-c", script),
        [Mount(UV_INSIDE, find_uv(), readonly=True), Mount(_WORK, work), *mounts],
        {**environment, **variables},
    )


def _last_lines(work: Path) -> tuple[str, ...]:
    lines = read_sandbox_output(work, "messages.txt").strip().splitlines()
    return tuple(mask_credentials(line) for line in lines[-16:])
