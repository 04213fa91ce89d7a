"""Solve conda packages with rattler."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

# rattler is large: callers import this module only when they need it.
import rattler
from rattler.exceptions import GatewayError, SolverError

from danlu.environment.conda import strip_channel
from danlu.environment.lock import LockedCondaPackage
from danlu.errors import MachineError, OutsideError, ResolveError, UsageError
from danlu.sources.conda.match_spec import find_reason, parse_match_spec

_SUBDIRS = {"amd64": "linux-64", "arm64": "linux-aarch64"}
_ARCHSPECS = {"amd64": "x86_64", "arm64": "aarch64"}

#: What rattler says of the only package that is in the way.
_MISSING = re.compile(r".*: No candidates were found for (\S+) (\S.*?)\.?", re.DOTALL)

_REQUIRED_VIRTUALS = {"__unix": "0", "__linux": "5.10"}


class CondaSpec(msgspec.Struct, frozen=True):
    """A match specification, and the name of the channel it is limited to, or empty."""

    text: str
    channel: str = ""


class CondaRequest(msgspec.Struct, frozen=True):
    """What to solve.

    ``channels`` maps names to addresses in the order of priority; each address is tried until one
    answers. ``libc`` and ``architecture`` are the base's, ``kept`` the packages whose versions are
    preferred. ``virtual_packages`` are versions that replace those of the base, or add to them;
    an empty one removes the package.
    """

    specs: tuple[CondaSpec, ...]
    channels: Mapping[str, tuple[str, ...]]
    libc: str
    architecture: str
    cache: Path
    kept: Sequence[LockedCondaPackage] = ()
    offline: bool = False
    virtual_packages: Mapping[str, str] = {}


def find_subdir(architecture: str) -> str:
    """Return conda's name of a platform (``linux-64``)."""
    try:
        return _SUBDIRS[architecture]
    except KeyError:
        raise MachineError(
            f"conda packages are not supported on architecture {architecture!r}",
            hint=f"supported architectures: {', '.join(sorted(_SUBDIRS))}",
        ) from None


async def solve_packages(request: CondaRequest) -> tuple[LockedCondaPackage, ...]:
    """Return all packages of the environment, sorted by name.

    Raises :class:`ResolveError` if the packages cannot be solved and :class:`OutsideError` if a
    channel cannot be read.
    """
    subdirs = [rattler.Subdir(find_subdir(request.architecture)), rattler.Subdir("noarch")]
    # The cached indexes contain the addresses of their channels, with passwords.
    request.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    gateway = rattler.Gateway(
        cache_dir=request.cache,
        default_config=rattler.SourceConfig(
            cache_action="force-cache-only" if request.offline else "cache-or-fetch"
        ),
    )
    places = {
        name: await _find_place(gateway, name, addresses, subdirs, offline=request.offline)
        for name, addresses in request.channels.items()
    }
    names = {place: name for name, place in places.items()}
    specs = [
        parse_match_spec(spec.text, channel=places[spec.channel] if spec.channel else "")
        for spec in request.specs
    ]
    locked = await _find_records(gateway, request.kept, places, subdirs)
    try:
        records = await rattler.solve(
            [rattler.Channel(place) for place in places.values()],
            specs,
            gateway=gateway,
            platforms=subdirs,
            locked_packages=locked,
            virtual_packages=_list_virtual_packages(request),
            channel_relations="disabled",
        )
    except SolverError as error:
        raise _explain_conflict(strip_channel(str(error)).strip(), request) from error
    except GatewayError as error:
        raise OutsideError(f"cannot read a conda channel: {find_reason(error)}") from error
    return tuple(sorted((_lock_record(record, names) for record in records), key=_sort_key))


def _explain_conflict(reason: str, request: CondaRequest) -> ResolveError:
    """Return the error for packages that rattler could not solve, for the given reason."""
    missing = _MISSING.fullmatch(reason)
    if missing is None:
        return ResolveError(
            "the conda packages cannot be installed together",
            details=tuple(reason.splitlines()[:20]),
            hint="change a version, or add the channel that has the package",
        )
    package = f"{missing[1]} {missing[2]}".removesuffix(" *")
    subdir, channels = find_subdir(request.architecture), ", ".join(request.channels)
    return ResolveError(
        f"conda package {package} not found for {subdir} on {strip_channel(channels)}",
        hint="check the spelling and the version, or add the channel that has the package",
    )


