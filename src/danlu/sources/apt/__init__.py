"""System packages from Debian-style archives, through this machine's own apt and dpkg.

The machine's configuration says where packages come from and how they are reached. Package lists,
caches and files are danlu's own, in ``Paths.cache/"apt"``. All functions that run programs are
async.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from danlu.environment.types import AptSource
from danlu.graph.ops import DebPackage, Platform
from danlu.sources.apt.archive import (
    DistroRelease,
    debian_architecture,
    find_archive,
    find_release,
    find_release_by_codename,
)
from danlu.sources.apt.deb_cache import DebCache, check_debs, fetch_all, write_repository
from danlu.sources.apt.host_config import read_host_apt
from danlu.sources.apt.keyrings import add_keyring
from danlu.sources.apt.private_apt import PrivateApt, open_private_apt
from danlu.util.config import Configuration
from danlu.util.paths import Paths

__all__ = [
    "DebCache",
    "DistroRelease",
    "PrivateApt",
    "check_debs",
    "debian_architecture",
    "fetch_all",
    "fetch_debs",
    "find_release",
    "find_release_by_codename",
    "open_private_apt",
    "private_apt_for",
    "user_deb_cache",
    "write_repository",
]


def user_deb_cache(paths: Paths) -> DebCache:
    """Return the user's package cache, shared by all projects."""
    return DebCache(paths.cache / "apt" / "debs")


async def private_apt_for(
    wanted: DistroRelease,
    architecture: str,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
) -> PrivateApt:
    """Return the private apt for a release and Debian ``architecture``; its lists are not yet
    downloaded.

    Raises :class:`danlu.errors.MachineError` if this machine has no apt, or no archive of the
    distribution is configured.
    """
    host = await read_host_apt()
    archive = find_archive(
        wanted,
        architecture,
        host=host,
        config=config,
        source=apt.source if apt else "",
    )
    cache = paths.cache / "apt"
    archive = await add_keyring(archive, host=host, config=config, cache=cache)
    return open_private_apt(archive, cache, host)


async def fetch_debs(
    debs: Sequence[DebPackage],
    family: str,
    codename: str,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    transfer: Callable[[int, int], None] | None = None,
    offline: bool = False,
) -> DebCache:
    """Download ``debs`` into the user's cache, verified, and return the cache (see
    :func:`fetch_all`).

    ``family`` (``debian12`` is accepted; empty if only the codename is known) and ``codename`` are
    needed only if something must be downloaded.
    """

    async def home() -> PrivateApt:
        own = [deb.architecture for deb in debs if deb.architecture != "all"]
        architecture = own[0] if own else debian_architecture(Platform())
        wanted = find_release_by_codename(family, codename)
        return await private_apt_for(wanted, architecture, apt=apt, paths=paths, config=config)

    cache = user_deb_cache(paths)
    await fetch_all(cache, debs, home, transfer=transfer, offline=offline)
    return cache
