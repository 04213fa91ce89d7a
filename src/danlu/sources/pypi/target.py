"""The interpreter and platform that packages are chosen for, in uv's words and in wheel tags."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import MachineError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from packaging.tags import Tag

__all__ = ["GLIBC_LEVELS", "Target", "best_wheel", "fits"]

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

#: The glibc levels that every supported uv knows by name (``uv pip compile --help``).
GLIBC_LEVELS = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)


class Target(msgspec.Struct, frozen=True):
    """A CPython and the system it runs on.

    ``python`` is the full version (``3.11.2``), ``libc`` as in
    :class:`~danlu.environment.lock.LockedBase` (``glibc 2.36``, ``musl 1.2``), ``architecture``
    OCI's word (``amd64``, ``arm64``).
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
                f"danlu does not know which wheels fit the architecture {self.architecture!r}",
                hint=f"known are {', '.join(sorted(_MACHINES))}",
            ) from None

    @property
    def libc_version(self) -> tuple[str, int, int]:
        """``("glibc", 2, 36)``; raises :class:`ResolveError` where the lock holds nonsense."""
        match = re.fullmatch(r"(glibc|musl) (\d+)\.(\d+)(?:\.\d+)?", self.libc)
        if match is None:
            raise ResolveError(
                f"the C library {self.libc!r} of the base is not known",
                hint="Python packages need a base with glibc or musl",
            )
        return match[1], int(match[2]), int(match[3])

    @property
    def uv_platform(self) -> str:
        """The value of uv's ``--python-platform``: the newest level that the C library has."""
        family, major, minor = self.libc_version
        if family == "musl":
            return f"{self.machine}-unknown-linux-musl"
        level = max((one for one in GLIBC_LEVELS if (2, one) <= (major, minor)), default=17)
        return f"{self.machine}-manylinux_2_{level}"

    def platforms(self) -> tuple[str, ...]:
        """Platform tags that fit, best first (PEP 600, PEP 656)."""
        family, major, minor = self.libc_version
        if family == "musl":
            tags = [f"musllinux_{major}_{one}_{self.machine}" for one in range(minor, -1, -1)]
            return (*tags, f"linux_{self.machine}")
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        tags = []
        for one in range(minor, 4 if self.machine == "x86_64" else 16, -1):
            tags.append(f"manylinux_{major}_{one}_{self.machine}")
            if one in legacy:
                tags.append(f"{legacy[one]}_{self.machine}")
        return (*tags, f"linux_{self.machine}")


@functools.lru_cache(maxsize=8)
def _ranks(target: Target) -> dict[Tag, int]:
    from packaging import tags

    major, minor = target.minor
    platforms = target.platforms()
    ordered: list[Tag] = [
        *tags.cpython_tags((major, minor), platforms=platforms),
        *tags.compatible_tags((major, minor), f"cp{major}{minor}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(ordered)))}


def _rank(file: str, target: Target) -> tuple[int, tuple[int, str]] | None:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        _, _, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    ranks = [rank for tag in tags if (rank := _ranks(target).get(tag)) is not None]
    number, letters = build or (0, "")
    # A higher build number is the better of two otherwise equal wheels (binary distribution
    # format, "build tag").
    return (min(ranks), (-number, letters)) if ranks else None


def fits(file: str, target: Target) -> bool:
    """Whether the wheel of this file name can be installed on ``target``."""
    return _rank(file, target) is not None


def best_wheel(files: Iterable[str], target: Target) -> str | None:
    """The file name that installers prefer among ``files``, or None where none fits."""
    ranked = [(rank, file) for file in files if (rank := _rank(file, target)) is not None]
    return min(ranked)[1] if ranked else None