def _sort_key(package: LockedCondaPackage) -> str:
    return package.name


async def _find_place(
    gateway: rattler.Gateway,
    name: str,
    addresses: Sequence[str],
    subdirs: list[rattler.Subdir],
    *,
    offline: bool,
) -> str:
    """Return the first of ``addresses`` with a channel."""
    reasons = []
    for address in addresses:
        try:
            await gateway.names([rattler.Channel(address)], subdirs, channel_relations="disabled")
        except GatewayError as error:
            reasons.append(f"{strip_channel(address)}: {find_reason(error)}")
        else:
            return address
    if offline:
        raise OutsideError(
            f"the index of conda channel {name} is not cached, and --offline forbids fetching it",
            hint="lock once without --offline",
        )
    raise OutsideError(
        f"cannot read conda channel {name}",
        details=tuple(reasons),
        hint=f'set a mirror in config.toml: [mirrors.{_quote_key(name)}] urls = ["…"],'
        " or a channel_alias in .condarc",
    )


def _quote_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _list_virtual_packages(request: CondaRequest) -> list[rattler.GenericVirtualPackage]:
    """Return what conda's packages may require of the system, for the base and not this machine."""
    match = re.fullmatch(r"glibc (\d+\.\d+)(?:\.\d+)?", request.libc)
    if match is None:
        raise ResolveError(
            f"conda packages need a base with glibc, and this one has {request.libc or 'none'}",
            hint="use a base such as debian12 or ubuntu:22.04",
        )
    versions = {**_REQUIRED_VIRTUALS, "__glibc": match[1], **request.virtual_packages}
    archspec = versions.pop("__archspec", _ARCHSPECS[request.architecture])
    packages = [(name, version, "0") for name, version in versions.items() if version]
    # CEP 30: the name of the microarchitecture is the build string.
    packages += [("__archspec", "1", archspec)] if archspec else []
    try:
        return [
            rattler.GenericVirtualPackage(
                rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
            )
            for name, version, build in packages
        ]
    except Exception as error:
        raise UsageError(
            f"invalid version of a virtual package of conda: {find_reason(error)}",
            hint="write CONDA_OVERRIDE_CUDA=12.4, and system-requirements likewise",
        ) from error


async def _find_records(
    gateway: rattler.Gateway,
    kept: Sequence[LockedCondaPackage],
    places: Mapping[str, str],
    subdirs: list[rattler.Subdir],
) -> list[rattler.RepoDataRecord]:
    """Return the channels' records of locked packages, as far as they still exist."""
    if not kept:
        return []
    wanted = {package.sha256 for package in kept}
    answers = await gateway.query(
        [rattler.Channel(place) for place in places.values()],
        subdirs,
        [rattler.MatchSpec(package.name) for package in kept],
        recursive=False,
        channel_relations="disabled",
    )
    return [
        record
        for records in answers
        for record in records
        if record.sha256 is not None and record.sha256.hex() in wanted
    ]


def _lock_record(record: rattler.RepoDataRecord, names: Mapping[str, str]) -> LockedCondaPackage:
    name = record.name.normalized
    if record.sha256 is None:
        raise OutsideError(
            f"the channel's index has no SHA-256 for the conda package {name} {record.version}",
            hint="use a newer build of the package, or another channel",
        )
    file = record.file_name
    if not file.endswith((".conda", ".tar.bz2")) or "/" in file:
        raise OutsideError(f"{file} is not a conda package")
    place = str(record.url).rpartition(f"/{record.subdir}/")[0]
    by_place = {key.rstrip("/"): value for key, value in names.items()}
    return LockedCondaPackage(
        name=name,
        version=str(record.version),
        build=str(record.build),
        channel=by_place.get(place, strip_channel(place)),
        subdir=record.subdir,
        file=file,
        sha256=record.sha256.hex(),
        size=record.size or 0,
        noarch_python=bool(record.noarch.python),
        site_packages=record.python_site_packages_path or "" if name == "python" else "",
    )
