"""System packages from archives of the Debian family, by this machine's own apt and dpkg.

The machine's configuration says where packages come from and how they are reached; lists, caches
and files are danlu's, below ``Paths.cache/"apt"``. All functions that run programs are async.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.graph import Platform
from danlu.sources.apt.debs import Cache, check_debs, fetch_all, write_repository
from danlu.sources.apt.home import Home, open_home
from danlu.sources.apt.suites import Distribution, debian_architecture, distribution, of_codename

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from danlu.environment.types import AptSource
    from danlu.graph import Deb
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = [
    "Cache",
    "Distribution",
    "Home",
    "check_debs",
    "deb_cache",
    "debian_architecture",
    "distribution",
    "fetch",
    "fetch_all",
    "home_for",
    "of_codename",
    "open_home",
    "write_repository",
]


def deb_cache(paths: Paths) -> Cache:
    """The user's package files, shared by all projects."""
    return Cache(paths.cache / "apt" / "debs")


async def home_for(
    wanted: Distribution,
    architecture: str,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
) -> Home:
    """The private apt of ``wanted`` for a Debian ``architecture``; its lists are not fetched yet.

    Raises :class:`danlu.errors.MachineError` where this machine has no apt, or no source of the
    distribution's packages.
    """
    from danlu.sources.apt.archive import archive_for
    from danlu.sources.apt.host import host_apt

    host = await host_apt()
    archive = archive_for(
        wanted,
        architecture,
        host=host,
        config=config,
        source=apt.source if apt else "",
    )
    return open_home(archive, paths.cache / "apt", host)


async def fetch(
    debs: Sequence[Deb],
    family: str,
    codename: str,
    *,
    apt: AptSource | None,
    paths: Paths,
    config: Configuration,
    transfer: Callable[[int, int], None] | None = None,
    offline: bool = False,
) -> Cache:
    """Bring ``debs`` into the user's cache, verified, and give the cache (see :func:`fetch_all`).

    ``family`` (``debian12`` will do, empty where only the codename is known) and ``codename``
    matter only when something must be fetched.
    """

    async def home() -> Home:
        own = [deb.architecture for deb in debs if deb.architecture != "all"]
        architecture = own[0] if own else debian_architecture(Platform())
        wanted = of_codename(family, codename)
        return await home_for(wanted, architecture, apt=apt, paths=paths, config=config)

    cache = deb_cache(paths)
    await fetch_all(cache, debs, home, transfer=transfer, offline=offline)
    return cache
