"""Resolve system packages with apt: the base system, packages on top of it, the distribution's
Python.

A base consists of all essential packages, apt and their dependencies, without recommended packages.
It includes ``passwd``, because an environment creates its user at start. On releases that
require a merged ``/usr``, ``usr-is-merged`` declares it, instead of ``usrmerge``, which would
convert the system and depends on all of Perl.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import msgspec

from danlu.environment.lock import LockedBase
from danlu.environment.lock_section import SystemVersion
from danlu.environment.types import AptSource
from danlu.errors import ResolveError
from danlu.graph.ops import DebPackage, Platform
from danlu.sources.apt import (
    PrivateApt,
    debian_architecture,
    find_release,
    find_release_by_codename,
    private_apt_for,
    user_deb_cache,
)
from danlu.sources.apt.archive import FAMILIES
from danlu.sources.apt.package_index import (
    minimal_stanza,
    parse_status,
    status_stanza,
)
from danlu.sources.apt.private_apt import hold_lock
from danlu.sources.apt.resolver import (
    candidate_versions,
    check_names,
    list_essential,
    list_package_names,
    resolve_install,
    show_records,
)
from danlu.sources.apt.sources_list import parse_sources
from danlu.util.config import Configuration
from danlu.util.deb_version import upstream_version
from danlu.util.files import write_atomic
from danlu.util.paths import Paths
from danlu.util.safe_paths import confine_to_project


class PythonChoice(msgspec.Struct, frozen=True):
    """The distribution's Python: packages to install, full version, path in the image."""

    names: tuple[str, ...]
    version: str
    executable: str


#: The default Python of each release, for hints.
_DEFAULT_PYTHONS = {
    "3.8": ("ubuntu20.04",),
    "3.9": ("debian11",),
    "3.10": ("ubuntu22.04",),
    "3.11": ("debian12",),
    "3.12": ("ubuntu24.04",),
    "3.13": ("debian13",),
}


def _bare_name(name: str) -> str:
    """Return the name of ``git=1:2.39*`` or ``git:amd64``: ``git``."""
    return name.partition("=")[0].partition(":")[0]


async def _open_apt(
    base: LockedBase,
    platform: Platform,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    offline: bool,
    refresh: bool,
) -> PrivateApt:
    release = find_release_by_codename(base.distribution, base.codename)
    private_apt = await private_apt_for(
        release, debian_architecture(platform), apt=apt, paths=paths, config=config
    )
    await private_apt.refresh(force=refresh, offline=offline)
    return private_apt


async def resolve_system(
    base: LockedBase,
    names: Sequence[str],
    *,
    keep: Sequence[DebPackage] = (),
    platform: Platform,
    apt: AptSource | None = None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    refresh: bool = False,
    status: str | None = None,
) -> tuple[DebPackage, ...]:
    """Return all packages that ``names`` need in addition to the base, sorted by name.

    Args:
        names: package names, optionally pinned (``git=1:2.39*``). Unpinned packages that are
            already installed need nothing.
        keep: packages locked before. Their versions stay if the archive still has them and the
            other requirements allow it.
        status: an image's ``/var/lib/dpkg/status``; None for a base of packages.

    Raises :class:`ResolveError` with apt's reason, or with similar names.
    """
    check_names(names)
    have = set(parse_status(status)) if status is not None else {deb.name for deb in base.packages}
    _check_pins(names)
    pinned = {_bare_name(name) for name in names if "=" in name}
    wanted = sorted(
        {name for name in names if "=" in name or (name not in have and name not in pinned)}
    )
    if not wanted:
        return ()
    private_apt = await _open_apt(
        base, platform, apt=apt, paths=paths, config=config, offline=offline, refresh=refresh
    )
    text = status if status is not None else await _base_status(base, private_apt, paths)
    held = [deb for deb in keep if deb.name not in pinned]
    # Everything that determines apt's answer; its lists are part of the cache itself.
    question = ("system", wanted, hashlib.sha256(text.encode()).hexdigest(), held)

    async def ask() -> tuple[DebPackage, ...]:
        return (await resolve_install(private_apt, wanted, status=text, keep=held)).debs

    return await private_apt.cache_answer(question, tuple[DebPackage, ...], ask)


