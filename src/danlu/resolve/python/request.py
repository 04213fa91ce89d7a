"""The request to resolve Python packages, and the lock entries it produces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.package_names import normalize_name, versions_equal
from danlu.environment.requirements import list_python_packages
from danlu.environment.types import Environment, PythonPackages
from danlu.errors import ResolveError
from danlu.resolve.python.requirements import DeclaredRequirements, UvRequirement
from danlu.sandbox.types import Mount
from danlu.sources.http import fetch
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget, best_wheel
from danlu.sources.pypi.requirements import FormatControl, check_hashes, parse_reference
from danlu.sources.pypi.restrictions import MachineRestrictions
from danlu.sources.pypi.uv_compile import PackageFile, Pin
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from danlu.util.urls import mask_credentials, strip_credentials


class SandboxRunner(Protocol):
    """Runs a program in the image that the packages are for."""

    def __call__(
        self, args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> Awaitable[int]:
        """Return the exit code. The root file system is discarded; the network is available."""


class PythonRequest(msgspec.Struct, frozen=True):
    """What to resolve, for which target, and with which settings.

    ``executable`` is the path of the interpreter in the image. ``run_in_sandbox`` runs a program
    there; if it is None, packages that must be built are rejected. ``restrictions`` are those of
    this machine's configuration.
    """

    declared: Sequence[PythonPackages]
    target: PlatformTarget
    project: Path
    paths: Paths
    indexes: IndexSettings = msgspec.field(default_factory=IndexSettings)
    restrictions: MachineRestrictions = msgspec.field(default_factory=MachineRestrictions)
    offline: bool = False
    executable: str = "python3"
    run_in_sandbox: SandboxRunner | None = None
    report: Callable[[str], None] = lambda text: None


class ResolveTask(msgspec.Struct, frozen=True):
    """A request in progress: parsed requirements, locked packages to keep by name, a scratch
    directory.

    ``renew`` are the uv options for packages that may leave their locked version. ``required`` are
    packages in ``kept`` whose versions uv would not find as preferences
    (:mod:`danlu.resolve.python.hidden_versions`).
    """

    request: PythonRequest
    wanted: DeclaredRequirements
    kept: Mapping[str, LockedPackage]
    renew: Sequence[str]
    scratch: Path
    required: frozenset[str] = frozenset()

    def list_preferences(self) -> list[Pin]:
        """Return the locked versions that uv should prefer."""
        preferred = (package for name, package in self.kept.items() if name not in self.required)
        return [pin for package in preferred if (pin := version_preference(package)) is not None]

    def require_versions(self, names: Iterable[str]) -> ResolveTask:
        """Return the task with constraints to the locked versions of ``names``."""
        required = frozenset(names)
        pins = (f"{name}=={self.kept[name].version}" for name in sorted(required))
        constraints = (*self.wanted.constraints, *(UvRequirement(pin) for pin in pins))
        return replace(
            self, wanted=replace(self.wanted, constraints=constraints), required=required
        )


def version_preference(package: LockedPackage) -> Pin | None:
    """Return a pin for the locked version; None if the user determines the location."""
    return Pin(package.name, package.version) if package.source in ("index", "sdist") else None


def can_keep(
    package: LockedPackage, version: str, formats: FormatControl, target: PlatformTarget
) -> bool:
    """Return whether the locked file is still the one to use for ``version`` of its package."""
    return (
        package.source in ("index", "sdist")
        and fits_target(package, target)
        and formats.allows(package.name, wheel=package.source == "index")
        and versions_equal(package.version, version)
    )


def fits_target(package: LockedPackage, target: PlatformTarget) -> bool:
    """Return whether the locked file can be installed there.

    It may be from a lock for another processor or Python.
    """
    return not package.file.endswith(".whl") or best_wheel((package.file,), target) is not None


def to_locked_package(file: PackageFile, wanted: DeclaredRequirements) -> LockedPackage:
    """Return the lock entry of a file: without its URL, unless the user specified it."""
    package = LockedPackage(
        name=normalize_name(file.name),
        version=file.version,
        source="index" if file.kind == "wheel" else "sdist",
        file=file.file,
        sha256=file.sha256,
        size=file.size,
    )
    if not file.direct:
        return package
    if file.url.startswith("file:"):
        path = unquote(urlsplit(file.url).path)
        return replace(package, source="local", location=wanted.user_paths.get(path, path))
    return replace(package, source="url", location=strip_credentials(file.url))


def collect_indexes(
    environment: Environment, project: Path, config: Configuration
) -> IndexSettings:
    """Return the package indexes that the environment and its requirements files name."""
    declared = list_python_packages(environment)
    return read_index_settings(environment.pip_index, declared, project, mirrors=config.mirrors)


async def verify_required_urls(request: PythonRequest, pins: Iterable[Pin]) -> None:
    """Verify the hashes in the URLs that packages require: uv does not.

    The URLs that the user wrote have none any more (:class:`HashedFile`). Raises
    :class:`ChecksumError`, and :class:`ResolveError` for a hash that cannot be verified.
    """
    for pin in pins:
        reference = parse_reference(pin.line, request.project) if pin.url else None
        if reference is None or not reference.hashes:
            continue
        if reference.path or reference.kind not in ("wheel", "archive"):
            raise ResolveError(
                f"{mask_credentials(pin.line)}, which another package requires, has a hash, and is"
                " not a file on a server"
            )
        cache = request.paths.cache / "http"
        fetched = await fetch(reference.location, None, cache=cache, offline=request.offline)
        with fetched.path.open("rb") as file:
            check_hashes(file, reference.hashes, f"{pin.name} @ {reference.location}", None)
