"""Standalone builds of CPython (python-build-standalone), as uv installs them.

Which builds exist is in the table of the uv that danlu uses; the archives themselves come from the
mirror ``python`` (:mod:`danlu.sources.mirrors`), under the names that the project gives them:
``20241219/cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.version import InvalidVersion, Version

from danlu.errors import OutsideError
from danlu.oci.archive import read_archive_file
from danlu.sources.http import FetchedFile
from danlu.sources.pypi.uv import find_uv
from danlu.util.decoding import decode_json

_NAME = re.compile(
    r"cpython-(?P<version>3\.\d+\.\d+(?:(?:a|b|rc)\d+)?)\+(?P<release>\d{8})-"
    r"(?P<machine>[a-z0-9_]+)-unknown-linux-(?P<libc>gnu|musl)-"
    r"(?P<threading>freethreaded-)?install_only(?P<stripped>_stripped)?\.tar\.gz"
)
_CHECKSUM = re.compile(r"([0-9a-f]{64})[ *]+(\S+)")

#: ``e_machine`` of the ELF header, in the words of the archives' names.
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


class PythonRequirement(msgspec.Struct, frozen=True):
    """The interpreter to find: ``3.12`` or ``3.12.8``, a machine (``x86_64``) and a C library."""

    version: str
    machine: str
    libc: str
    free_threaded: bool = False

    def allows(self, build: PythonBuild) -> bool:
        """Return whether a build is such an interpreter."""
        return (
            (build.machine, build.libc, build.free_threaded)
            == (self.machine, self.libc, self.free_threaded)
            and (build.version == self.version or build.version.startswith(self.version + "."))
            and (not Version(build.version).is_prerelease or build.version == self.version)
        )


class PythonBuild(msgspec.Struct, frozen=True):
    """A standalone build: its version, release date (``20241219``) and file name.

    ``sha256`` is its published hash, empty if unknown.
    """

    version: str
    release: str
    machine: str
    libc: str
    free_threaded: bool
    file: str
    sha256: str = ""

    @property
    def path(self) -> str:
        """Its path below a mirror."""
        return f"{self.release}/{self.file}"

    @property
    def program(self) -> str:
        """The interpreter's path in the archive, without the first directory."""
        minor = ".".join(self.version.split(".")[:2])
        return f"bin/python{minor}{'t' if self.free_threaded else ''}"

    @property
    def sort_key(self) -> tuple[Version, str, bool]:
        """Newer builds are greater, and stripped ones than those with debug symbols."""
        return Version(self.version), self.release, "_stripped" in self.file


def parse_build(file: str) -> PythonBuild | None:
    """Return the build that a file name is of; None for everything else."""
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    try:
        Version(match["version"])
    except InvalidVersion:
        return None
    return PythonBuild(
        version=match["version"],
        release=match["release"],
        machine=match["machine"],
        libc=match["libc"],
        free_threaded=bool(match["threading"]),
        file=file,
    )


def choose_builds(
    builds: Iterable[PythonBuild], requirement: PythonRequirement
) -> list[PythonBuild]:
    """Return the builds that meet a requirement, the newest first."""
    fitting = {build.file: build for build in builds if requirement.allows(build)}
    return sorted(fitting.values(), key=lambda build: build.sort_key, reverse=True)


def parse_checksums(text: str) -> dict[str, str]:
    """Return the hashes of a ``SHA256SUMS`` file by file name."""
    found = {}
    for line in text.splitlines():
        match = _CHECKSUM.fullmatch(line.strip())
        if match:
            found[match[2].rpartition("/")[2]] = match[1]
    return found


def list_directory_builds(mirrors: Sequence[str]) -> list[PythonBuild]:
    """Return the builds in those mirrors that are directories, up to one level deep."""
    names: list[str] = []
    for mirror in mirrors:
        if mirror.startswith("file:"):
            directory = Path(unquote(urlsplit(mirror).path))
            names += [path.name for path in (*directory.glob("*"), *directory.glob("*/*"))]
    return [build for name in names if (build := parse_build(name)) is not None]


class _ListedDownload(msgspec.Struct):
    """An entry of ``uv python list --output-format json``."""

    url: str | None = None


async def list_release_builds() -> list[PythonBuild]:
    """Return all builds that the installed uv knows, without asking the network."""
    from danlu.util.process import run

    words = ("python", "list", "--all-versions", "--all-platforms", "--all-arches")
    options = ("--only-downloads", "--output-format", "json", "--offline", "--no-config")
    # Only what a program needs to run: settings of uv could add interpreters of the user's.
    environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    done = await run((str(find_uv()), *words, *options), env=environment)
    try:
        listed = decode_json(done.stdout, list[_ListedDownload])
    except msgspec.MsgspecError as error:
        reason = done.stderr.decode(errors="replace").strip()
        raise OutsideError(f"cannot list uv's builds of Python: {reason}") from error
    files = [unquote(item.url or "").rpartition("/")[2] for item in listed]
    return [build for file in files if (build := parse_build(file)) is not None]


def check_build(fetched: FetchedFile, build: PythonBuild) -> None:
    """Check that a downloaded archive is complete and has an interpreter for the build's machine.

    Raises :class:`OutsideError` if not: a mirror may have stored anything under that name.
    """
    header = read_archive_file(fetched.path, f"python/{build.program}", name=build.file)
    hint = "the file on the mirror is not the archive it is named after; replace it"
    if header is None:
        raise OutsideError(f"{build.file} contains no python/{build.program}", hint=hint)
    wanted = _ELF_MACHINES.get(build.machine)
    machine = int.from_bytes(header[18:20], "little")
    if not header.startswith(b"\x7fELF") or wanted not in (None, machine):
        raise OutsideError(
            f"{build.file} contains an interpreter for another platform than {build.machine}",
            hint=hint,
        )