async def find_system_versions(
    base: LockedBase,
    names: Sequence[str],
    *,
    platform: Platform,
    apt: AptSource | None = None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    read_status: Callable[[], Awaitable[str]] | None = None,
) -> dict[str, SystemVersion]:
    """Return the versions of those ``names`` that the base has or its distribution offers.

    ``read_status`` reads an image's ``/var/lib/dpkg/status``; None for a base of packages. An image
    of another distribution has no packages.
    """
    if not base.distribution.startswith(tuple(FAMILIES)):
        return {}
    if read_status is not None:
        status = await read_status()
        installed = {name: deb.version for name, deb in parse_status(status).items()}
    else:
        installed = {deb.name: deb.version for deb in base.packages}
    absent = [name for name in names if name not in installed]
    found = {
        name: SystemVersion(installed[name], is_installed=True)
        for name in names
        if name in installed
    }
    if absent:
        private_apt = await _open_apt(
            base, platform, apt=apt, paths=paths, config=config, offline=offline, refresh=False
        )
        for name, version in (await candidate_versions(private_apt, absent)).items():
            found[name] = SystemVersion(version)
    return found


def _check_pins(names: Sequence[str]) -> None:
    """Raise if a package is pinned twice; apt would silently use the last pin."""
    pins: dict[str, str] = {}
    for name in names:
        if "=" in name and pins.setdefault(_bare_name(name), name) != name:
            raise ResolveError(
                f"{_bare_name(name)} is pinned twice: {pins[_bare_name(name)]} and {name}",
                hint="remove one of the two",
            )


async def _base_status(base: LockedBase, private_apt: PrivateApt, paths: Paths) -> str:
    """Return the dpkg status of the locked base: cached when it was resolved, or reconstructed.

    For a version that is no longer in the archive, the record of a downloaded file is used, or that
    of the archive's current version: within a release its dependencies hardly differ.
    """
    file = dpkg_status_path(paths, base.packages)
    if file.exists():
        return file.read_text()
    text = await _rebuild_status(base.packages, private_apt, paths)
    write_atomic(file, text.encode(), sync=False)
    return text


async def _rebuild_status(
    packages: Sequence[DebPackage], private_apt: PrivateApt, paths: Paths
) -> str:
    cache = user_deb_cache(paths)
    records = await show_records(private_apt, [deb.name for deb in packages])
    exact = {record.key: record.text for record in records}
    newest = {record.key[0]: record.text for record in reversed(records)}
    stanzas = []
    for deb in packages:
        key = (deb.name, deb.version, deb.architecture)
        if key in exact:
            stanzas.append(status_stanza(exact[key]))
        elif cache.path(deb).exists():
            stanzas.append(status_stanza(cache.read_control(deb)))
        elif deb.name in newest:
            stanzas.append(status_stanza(newest[deb.name], version=deb.version))
        else:
            stanzas.append(minimal_stanza(deb))
    return "".join(stanzas)


async def distribution_python(
    base: LockedBase,
    version: str,
    *,
    platform: Platform,
    apt: AptSource | None = None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    refresh: bool = False,
) -> PythonChoice:
    """Choose the distribution's Python ``version``: ``3.11``, ``3.11.2``, or empty for its
    default.

    Raises :class:`ResolveError` listing the versions of this release, and the release that has the
    requested one.
    """
    if not re.fullmatch(r"(|3|3\.\d+|3\.\d+\.\d+\w*)", version):
        raise ResolveError(
            f"invalid Python version {version!r}",
            hint='use "3.11" or "3.11.2"',
        )
    require_apt(base, (f"python{version}",))
    private_apt = await _open_apt(
        base, platform, apt=apt, paths=paths, config=config, offline=offline, refresh=refresh
    )
    return await private_apt.cache_answer(
        ("python", version), PythonChoice, partial(_choose_python, private_apt, version)
    )


