"""What apt would install, as exact packages with hashes; nothing is downloaded but lists."""

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
from danlu.graph import Deb
from danlu.sources.apt.home import Home, locked
from danlu.sources.apt.messages import install_failure, nearest, providers, unknown_packages
from danlu.sources.apt.records import Record, records
from danlu.util.files import write_atomic

__all__ = ["candidates", "check_names", "essential", "plan", "show"]

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*(:[a-z0-9-]+)?(=[0-9A-Za-z.+:~*?-]+)?")
_URI = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+)")

#: Caches of statuses that are kept: each is as large as the lists' own (36 MB for Debian).
_CACHES = 2


class Planned(msgspec.Struct, frozen=True):
    """The packages to install, and their records by (name, version)."""

    debs: tuple[Deb, ...]
    records: Mapping[tuple[str, str], Record]


def check_names(names: Sequence[str]) -> None:
    """Raise :class:`ResolveError` for what is no package name: options, patterns, paths, URLs."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ResolveError(
                f"{name!r} is not the name of a system package",
                hint="names look like `git`, or `git=1:2.39*` for a version",
            )


def _status_options(home: Home, status: str) -> dict[str, str]:
    """Options that make ``status`` what is installed; a cache of its own for each, newest kept."""
    if not status:
        return {}
    digest = hashlib.sha256(status.encode()).hexdigest()[:16]
    directory = home.directory / "status"
    path = directory / digest
    if path.exists():
        os.utime(path)  # apt's cache knows it by its size and time: see below
    else:
        write_atomic(path, status.encode(), sync=False)
    # A fixed time, so that rewriting the same status does not make apt's cache stale.
    os.utime(path, (path.stat().st_atime, 1))
    return {
        "Dir::State::status": str(path),
        "Dir::Cache::pkgcache": str(home.directory / "cache" / f"pkgcache-{digest}.bin"),
    }


def _prune_caches(home: Home) -> None:
    caches = sorted(
        (home.directory / "cache").glob("pkgcache-*.bin"), key=lambda one: one.stat().st_atime
    )
    for old in caches[:-_CACHES]:
        old.unlink(missing_ok=True)


def _preferences(keep: Sequence[Deb]) -> str:
    """Pins (apt_preferences(5)) that hold ``keep`` at their versions where the archive has them."""
    return "".join(
        f"Package: {deb.name}\nPin: version {deb.version}\nPin-Priority: 1001\n\n" for deb in keep
    )


async def plan(
    home: Home, names: Sequence[str], *, status: str = "", keep: Sequence[Deb] = ()
) -> Planned:
    """What installing ``names`` on top of ``status`` needs, without recommended packages.

    ``keep`` are packages whose version stays where the archive still has it and the rest allows
    it. Raises :class:`ResolveError` with apt's reason.
    """
    check_names(names)
    async with locked(home.directory / "lock", shared=True):
        await _check_endings(home, names)
        options = _status_options(home, status)
        output, code = await _simulate(home, names, options, keep)
        if code and keep and not unknown_packages(output):
            # The old versions do not go with what was added: let all of them move.
            output, code = await _simulate(home, names, options, ())
        if code:
            raise await _failure(home, output)
        planned = await _planned(home, output, options)
        _prune_caches(home)
    return planned


async def _check_endings(home: Home, names: Sequence[str]) -> None:
    """Refuse ``git-`` and ``git+``, which apt takes for "remove git" and "install git"."""
    doubtful = [name for name in names if name.partition("=")[0].endswith(("+", "-"))]
    known = set(await package_names(home)) if doubtful else set()
    for name in doubtful:
        if name.partition("=")[0] not in known:
            raise await _failure(home, f"E: Unable to locate package {name}")


async def _simulate(
    home: Home, names: Sequence[str], options: Mapping[str, str], keep: Sequence[Deb]
) -> tuple[str, int]:
    with ExitStack() as stack:
        chosen = dict(options)
        if keep:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile("w", dir=home.directory, prefix="pins.")
            )
            file.write(_preferences(keep))
            file.flush()
            chosen["Dir::Etc::preferences"] = file.name
        result = await home.run(
            "apt-get", "-q", "--no-install-recommends", "--no-remove", "--print-uris",
            "install", "--", *names, options=chosen,
        )  # fmt: skip
    return (result.stdout + result.stderr).decode(errors="replace"), result.code


async def _failure(home: Home, output: str) -> ResolveError:
    unknown = unknown_packages(output)
    virtual = providers(output)
    if virtual:
        name, names = next(iter(virtual.items()))
        return ResolveError(
            f"{name!r} is no package of {home.what} but something that several packages provide",
            hint=f"name one of them: {', '.join(names[:8])}",
        )
    if not unknown:
        return install_failure(output, what=home.what)
    findings = []
    hints = []
    known = await package_names(home)
    for name, version in unknown:
        if version:
            have = (await candidates(home, [name])).get(name, "")
            findings.append(f"{name} has no version {version} on {home.what}")
            hints.append(f"{home.what} has {name}={have}" if have else "")
        else:
            findings.append(f"{home.what} has no package {name!r}")
            close = nearest(name.lower(), known)
            hints.append(f"did you mean {' or '.join(close)}?" if close else _where(home))
    return ResolveError(
        "; ".join(findings),
        hint="; ".join(dict.fromkeys(one for one in hints if one)),
    )


def _where(home: Home) -> str:
    components = dict.fromkeys(part for one in home.archive.entries for part in one.components)
    return (
        f"danlu looked in {', '.join(components)}; other components and archives can be named "
        "with config.apt_source(...)"
    )


async def package_names(home: Home) -> list[str]:
    """All names the lists know."""
    result = await home.run("apt-cache", "pkgnames")
    return result.stdout.decode(errors="replace").split()


async def show(
    home: Home, wanted: Sequence[str], *, options: Mapping[str, str] | None = None
) -> list[Record]:
    """Records of ``wanted`` (``name`` or ``name=version``); unknown ones are left out."""
    if not wanted:
        return []
    result = await home.run("apt-cache", "show", "--", *wanted, options=options)
    return list(records(result.stdout.decode(errors="replace")))


async def candidates(home: Home, names: Sequence[str]) -> dict[str, str]:
    """The version apt would install of each of ``names`` that there is."""
    if not names:
        return {}
    result = await home.run("apt-cache", "policy", "--", *names)
    found: dict[str, str] = {}
    name = ""
    for line in result.stdout.decode(errors="replace").splitlines():
        if line and line[0] not in " \t":
            name = line.removesuffix(":")
        elif line.startswith("  Candidate: ") and "(none)" not in line:
            found[name] = line.removeprefix("  Candidate: ").strip()
    return found


async def _suites(
    home: Home, names: Sequence[str], options: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    """(name, version) -> the suite that has it, the first where several have."""
    result = await home.run("apt-cache", "madison", "--", *names, options=options)
    found: dict[tuple[str, str], str] = {}
    for line in result.stdout.decode(errors="replace").splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) == 3 and columns[2].endswith("Packages"):
            place = columns[2].split()
            suite = place[1] if len(place) > 2 else ""
            found.setdefault((columns[0], columns[1]), suite.rpartition("/")[0] or suite)
    return found


def _names_of(output: str) -> list[tuple[str, str, str]]:
    """(name, version, architecture) of the files that ``--print-uris`` lists."""
    found = []
    for line in output.splitlines():
        match = _URI.match(line)
        if match:
            name, version, rest = match["file"].rsplit("_", 2)
            found.append((name, unquote(version), rest.removesuffix(".deb")))
    return found


async def _planned(home: Home, output: str, options: Mapping[str, str]) -> Planned:
    wanted = sorted(_names_of(output))
    if not wanted:
        return Planned((), {})
    found = await show(home, [f"{name}={version}" for name, version, _ in wanted], options=options)
    suites = await _suites(home, [name for name, _, _ in wanted], options)
    by_key = {one.key: one for one in found if one.fields.get("sha256")}
    debs = tuple(
        _deb(key, by_key, suites.get(key[:2], home.archive.distribution.codename)) for key in wanted
    )
    return Planned(debs, {key[:2]: by_key[key] for key in wanted})


def _deb(
    key: tuple[str, str, str], found: Mapping[tuple[str, str, str], Record], suite: str
) -> Deb:
    record = found.get(key)
    path = os.path.normpath(record.fields.get("filename", "")) if record else ""
    if record is None or not path.strip(".") or path.startswith(("/", "../")):
        raise OutsideError(f"the package lists have no usable record of {key[0]} {key[1]}")
    return Deb(
        name=key[0],
        version=key[1],
        architecture=key[2],
        sha256=record.fields["sha256"].lower(),
        size=int(record.fields.get("size", "0")),
        archive=suite,
        path=path,
    )


async def essential(home: Home) -> list[str]:
    """Names of the packages every system has (Debian Policy 3.8)."""
    return await home.answer("essential", list[str], partial(_essential, home))


async def _essential(home: Home) -> list[str]:
    files: list[Path] = [
        one
        for one in home.lists.glob("*_Packages*")
        if any(f"_dists_{suite}_" in one.name for suite in home.archive.distribution.suites)
    ]
    if not files:
        raise OutsideError(f"there are no package lists of {home.what}")
    result = await home.run("/usr/lib/apt/apt-helper", "cat-file", *map(str, sorted(files)))
    names = re.findall(
        rb"^Package: (\S+)\n(?:(?!\n)[^\n]*\n)*?Essential: yes$", result.stdout, re.MULTILINE
    )
    return sorted({name.decode() for name in names})
