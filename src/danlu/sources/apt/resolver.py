"""Ask apt what it would install, as exact packages with hashes; downloads only package lists."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import msgspec

from danlu.errors import OutsideError, ResolveError
from danlu.graph.ops import DebPackage
from danlu.sources.apt.errors import (
    install_error,
    parse_providers,
    parse_unknown_packages,
    suggest_names,
)
from danlu.sources.apt.package_index import PackageRecord, parse_records
from danlu.sources.apt.private_apt import PrivateApt, hold_lock
from danlu.util.files import write_atomic

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*(:[a-z0-9-]+)?(=[0-9A-Za-z.+:~*?-]+)?")
_URI = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+)")

#: Number of package caches to keep for different statuses: each has 36 MB for Debian.
_MAX_CACHES = 2


class InstallPlan(msgspec.Struct, frozen=True):
    """The packages to install, and their records by (name, version)."""

    debs: tuple[DebPackage, ...]
    records: Mapping[tuple[str, str], PackageRecord]


def check_names(names: Sequence[str]) -> None:
    """Raise :class:`ResolveError` for invalid package names: options, patterns, paths, URLs."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ResolveError(
                f"invalid system package name {name!r}",
                hint="use a name like `git`, or `git=1:2.39*` for a version",
            )


def _status_options(apt: PrivateApt, status: str) -> dict[str, str]:
    """Return options that make ``status`` the installed packages, with its own cache."""
    if not status:
        return {}
    digest = hashlib.sha256(status.encode()).hexdigest()[:16]
    directory = apt.directory / "status"
    path = directory / digest
    if path.exists():
        os.utime(path)
    else:
        write_atomic(path, status.encode(), sync=False)
    # apt's cache identifies the status by size and time. With a fixed time, the cache stays valid
    # when the same status is written again.
    os.utime(path, (path.stat().st_atime, 1))
    return {
        "Dir::State::status": str(path),
        "Dir::Cache::pkgcache": str(apt.directory / "cache" / f"pkgcache-{digest}.bin"),
    }


def _prune_caches(apt: PrivateApt) -> None:
    caches = sorted(
        (apt.directory / "cache").glob("pkgcache-*.bin"), key=lambda cache: cache.stat().st_atime
    )
    for old in caches[:-_MAX_CACHES]:
        old.unlink(missing_ok=True)


def _pin_preferences(keep: Sequence[DebPackage]) -> str:
    """Return pins that hold ``keep`` at their versions, if available (apt_preferences(5))."""
    return "".join(
        f"Package: {deb.name}\nPin: version {deb.version}\nPin-Priority: 1001\n\n" for deb in keep
    )


async def resolve_install(
    apt: PrivateApt, names: Sequence[str], *, status: str = "", keep: Sequence[DebPackage] = ()
) -> InstallPlan:
    """Return what installing ``names`` on top of ``status`` requires, without recommended
    packages.

    Packages in ``keep`` keep their version if the archive still has it and the others allow it.
    Raises :class:`ResolveError` with apt's reason.
    """
    check_names(names)
    async with hold_lock(apt.directory / "lock", shared=True):
        await _check_name_suffixes(apt, names)
        options = _status_options(apt, status)
        output, code = await _simulate_install(apt, names, options, keep)
        if code and keep and not parse_unknown_packages(output):
            # The locked versions conflict with what was added: let all of them change.
            output, code = await _simulate_install(apt, names, options, ())
        if code:
            raise await _resolve_error(apt, output)
        planned = await _read_plan(apt, output, options)
        _prune_caches(apt)
    return planned


async def _check_name_suffixes(apt: PrivateApt, names: Sequence[str]) -> None:
    """Reject ``git-`` and ``git+``, which apt would interpret as "remove git" and "install git"."""
    doubtful = [name for name in names if name.partition("=")[0].endswith(("+", "-"))]
    known = set(await list_package_names(apt)) if doubtful else set()
    for name in doubtful:
        if name.partition("=")[0] not in known:
            raise await _resolve_error(apt, f"E: Unable to locate package {name}")


async def _simulate_install(
    apt: PrivateApt, names: Sequence[str], options: Mapping[str, str], keep: Sequence[DebPackage]
) -> tuple[str, int]:
    with ExitStack() as stack:
        chosen = dict(options)
        if keep:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile("w", dir=apt.directory, prefix="pins.")
            )
            file.write(_pin_preferences(keep))
            file.flush()
            chosen["Dir::Etc::preferences"] = file.name
        # --print-uris stops before anything is downloaded. --no-remove turns a conflict with the
        # base into an error instead of a removal.
        result = await apt.run(
            "apt-get", "-q", "--no-install-recommends", "--no-remove", "--print-uris",
            "install", "--", *names, options=chosen,
        )  # fmt: skip
    return (result.stdout + result.stderr).decode(errors="replace"), result.code


