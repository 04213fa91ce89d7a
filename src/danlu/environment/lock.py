"""The lock: every outside thing an environment is made of, pinned by content, with no addresses.

A :class:`FunctionLock` belongs to one function of the build file. Its *tables* (base, python,
system) and the Python packages are known to every phase. Its *sections* are lists of pins, each
owned by a build function that registers a :class:`LockSection`.

Each table carries ``inputs``, the digest of what was declared when it was resolved: a table whose
``inputs`` still match is not resolved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from danlu.environment.archives import LockedArchive
from danlu.graph.ops import DebPackage, Platform, parse_platform

LOCK_VERSION = 1

#: The latest time that every tar and file system can represent: 11 octal digits (the year 2242).
MAX_EPOCH = 2**33 - 1


class LockedImage(msgspec.Struct, frozen=True):
    """An image of a registry: what the user wrote, and the digest of the platform's manifest."""

    reference: str
    digest: str


class LockedBase(msgspec.Struct, frozen=True):
    """The base: an image, or a distribution's minimal system as packages.

    ``epoch`` is the archive's release date (or the image's creation) in seconds UTC; it becomes
    SOURCE_DATE_EPOCH for the whole build. ``libc`` is the C library that wheels must fit
    (``glibc 2.36``, ``musl 1.2``). For an image, ``interpreter`` and ``python`` are the path and
    the full version of the Python in it, empty if it has none. ``variant`` is the level of
    processors that programs may need, empty for all.
    """

    inputs: str
    epoch: int
    distribution: str = ""
    codename: str = ""
    libc: str = ""
    image: LockedImage | None = None
    packages: tuple[DebPackage, ...] = ()
    interpreter: str = ""
    python: str = ""
    variant: str = ""


class LockedPython(msgspec.Struct, frozen=True):
    """The interpreter: its exact version, its path in the image, and who provides it.

    ``provider`` is ``apt`` (its packages are among the system packages), ``image``, ``conda`` (it
    is one of the conda packages), or ``archive`` (a standalone build, ``archive``).
    """

    inputs: str
    version: str
    executable: str
    provider: Literal["apt", "image", "conda", "archive"]
    archive: LockedArchive | None = None

    @property
    def lacks_gil(self) -> bool:
        """Whether it is built without the GIL (``python3.13t``, PEP 703)."""
        return self.executable.endswith("t")


class LockedSystem(msgspec.Struct, frozen=True):
    """System packages beyond the base: all of them with their dependencies, and those requested."""

    inputs: str
    packages: tuple[DebPackage, ...] = ()
    requested: tuple[str, ...] = ()


class LockedCondaPackage(msgspec.Struct, frozen=True):
    """A conda package.

    ``channel`` is the channel's name, or its address without credentials if the user wrote one;
    ``file`` the archive's name below ``channel/subdir``, ``size`` its size in bytes.
    ``noarch_python`` is true for pure Python packages, whose files go where the environment's
    interpreter looks for them. ``site_packages`` is where that is, if it is not the usual place.
    """

    name: str
    version: str
    build: str
    channel: str
    subdir: str
    file: str
    sha256: str
    size: int = 0
    noarch_python: bool = False
    site_packages: str = ""


class LockedConda(msgspec.Struct, frozen=True):
    """The conda environment: all packages, sorted by name."""

    inputs: str
    packages: tuple[LockedCondaPackage, ...] = ()

    def find(self, name: str) -> LockedCondaPackage | None:
        """Return the package of that name."""
        return next((package for package in self.packages if package.name == name), None)


class LockedPackage(msgspec.Struct, frozen=True):
    """A Python package.

    ``source`` is ``index`` (a wheel), ``sdist``, ``local``, ``url`` or ``git``. ``file`` is the
    file name of the wheel or archive, ``sha256`` its hash (of the tree for a checkout or a local
    directory). ``location`` is a path, URL or repository of the user's own files; ``commit`` the
    full object name, ``ref`` the branch or tag it was resolved from. ``size`` is in bytes, 0 if
    unknown. ``build`` names the wheels that it is built with (``setuptools==75.1.0``), which are
    among ``build_packages`` of the lock; None if it is a wheel itself. An ``editable`` package is
    a directory of the project, and ``sha256`` is the hash of its metadata only.
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
    build: tuple[str, ...] | None = None
    editable: bool = False


class LockedSetting(msgspec.Struct, frozen=True):
    """A setting of pip or uv that restricted the Python packages when they were locked.

    ``origin`` is a variable, or whose configuration it was. ``package`` is the normalised name of
    the only package that it is about. For information: other machines need not have the setting.
    """

    name: str
    value: str
    origin: str
    package: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.value} ({self.origin})"


class FunctionLock(msgspec.Struct, frozen=True):
    """Everything that one function of a build file was resolved to.

    ``sections`` has the pins of each :class:`LockSection`, by its name; in the file they are
    fields like the others.
    """

    platform: str
    base: LockedBase
    python: LockedPython | None = None
    system: LockedSystem | None = None
    conda: LockedConda | None = None
    packages_inputs: str = ""
    packages: tuple[LockedPackage, ...] = ()
    build_packages: tuple[LockedPackage, ...] = ()
    package_settings: tuple[LockedSetting, ...] = ()
    sections: Mapping[str, tuple[msgspec.Struct, ...]] = {}


class Lock(msgspec.Struct, frozen=True):
    """A lockfile: its version, and a :class:`FunctionLock` for each function of the build file.

    The first platform that a function was locked for has the function's name, every other one
    ``NAME@PLATFORM`` (``build@linux/arm64``).
    """

    functions: Mapping[str, FunctionLock] = {}
    version: int = LOCK_VERSION

    def find(self, target: str, platform: Platform) -> FunctionLock | None:
        """Return what ``target``, a function with its arguments, was resolved to for a platform."""
        return self.functions.get(self._choose_name(target, platform))

    def replace_function(self, target: str, new: FunctionLock) -> Lock:
        """Return the lock with ``new`` for ``target`` and the platform of ``new``."""
        name = self._choose_name(target, parse_platform(new.platform))
        return Lock({**self.functions, name: new}, self.version)

    def list_platforms(self, target: str) -> tuple[Platform, ...]:
        """Return the platforms that ``target`` is locked for."""
        first = self.functions.get(target)
        others = (self.functions[name] for name in self.functions if name.startswith(f"{target}@"))
        locks = (*((first,) if first else ()), *others)
        return tuple(parse_platform(lock.platform) for lock in locks)

    def _choose_name(self, target: str, platform: Platform) -> str:
        first = self.functions.get(target)
        is_first = first is None or first.platform == str(platform)
        return target if is_first else f"{target}@{platform}"


class SystemPackagesPin(msgspec.Struct, frozen=True):
    """A pin of a :class:`LockSection` that the distribution's packages may provide."""

    def system_packages(self) -> tuple[str, ...]:
        """Return the distribution's packages to install, with ``name=version`` as in apt."""
        return ()


def list_pinned_packages(sections: Mapping[str, tuple[msgspec.Struct, ...]]) -> tuple[str, ...]:
    """Return the system packages that the pins of ``sections`` need, sorted."""
    pins = [pin for pins in sections.values() for pin in pins]
    needed = [pin.system_packages() for pin in pins if isinstance(pin, SystemPackagesPin)]
    return tuple(sorted({name for names in needed for name in names}))