async def _choose_python(private_apt: PrivateApt, version: str) -> PythonChoice:
    minor = ".".join(version.split(".")[:2])
    if "." not in minor:
        minor = await _default_python(private_apt)
    package = f"python{minor}"
    available = await _find_upstream_versions(private_apt, package, "python3-distutils")
    if package not in available:
        raise await _python_not_found(private_apt, minor)
    full = available[package]
    if version.count(".") == 2 and version != full:
        raise ResolveError(
            f"{private_apt.release_name} has Python {full}, not {version}",
            hint=f'use "{minor}", or a base image with Python {version}',
        )
    return PythonChoice(_python_names(minor, available), full, f"/usr/bin/{package}")


def _python_names(minor: str, found: dict[str, str]) -> tuple[str, ...]:
    """Return the packages of the whole standard library: Debian splits off distutils."""
    names = [f"python{minor}"]
    if tuple(map(int, minor.split("."))) < (3, 12) and "python3-distutils" in found:
        names.append("python3-distutils")
    return tuple(names)


async def _find_upstream_versions(private_apt: PrivateApt, *names: str) -> dict[str, str]:
    """Return the upstream versions of those ``names`` that the archive has."""
    versions = await candidate_versions(private_apt, names)
    return {name: _python_version(upstream_version(text)) for name, text in versions.items()}


def _python_version(upstream: str) -> str:
    """Convert Debian's ``3.14.0~rc2`` to Python's ``3.14.0rc2``; drops ``+dfsg``."""
    return upstream.partition("+")[0].replace("~", "")


async def _default_python(private_apt: PrivateApt) -> str:
    for record in await show_records(private_apt, ["python3"]):
        match = re.search(r"\bpython(3\.\d+)\b", record.fields.get("depends", ""))
        if match:
            return match.group(1)
    raise ResolveError(f"{private_apt.release_name} has no Python 3")


async def _python_not_found(private_apt: PrivateApt, minor: str) -> ResolveError:
    names = await list_package_names(private_apt)
    have = sorted(
        (name.removeprefix("python") for name in names if re.fullmatch(r"python3\.\d+", name)),
        key=lambda text: int(text.partition(".")[2]),
    )
    real = [
        minor
        for minor in have
        if f"python{minor}" in await _find_upstream_versions(private_apt, f"python{minor}")
    ]
    elsewhere = _DEFAULT_PYTHONS.get(minor, ())
    return ResolveError(
        f"{private_apt.release_name} has no Python {minor}, only {' and '.join(real) or 'none'}",
        hint=f'base(os="{elsewhere[0]}") has Python {minor}'
        if elsewhere
        else f"use a base image with Python {minor}",
    )


_BASE_PACKAGES = ("apt", "passwd")
_OPTIONAL_PACKAGES = ("usr-is-merged",)


def package_set_digest(packages: Sequence[DebPackage]) -> str:
    """Return the identity of a set of packages: names, versions and hashes, in any order."""
    text = "".join(sorted(f"{deb.name} {deb.version} {deb.sha256}\n" for deb in packages))
    return hashlib.sha256(text.encode()).hexdigest()


def dpkg_status_path(paths: Paths, packages: Sequence[DebPackage]) -> Path:
    """Return where the dpkg status of a system of exactly ``packages`` is cached."""
    return paths.cache / "apt" / "status" / f"{package_set_digest(packages)}.status"


def confine_apt_source(apt: AptSource, project: Path) -> None:
    """Raise :class:`UsageError` for an archive of ``config.apt_source`` outside the project.

    Only the machine's own sources may name one: untrusted build code can read what is installed.
    """
    for entry in parse_sources(apt.source):
        for uri in entry.uris:
            # Of mirror+file:/list, apt reads a local list of mirrors (apt-transport-mirror(1)).
            scheme, _, place = uri.partition(":")
            if not {"file", "copy", "cdrom"} & set(scheme.lower().split("+")):
                continue
            path = unquote("/" + place.lstrip("/"))
            confine_to_project(
                path,
                project,
                hint="copy the packages into the project, or add the archive to this machine's apt"
                " sources",
                span=apt.span if apt.span.line else None,
            )


