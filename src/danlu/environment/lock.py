"""The lock: every outside thing an environment is made of, pinned by content, with no addresses.

One :class:`FunctionLock` a build function. Each *section* carries ``inputs``, the digest of what
was declared when it was resolved: a section whose ``inputs`` still match is not resolved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from danlu.graph import Deb

__all__ = [
    "LOCK_VERSION",
    "FunctionLock",
    "Lock",
    "LockedBase",
    "LockedHttp",
    "LockedImage",
    "LockedInclude",
    "LockedPackage",
    "LockedPython",
    "LockedSystem",
]

LOCK_VERSION = 1


class LockedImage(msgspec.Struct, frozen=True):
    """An image of a registry: what the user wrote, and the digest of the platform's manifest."""

    reference: str
    digest: str


class LockedBase(msgspec.Struct, frozen=True):
    """The base: an image, or a distribution's minimal system as packages.

    ``epoch`` is the archive's release date (or the image's creation), seconds UTC: the
    SOURCE_DATE_EPOCH of the whole build. ``libc`` is the C library wheels must fit
    (``glibc 2.36``, ``musl 1.2``). For an image, ``interpreter`` and ``python`` tell its own
    Python's path and full version, empty where it has none.
    """

    inputs: str
    epoch: int
    distribution: str = ""
    codename: str = ""
    libc: str = ""
    image: LockedImage | None = None
    packages: tuple[Deb, ...] = ()
    interpreter: str = ""
    python: str = ""


class LockedPython(msgspec.Struct, frozen=True):
    """The interpreter: its exact version, its path in the image, and who installs it.

    ``provider`` is ``apt`` (its packages are among the system packages) or ``image``.
    """

    inputs: str
    version: str
    executable: str
    provider: Literal["apt", "image"]


class LockedSystem(msgspec.Struct, frozen=True):
    """System packages beyond the base: all of them with what they need, and those asked for."""

    inputs: str
    packages: tuple[Deb, ...] = ()
    requested: tuple[str, ...] = ()


class LockedPackage(msgspec.Struct, frozen=True):
    """One Python package.

    ``source`` is ``index`` (a wheel), ``sdist``, ``local``, ``url`` or ``git``. ``file`` is the
    wheel's or the archive's file name, ``sha256`` its hash (of the tree for a checkout or a local
    directory); ``location`` only what the user's own files say: path, URL or repository;
    ``commit`` the full object name, ``ref`` the branch or tag that meant it. ``size`` is in bytes,
    0 where it is unknown.
    """

    name: str
    version: str
    source: Literal["index", "sdist", "local", "url", "git"]
    file: str = ""
    sha256: str = ""
    size: int = 0
    location: str = ""
    commit: str = ""
    subdirectory: str = ""
    ref: str = ""


class LockedHttp(msgspec.Struct, frozen=True):
    """A file of ``io.http``: the user's URL and what it gave."""

    url: str
    sha256: str
    size: int


class LockedInclude(msgspec.Struct, frozen=True):
    """A repository of ``include``: the user's URL and ref, and the commit they meant."""

    url: str
    ref: str
    commit: str


class FunctionLock(msgspec.Struct, frozen=True):
    """All that one build function stands on."""

    platform: str
    base: LockedBase
    python: LockedPython | None = None
    system: LockedSystem | None = None
    packages_inputs: str = ""
    packages: tuple[LockedPackage, ...] = ()
    http: tuple[LockedHttp, ...] = ()
    images: tuple[LockedImage, ...] = ()
    includes: tuple[LockedInclude, ...] = ()


class Lock(msgspec.Struct, frozen=True):
    """A lock file: its version, and one section a build function."""

    functions: Mapping[str, FunctionLock] = {}
    version: int = LOCK_VERSION