async def _resolve_error(apt: PrivateApt, output: str) -> ResolveError:
    unknown = parse_unknown_packages(output)
    virtual = parse_providers(output)
    if virtual:
        name, names = next(iter(virtual.items()))
        return ResolveError(
            f"{name!r} is a virtual package on {apt.release_name} with several providers",
            hint=f"choose one of them: {', '.join(names[:8])}",
        )
    if not unknown:
        return install_error(output, what=apt.release_name)
    findings = []
    hints = []
    known = await list_package_names(apt)
    for name, version in unknown:
        if version:
            have = (await candidate_versions(apt, [name])).get(name, "")
            findings.append(f"{name} has no version {version} on {apt.release_name}")
            hints.append(f"{apt.release_name} has {name}={have}" if have else "")
        else:
            findings.append(f"package {name!r} not found in {apt.release_name}")
            close = suggest_names(name.lower(), known)
            hints.append(
                f"did you mean {' or '.join(close)}?" if close else _searched_components_hint(apt)
            )
    return ResolveError(
        "; ".join(findings),
        hint="; ".join(dict.fromkeys(hint for hint in hints if hint)),
    )


def _searched_components_hint(apt: PrivateApt) -> str:
    components = dict.fromkeys(part for entry in apt.archive.entries for part in entry.components)
    return (
        f"searched components: {', '.join(components)}; add other components or archives with "
        "config.apt_source(...)"
    )


async def list_package_names(apt: PrivateApt) -> list[str]:
    """Return all package names in the lists."""
    result = await apt.run("apt-cache", "pkgnames")
    return result.stdout.decode(errors="replace").split()


async def show_records(
    apt: PrivateApt, wanted: Sequence[str], *, options: Mapping[str, str] | None = None
) -> list[PackageRecord]:
    """Return the records of ``wanted`` (``name`` or ``name=version``); unknown ones are skipped."""
    if not wanted:
        return []
    result = await apt.run("apt-cache", "show", "--", *wanted, options=options)
    return list(parse_records(result.stdout.decode(errors="replace")))


async def candidate_versions(apt: PrivateApt, names: Sequence[str]) -> dict[str, str]:
    """Return the version apt would install of each of ``names`` that exists."""
    if not names:
        return {}
    result = await apt.run("apt-cache", "policy", "--", *names)
    versions: dict[str, str] = {}
    name = ""
    for line in result.stdout.decode(errors="replace").splitlines():
        if line and line[0] not in " \t":
            name = line.removesuffix(":")
        elif line.startswith("  Candidate: ") and "(none)" not in line:
            versions[name] = line.removeprefix("  Candidate: ").strip()
    return versions


async def _find_suites(
    apt: PrivateApt, names: Sequence[str], options: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    """Return the suite of each (name, version), the first if several have it."""
    result = await apt.run("apt-cache", "madison", "--", *names, options=options)
    suites: dict[tuple[str, str], str] = {}
    for line in result.stdout.decode(errors="replace").splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) == 3 and columns[2].endswith("Packages"):
            place = columns[2].split()
            suite = place[1] if len(place) > 2 else ""
            suites.setdefault((columns[0], columns[1]), suite.rpartition("/")[0] or suite)
    return suites


def _parse_uris(output: str) -> list[tuple[str, str, str]]:
    """Return (name, version, architecture) of the files that ``--print-uris`` lists."""
    packages = []
    for line in output.splitlines():
        match = _URI.match(line)
        if match:
            name, version, rest = match["file"].rsplit("_", 2)
            packages.append((name, unquote(version), rest.removesuffix(".deb")))
    return packages


async def _read_plan(apt: PrivateApt, output: str, options: Mapping[str, str]) -> InstallPlan:
    wanted = sorted(_parse_uris(output))
    if not wanted:
        return InstallPlan((), {})
    records = await show_records(
        apt, [f"{name}={version}" for name, version, _ in wanted], options=options
    )
    suites = await _find_suites(apt, [name for name, _, _ in wanted], options)
    by_key = {record.key: record for record in records if record.fields.get("sha256")}
    debs = tuple(
        _to_deb(key, by_key, suites.get(key[:2], apt.archive.distribution.codename))
        for key in wanted
    )
    return InstallPlan(debs, {key[:2]: by_key[key] for key in wanted})


def _to_deb(
    key: tuple[str, str, str], found: Mapping[tuple[str, str, str], PackageRecord], suite: str
) -> DebPackage:
    record = found.get(key)
    # The path comes from a mirror and must stay inside the archive.
    path = os.path.normpath(record.fields.get("filename", "")) if record else ""
    if record is None or not path.strip(".") or path.startswith(("/", "../")):
        raise OutsideError(f"the package lists have no valid record of {key[0]} {key[1]}")
    return DebPackage(
        name=key[0],
        version=key[1],
        architecture=key[2],
        sha256=record.fields["sha256"].lower(),
        size=int(record.fields.get("size", "0")),
        archive=suite,
        path=path,
    )


async def list_essential(apt: PrivateApt) -> list[str]:
    """Return the names of the packages that every system has (Debian Policy 3.8)."""
    return await apt.cache_answer("essential", list[str], partial(_read_essential, apt))


async def _read_essential(apt: PrivateApt) -> list[str]:
    files: list[Path] = [
        path
        for path in apt.lists.glob("*_Packages*")
        if any(f"_dists_{suite}_" in path.name for suite in apt.archive.distribution.suites)
    ]
    if not files:
        raise OutsideError(f"no package lists of {apt.release_name} found")
    result = await apt.run("/usr/lib/apt/apt-helper", "cat-file", *map(str, sorted(files)))
    names = re.findall(
        rb"^Package: (\S+)\n(?:(?!\n)[^\n]*\n)*?Essential: yes$", result.stdout, re.MULTILINE
    )
    return sorted({name.decode() for name in names})
