"""The packages that danlu needs on another machine: those installed here, or others of its kind.

Some packages are compiled for one Python version, processor and C library. If the other machine
has the same, the installed files are copied and no index is needed; otherwise uv resolves the same
versions for it.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from danlu.errors import MachineError, OutsideError
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv import Uv, target_options

OLDEST_PYTHON = (3, 11)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Python cannot tell the version of musl; wheels for 1.2 are common.
_MUSL = "musl 1.2"


class MachineProbe(msgspec.Struct, frozen=True, array_like=True):
    """What Python's :mod:`sys` and :mod:`platform` say about a machine."""

    system: str
    python: str
    processor: str
    libc_family: str
    libc_version: str

    @property
    def target(self) -> PlatformTarget:
        """What packages are selected for; raises :class:`MachineError` if danlu cannot run."""
        if self.system != "linux" or self.processor not in _ARCHITECTURES:
            raise MachineError(f"danlu does not run on {self.system} with {self.processor}")
        libc = f"{self.libc_family} {self.libc_version}" if self.libc_family == "glibc" else _MUSL
        target = PlatformTarget(self.python, libc, _ARCHITECTURES[self.processor])
        if target.minor < OLDEST_PYTHON:
            oldest = ".".join(map(str, OLDEST_PYTHON))
            raise MachineError(
                f"danlu needs Python {oldest} or later; python3 of that machine is {self.python}",
                hint="install a newer Python there and put it first on PATH as python3",
            )
        return target


def probe_this_machine() -> MachineProbe:
    """Describe this machine's Python."""
    family, version = platform.libc_ver()
    return MachineProbe(
        sys.platform, platform.python_version(), platform.machine(), family, version
    )


def runs_installed_packages(other: MachineProbe) -> bool:
    """Return whether what is installed here also runs on the other machine."""
    here = probe_this_machine()
    if (here.system, here.processor, here.libc_family) != (
        other.system,
        other.processor,
        other.libc_family,
    ):
        return False
    ours, theirs = here.target, other.target
    return ours.minor == theirs.minor and ours.libc_version <= theirs.libc_version


def list_installed_files() -> Iterator[tuple[Path, str]]:
    """Yield the files of installed packages, and their names in a directory of packages."""
    for distribution in list_distributions():
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            # Programs (uv) are found in a directory next to the packages, as after `pip --target`.
            name = f"bin/{source.name}" if file.parts[0] == ".." else str(file)
            if source.is_file() and source.suffix != ".pyc":
                yield source, name


def install_packages(target: PlatformTarget, directory: Path, cache: Path) -> None:
    """Install the versions that are installed here for another machine into ``directory``.

    ``cache`` is danlu's directory of downloads. Raises :class:`OutsideError` if the package
    indexes do not have them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        wanted, versions = Path(scratch, "wanted.txt"), Path(scratch, "versions.txt")
        wanted.write_text("".join(f"{item}\n" for item in _list_requirements()))
        installed = (f"{item.metadata['Name']}=={item.version}\n" for item in list_distributions())
        versions.write_text("".join(installed))
        options = [
            *target_options(target),
            *("--target", str(directory), "--requirements", str(wanted)),
            *("--constraints", str(versions), "--link-mode", "copy"),
        ]
        uv = Uv(cache / "uv", Path(scratch))
        code, _, stderr = asyncio.run(uv.run(("pip", "install"), options))
    if code:
        raise OutsideError(
            f"cannot install danlu's packages for Python {target.python}, {target.libc}: "
            f"{stderr.strip() or f'uv exited with code {code}'}",
        )


def list_distributions() -> list[metadata.Distribution]:
    """Return the distributions that danlu requires here, directly or not, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(_list_requirements())
    for requirement in waiting:
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in found or (marker is not None and not marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution = metadata.distribution(name)
        waiting += [Requirement(text) for text in distribution.requires or ()]
    return [found[name] for name in sorted(found)]


def _list_requirements() -> Iterator[Requirement]:
    """Yield what danlu itself requires, without extras."""
    for text in metadata.requires("danlu") or ():
        requirement = Requirement(text)
        if requirement.marker is None or "extra" not in str(requirement.marker):
            yield requirement
