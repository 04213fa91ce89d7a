"""The base as packages: what a minimal system of a distribution is made of, exactly.

Essential packages, apt and what they need, without recommended ones; ``passwd`` because an
environment makes its user when it starts (D7). On releases that still ask for a merged ``/usr``,
``usr-is-merged`` says so instead of the ``usrmerge`` that would do it (and needs all of Perl).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.environment.lock import LockedBase
from danlu.errors import ResolveError

if TYPE_CHECKING:
    from danlu.environment.types import AptSource
    from danlu.graph import Deb, Platform
    from danlu.sources.apt import Home
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = ["package_set_digest", "resolve_base", "status_file"]

_WANTED = ("apt", "passwd")
_WHERE_KNOWN = ("usr-is-merged",)


def package_set_digest(packages: Sequence[Deb]) -> str:
    """The identity of a set of packages: names, versions and hashes, in any order."""
    text = "".join(sorted(f"{deb.name} {deb.version} {deb.sha256}\n" for deb in packages))
    return hashlib.sha256(text.encode()).hexdigest()


def status_file(paths: Paths, packages: Sequence[Deb]) -> Path:
    """Where the dpkg status of a system of exactly ``packages`` is kept."""
    return paths.cache / "apt" / "status" / f"{package_set_digest(packages)}.status"


async def resolve_base(
    os_name: str,
    platform: Platform,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    offline: bool = False,
    refresh: bool = False,
    keep: Sequence[Deb] = (),
) -> LockedBase:
    """The newest minimal system of ``os_name`` (``debian12``), with ``inputs`` left empty.

    ``epoch`` is the newest date of the release's Release files, but stays what it was where this
    machine resolved the same packages before, so that projects share their base. ``refresh``
    fetches the package lists even if they are fresh; ``keep`` are packages whose version stays
    where the archive still has it. Raises :class:`UsageError` for an unknown
    name, :class:`MachineError` and :class:`OutsideError` as :func:`danlu.sources.apt.home_for`.
    """
    from danlu.sources.apt import debian_architecture, distribution, home_for

    release = distribution(os_name)
    home = await home_for(
        release, debian_architecture(platform), apt=apt, paths=paths, config=config
    )
    await home.refresh(force=refresh, offline=offline)
    question = ("base", _WANTED, _WHERE_KNOWN, keep)
    return await home.answer(question, LockedBase, partial(_newest, home, paths, keep))


async def _newest(home: Home, paths: Paths, keep: Sequence[Deb]) -> LockedBase:
    from danlu.sources.apt.plan import candidates, essential, plan
    from danlu.sources.apt.records import status_stanza
    from danlu.util.files import write_atomic

    known = await candidates(home, _WHERE_KNOWN)
    planned = await plan(home, [*await essential(home), *_WANTED, *known], keep=keep)
    file = status_file(paths, planned.debs)
    if not file.exists():
        text = "".join(status_stanza(record.text) for record in planned.records.values())
        write_atomic(file, text.encode(), sync=False)
    release = home.archive.distribution
    return LockedBase(
        inputs="",
        epoch=await _epoch(paths, package_set_digest(planned.debs), home.released()),
        distribution=release.name,
        codename=release.codename,
        libc=_libc(planned.debs),
        packages=planned.debs,
    )


def _libc(packages: Sequence[Deb]) -> str:
    from danlu.sources.apt.records import upstream_version

    for deb in packages:
        if deb.name in ("libc6", "libc6.1"):
            major, minor = upstream_version(deb.version).split(".")[:2]
            return f"glibc {major}.{minor}"
    raise ResolveError("the distribution's base has no C library that danlu knows")


async def _epoch(paths: Paths, digest: str, released: int) -> int:
    """The epoch this machine first gave to a set of packages; ``released`` when it is new."""
    import json

    from danlu.sources.apt.home import locked
    from danlu.util.files import write_atomic

    file = paths.cache / "apt" / "epochs.json"
    async with locked(file.with_suffix(".lock")):
        try:
            known = json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):
            known = {}
        epoch = known.get(digest)
        if not isinstance(epoch, int):
            epoch = known[digest] = released
            write_atomic(file, json.dumps(known, indent=0, sort_keys=True).encode(), sync=False)
    return epoch
