"""System packages on top of a base, and the distribution's own Python."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.lock import LockedBase
from danlu.errors import ResolveError
from danlu.graph import Deb
from danlu.resolve.base import status_file

if TYPE_CHECKING:
    from danlu.environment.types import AptSource
    from danlu.graph import Platform
    from danlu.sources.apt import Home
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = ["PythonChoice", "distribution_python", "resolve_system"]


class PythonChoice(msgspec.Struct, frozen=True):
    """A distribution's Python: names to install, full version, path in the image."""

    names: tuple[str, ...]
    version: str
    executable: str


#: Which releases have which Python as their own, for hints.
_OWN = {
    "3.8": ("ubuntu20.04",),
    "3.9": ("debian11",),
    "3.10": ("ubuntu22.04",),
    "3.11": ("debian12",),
    "3.12": ("ubuntu24.04",),
    "3.13": ("debian13",),
}


def _bare(name: str) -> str:
    """``git=1:2.39*`` and ``git:amd64`` -> ``git``."""
    return name.partition("=")[0].partition(":")[0]


async def _home(
    base: LockedBase,
    platform: Platform,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    offline: bool,
    refresh: bool,
) -> Home:
    from danlu.sources.apt import debian_architecture, home_for, of_codename

    release = of_codename(base.distribution, base.codename)
    home = await home_for(
        release, debian_architecture(platform), apt=apt, paths=paths, config=config
    )
    await home.refresh(force=refresh, offline=offline)
    return home


async def resolve_system(
    base: LockedBase,
    names: Sequence[str],
    *,
    keep: Sequence[Deb] = (),
    platform: Platform,
    apt: AptSource | None = None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    refresh: bool = False,
    status: str | None = None,
) -> tuple[Deb, ...]:
    """All packages that ``names`` need beyond the base, sorted by name.

    ``names`` may be pinned (``git=1:2.39*``). ``keep`` are packages locked before: their versions
    stay where the archive still has them and the rest allows it. ``status`` is the text of an
    image's ``/var/lib/dpkg/status``; None for a base of packages. A name that is installed
    already and not pinned needs nothing. Raises :class:`ResolveError` with apt's reason, or with
    the nearest names.
    """
    from danlu.sources.apt.plan import check_names, plan
    from danlu.sources.apt.records import installed

    check_names(names)
    have = set(installed(status)) if status is not None else {deb.name for deb in base.packages}
    _check_pins(names)
    pinned = {_bare(name) for name in names if "=" in name}
    wanted = sorted(
        {name for name in names if "=" in name or (name not in have and name not in pinned)}
    )
    if not wanted:
        return ()
    home = await _home(
        base, platform, apt=apt, paths=paths, config=config, offline=offline, refresh=refresh
    )
    text = status if status is not None else await _base_status(base, home, paths)
    held = [deb for deb in keep if deb.name not in pinned]
    question = ("system", wanted, hashlib.sha256(text.encode()).hexdigest(), held)

    async def ask() -> tuple[Deb, ...]:
        return (await plan(home, wanted, status=text, keep=held)).debs

    return await home.answer(question, tuple[Deb, ...], ask)


def _check_pins(names: Sequence[str]) -> None:
    """Raise for a package that is pinned twice: apt would take the last."""
    pins: dict[str, str] = {}
    for name in names:
        if "=" in name and pins.setdefault(_bare(name), name) != name:
            raise ResolveError(
                f"{_bare(name)} is pinned twice: {pins[_bare(name)]} and {name}",
                hint="keep one of them",
            )


async def _base_status(base: LockedBase, home: Home, paths: Paths) -> str:
    """The dpkg status of the locked base: kept from its resolution, or put together again.

    A version that the archive no longer has takes the record of a downloaded file, or that of the
    version the archive has now: what it needs hardly differs within a release.
    """
    from danlu.util.files import write_atomic

    file = status_file(paths, base.packages)
    if file.exists():
        return file.read_text()
    text = await _status_again(base.packages, home, paths)
    write_atomic(file, text.encode(), sync=False)
    return text


