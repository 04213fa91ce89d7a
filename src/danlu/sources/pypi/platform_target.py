"""The interpreter and platform that packages are selected for, as uv options and wheel tags."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import MachineError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.tags import Tag

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

#: The glibc versions that every supported uv accepts by name (``uv pip compile --help``).
GLIBC_LEVELS = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)


class PlatformTarget(msgspec.Struct, frozen=True):
    """A CPython version and the system it runs on.

    ``python`` is the full version (``3.11.2``), ``libc`` as in
    :class:`~danlu.environment.lock.LockedBase` (``glibc 2.36``, ``musl 1.2``), ``architecture``
    OCI's name (``amd64``, ``arm64``).
    """

    python: str
    libc: str
    architecture: str = "amd64"

    @property
    def minor(self) -> tuple[int, int]:
        """``(3, 11)``."""
        major, minor = self.python.split(".")[:2]
        return int(major), int(minor)

    @property
    def machine(self) -> str:
        """The machine's name in wheel tags (``x86_64``)."""
        try:
            return _MACHINES[self.architecture]
        except KeyError:
            raise MachineError(
                f"Python packages are not supported on architecture {self.architecture!r}",
                hint=f"supported architectures: {', '.join(sorted(_MACHINES))}",
            ) from None

    @property
    def libc_version(self) -> tuple[str, int, int]:
        """``("glibc", 2, 36)``; raises :class:`ResolveError` if it is invalid."""
        match = re.fullmatch(r"(glibc|musl) (\d+)\.(\d+)(?:\.\d+)?", self.libc)
        if match is None:
            raise ResolveError(
                f"unsupported C library {self.libc!r} in the base",
                hint="Python packages require a base with glibc or musl",
            )
        return match[1], int(match[2]), int(match[3])

    @property
    def uv_platform(self) -> str:
        """The value of ``--python-platform``: the newest level that the C library supports."""
        family, major, minor = self.libc_version
        if family == "musl":
            return f"{self.machine}-unknown-linux-musl"
        level = max((level for level in GLIBC_LEVELS if (2, level) <= (major, minor)), default=17)
        return f"{self.machine}-manylinux_2_{level}"

    def platforms(self) -> tuple[str, ...]:
        """Return the compatible platform tags, best first (PEP 600, PEP 656)."""
        family, major, minor = self.libc_version
        if family == "musl":
            tags = [f"musllinux_{major}_{level}_{self.machine}" for level in range(minor, -1, -1)]
            return (*tags, f"linux_{self.machine}")
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        tags = []
        for level in range(minor, 4 if self.machine == "x86_64" else 16, -1):
            tags.append(f"manylinux_{major}_{level}_{self.machine}")
            if level in legacy:
                tags.append(f"{legacy[level]}_{self.machine}")
        return (*tags, f"linux_{self.machine}")


@functools.lru_cache(maxsize=8)
def _tag_ranks(target: PlatformTarget) -> dict[Tag, int]:
    from packaging import tags

    major, minor = target.minor
    platforms = target.platforms()
    ordered: list[Tag] = [
        *tags.cpython_tags((major, minor), platforms=platforms),
        *tags.compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def _rank_wheel(file: str, target: PlatformTarget) -> tuple[int, tuple[int, str]] | None:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, _, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    ranks = [rank for tag in tags if (rank := _tag_ranks(target).get(tag)) is not None]
    number, letters = build or (0, "")
    # Of two otherwise equal wheels the one with the higher build number wins (PyPA specification
    # "Binary distribution format", build tag).
    return (min(ranks), (-number, letters)) if ranks else None


def is_compatible(file: str, target: PlatformTarget) -> bool:
    """Return whether a wheel with this file name can be installed on ``target``."""
    return _rank_wheel(file, target) is not None


def best_wheel(files: Iterable[str], target: PlatformTarget) -> str | None:
    """Return the file name that installers prefer among ``files``; None if none is compatible."""
    ranked = [(rank, file) for file in files if (rank := _rank_wheel(file, target)) is not None]
    return min(ranked)[1] if ranked else None