async def resolve_base(
    os_name: str,
    platform: Platform,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    refresh: bool = False,
    keep: Sequence[DebPackage] = (),
) -> LockedBase:
    """Resolve the newest minimal system of ``os_name`` (``debian12``), with empty ``inputs``.

    ``epoch`` is the newest date of the distribution's Release files. If this machine has resolved
    the same packages before, the earlier epoch is reused, so that projects share their base.
    ``refresh`` downloads the package lists even if they are fresh; packages in ``keep`` keep their
    version if the archive still has it.

    Raises :class:`UsageError` for an unknown name, and :class:`MachineError` and
    :class:`OutsideError` like :func:`danlu.sources.apt.private_apt_for`.
    """
    release = find_release(os_name)
    private_apt = await private_apt_for(
        release, debian_architecture(platform), apt=apt, paths=paths, config=config
    )
    await private_apt.refresh(force=refresh, offline=offline)
    question = ("base", _BASE_PACKAGES, _OPTIONAL_PACKAGES, keep)
    return await private_apt.cache_answer(
        question, LockedBase, partial(_resolve_newest, private_apt, paths, keep)
    )


async def _resolve_newest(
    private_apt: PrivateApt, paths: Paths, keep: Sequence[DebPackage]
) -> LockedBase:
    known = await candidate_versions(private_apt, _OPTIONAL_PACKAGES)
    planned = await resolve_install(
        private_apt, [*await list_essential(private_apt), *_BASE_PACKAGES, *known], keep=keep
    )
    file = dpkg_status_path(paths, planned.debs)
    if not file.exists():
        text = "".join(status_stanza(record.text) for record in planned.records.values())
        write_atomic(file, text.encode(), sync=False)
    release = private_apt.archive.distribution
    return LockedBase(
        inputs="",
        epoch=await _assign_epoch(
            paths, package_set_digest(planned.debs), private_apt.release_date()
        ),
        distribution=release.name,
        codename=release.codename,
        libc=_find_libc(planned.debs),
        packages=planned.debs,
    )


def _find_libc(packages: Sequence[DebPackage]) -> str:
    for deb in packages:
        if deb.name in ("libc6", "libc6.1"):
            major, minor = upstream_version(deb.version).split(".")[:2]
            return f"glibc {major}.{minor}"
    raise ResolveError("unsupported base: no known C library among its packages")


async def _assign_epoch(paths: Paths, digest: str, released: int) -> int:
    """Return the epoch first assigned to a set of packages; ``released`` if it is new."""
    file = paths.cache / "apt" / "epochs.json"
    async with hold_lock(file.with_suffix(".lock")):
        try:
            known = json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):
            known = {}
        epoch = known.get(digest)
        if not isinstance(epoch, int):
            epoch = known[digest] = released
            write_atomic(file, json.dumps(known, indent=0, sort_keys=True).encode(), sync=False)
    return epoch


_MAX_NAMES_SHOWN = 5


class _PackageManager(msgspec.Struct, frozen=True):
    """Another package manager: the distributions that have it (os-release(5), ID), its command."""

    name: str
    distributions: tuple[str, ...]
    install: str


_OTHERS = (
    _PackageManager(
        "dnf",
        ("almalinux", "amzn", "centos", "fedora", "mariner", "azurelinux", "ol", "rhel", "rocky"),
        "dnf install -y",
    ),
    _PackageManager("apk", ("alpine", "chainguard", "wolfi"), "apk add --no-cache"),
    _PackageManager(
        "zypper",
        ("opensuse", "opensuse-leap", "opensuse-tumbleweed", "sles"),
        "zypper --non-interactive install",
    ),
    _PackageManager("pacman", ("arch", "archarm", "manjaro"), "pacman -Sy --noconfirm"),
)


def require_apt(base: LockedBase, names: Sequence[str] = ()) -> None:
    """Raise :class:`ResolveError` if packages (``names``, if known) of the base are not apt's."""
    if base.image is None:
        return
    for other in _OTHERS:
        if base.distribution in other.distributions:
            listed = " ".join(names[:_MAX_NAMES_SHOWN]) + (
                " …" if len(names) > _MAX_NAMES_SHOWN else ""
            )
            raise ResolveError(
                f"cannot install system packages in the image {base.image.reference}: it is"
                f" {base.distribution}, whose package manager is {other.name}",
                hint="danlu locks and installs packages of Debian and Ubuntu only; in this image"
                f' use run(["{other.install} {listed or "PACKAGE"}"]), which is not locked',
            )