async def _status_again(packages: Sequence[Deb], home: Home, paths: Paths) -> str:
    from danlu.sources.apt import deb_cache
    from danlu.sources.apt.plan import show
    from danlu.sources.apt.records import bare_stanza, status_stanza

    cache = deb_cache(paths)
    found = await show(home, [deb.name for deb in packages])
    exact = {record.key: record.text for record in found}
    newest = {record.key[0]: record.text for record in reversed(found)}
    stanzas = []
    for deb in packages:
        key = (deb.name, deb.version, deb.architecture)
        if key in exact:
            stanzas.append(status_stanza(exact[key]))
        elif cache.path(deb).exists():
            stanzas.append(status_stanza(cache.control(deb)))
        elif deb.name in newest:
            stanzas.append(status_stanza(newest[deb.name], version=deb.version))
        else:
            stanzas.append(bare_stanza(deb))
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
    """The distribution's own Python ``version``: ``3.11``, ``3.11.2``, or empty for its default.

    Raises :class:`ResolveError` that names what this release has, and which release has the one
    that was asked for.
    """
    if not re.fullmatch(r"(|3|3\.\d+|3\.\d+\.\d+\w*)", version):
        raise ResolveError(
            f"{version!r} is not a Python version danlu can install",
            hint='say it like "3.11", or "3.11.2"',
        )
    home = await _home(
        base, platform, apt=apt, paths=paths, config=config, offline=offline, refresh=refresh
    )
    return await home.answer(("python", version), PythonChoice, partial(_choose, home, version))


async def _choose(home: Home, version: str) -> PythonChoice:
    minor = ".".join(version.split(".")[:2])
    if "." not in minor:
        minor = await _default_python(home)
    package = f"python{minor}"
    found = await _candidates(home, package, "python3-distutils")
    if package not in found:
        raise await _no_python(home, minor)
    full = found[package]
    if version.count(".") == 2 and version != full:
        raise ResolveError(
            f"{home.what} has Python {full}, not {version}",
            hint=f'ask for "{minor}", or take a base image that has {version}',
        )
    return PythonChoice(_python_names(minor, found), full, f"/usr/bin/{package}")


def _python_names(minor: str, found: dict[str, str]) -> tuple[str, ...]:
    """What makes the standard library whole: Debian splits distutils off where Python had it."""
    names = [f"python{minor}"]
    if tuple(map(int, minor.split("."))) < (3, 12) and "python3-distutils" in found:
        names.append("python3-distutils")
    return tuple(names)


async def _candidates(home: Home, *names: str) -> dict[str, str]:
    """Upstream versions of those of ``names`` that the archive has."""
    from danlu.sources.apt.plan import candidates
    from danlu.sources.apt.records import upstream_version

    found = await candidates(home, names)
    return {name: _python_version(upstream_version(text)) for name, text in found.items()}


def _python_version(upstream: str) -> str:
    """Debian's ``3.14.0~rc2`` as Python says it: ``3.14.0rc2``; a ``+dfsg`` is dropped."""
    return upstream.partition("+")[0].replace("~", "")


async def _default_python(home: Home) -> str:
    from danlu.sources.apt.plan import show

    for record in await show(home, ["python3"]):
        match = re.search(r"\bpython(3\.\d+)\b", record.fields.get("depends", ""))
        if match:
            return match.group(1)
    raise ResolveError(f"{home.what} has no Python 3")


async def _no_python(home: Home, minor: str) -> ResolveError:
    from danlu.sources.apt.plan import package_names

    names = await package_names(home)
    have = sorted(
        (one.removeprefix("python") for one in names if re.fullmatch(r"python3\.\d+", one)),
        key=lambda text: int(text.partition(".")[2]),
    )
    real = [one for one in have if f"python{one}" in await _candidates(home, f"python{one}")]
    elsewhere = _OWN.get(minor, ())
    return ResolveError(
        f"{home.what} has no Python {minor}, it has {' and '.join(real) or 'none'}",
        hint=f'base(os="{elsewhere[0]}") has Python {minor}'
        if elsewhere
        else f"take a base image that has Python {minor}",
    )
