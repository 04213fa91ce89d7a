"""Where Julia finds installed packages: its depot, and the files of an environment.

The directories are those of Julia's own ``Pkg``, named after hashes; see ``Base.version_slug``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from danlu.environment.archives import LockedArchive, find_archive_problem
from danlu.graph.ops import FileEntry

MIRROR = "julia-packages"
"""The mirror of packages: a package server, or a directory with the same paths."""

DEPOT = "/usr/local/share/julia"
_ENVIRONMENT = f"{DEPOT}/environments/danlu"

NAME_PATTERN = r"[A-Za-z][A-Za-z0-9_]*"
UUID_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

#: A package in a build file.
REQUEST = re.compile(rf"({NAME_PATTERN})(?:\.jl)?(?:@v?([0-9]+(?:\.[0-9]+){{0,2}}))?")

#: What fields of a pin look like. They become paths and lines of files.
_PATTERNS = {
    "name": re.compile(NAME_PATTERN),
    "version": re.compile(r"[0-9a-f][0-9A-Za-z.+-]*"),
    "julia": re.compile(r"[0-9]+(\.[0-9]+)*"),
    "uuid": re.compile(UUID_PATTERN),
    "tree": re.compile(r"[0-9a-f]{40}"),
}
LINK = re.compile(rf"{NAME_PATTERN}={UUID_PATTERN}")
EXTENSION = re.compile(rf"{NAME_PATTERN}={NAME_PATTERN}(\+{NAME_PATTERN})*")

#: Characters of the directories that Julia names after hashes (``Base.version_slug``).
_SLUG_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class LockedJuliaPackage(msgspec.Struct, frozen=True):
    """A package, a binary artifact that packages need, or a package that is part of Julia.

    ``tree`` is Git's hash of its files, ``sha256`` that of the archive, ``julia`` the release that
    it was resolved for. ``requested`` is what the build file says, empty for a dependency.
    ``dependencies`` and ``weak_dependencies`` are ``Name=UUID``; ``extensions`` are
    ``Name=Trigger+Trigger``. ``artifacts`` are the trees of artifacts. ``inputs`` is the digest of
    what decides which release and server that is.
    """

    name: str
    version: str
    kind: Literal["package", "artifact", "standard"]
    inputs: str
    julia: str
    requested: str = ""
    uuid: str = ""
    tree: str = ""
    sha256: str = ""
    size: int = 0
    dependencies: tuple[str, ...] = ()
    weak_dependencies: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Its path on a package server."""
        return (
            f"artifact/{self.tree}"
            if self.kind == "artifact"
            else locate_package(self.uuid, self.tree)
        )

    @property
    def directory(self) -> str:
        """Where Julia looks for it."""
        if self.kind == "artifact":
            return f"{DEPOT}/artifacts/{self.tree}"
        return f"{DEPOT}/packages/{self.name}/{make_version_slug(self.uuid, self.tree)}"

    def to_archive(self) -> LockedArchive:
        """Return the archive with its files."""
        return LockedArchive(self.name, self.version, MIRROR, self.path, self.sha256, self.size)


def locate_package(uuid: str, tree: str) -> str:
    """Return the path of a package on a package server."""
    return f"package/{uuid}/{tree}"


def make_version_slug(uuid: str, tree: str) -> str:
    """Return the directory of a version of a package, as Julia's ``Base.version_slug`` does."""
    number = int(uuid.replace("-", ""), 16)
    rest = _compute_crc32c(number.to_bytes(16, "little") + bytes.fromhex(tree))
    slug = ""
    for _ in range(5):
        rest, digit = divmod(rest, len(_SLUG_CHARACTERS))
        slug += _SLUG_CHARACTERS[digit]
    return slug


def _compute_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)  # Castagnoli's polynomial, reflected
    return crc ^ 0xFFFFFFFF


def write_environment(pins: Sequence[LockedJuliaPackage]) -> tuple[FileEntry, ...]:
    """Return the files of the environment.

    Packages that are part of Julia are not in its manifest: dependencies are written with their
    UUIDs, by which Julia finds them in its standard library.
    """
    packages = [pin for pin in pins if pin.kind == "package"]
    project = ["[deps]", *(f'{pin.name} = "{pin.uuid}"' for pin in packages if pin.requested)]
    julia = next((pin.julia for pin in pins), "")
    # Julia 1.5 reads only the first format, and newer ones complain about it.
    is_first = tuple(map(int, re.findall(r"[0-9]+", julia)[:2])) < (1, 7)
    prefix = "" if is_first else "deps."
    lines = [] if is_first else [f'julia_version = "{julia}"', 'manifest_format = "2.0"']
    for pin in packages:
        table = f"{prefix}{pin.name}"
        lines += ["", f"[[{table}]]", f'git-tree-sha1 = "{pin.tree}"', f'uuid = "{pin.uuid}"']
        lines += [f'version = "{pin.version}"']
        for key, links in (("deps", pin.dependencies), ("weakdeps", pin.weak_dependencies)):
            pairs = [link.split("=") for link in links]
            lines += [f"[{table}.{key}]"] if pairs else []
            lines += [f'{name} = "{uuid}"' for name, uuid in pairs]
        extensions = [item.split("=") for item in pin.extensions]
        lines += [f"[{table}.extensions]"] if extensions else []
        for name, triggers in extensions:
            quoted = ", ".join(f'"{item}"' for item in triggers.split("+"))
            lines.append(f"{name} = [{quoted}]")
    return (
        FileEntry(f"{_ENVIRONMENT}/Manifest.toml", content="\n".join(lines).lstrip("\n") + "\n"),
        FileEntry(f"{_ENVIRONMENT}/Project.toml", content="\n".join(project) + "\n"),
    )


def find_pin_problem(pin: LockedJuliaPackage) -> str:
    """Return what is invalid in a pin of a lock that was edited; empty if nothing is."""
    unused = {"standard": ("uuid", "tree"), "artifact": ("uuid",)}.get(pin.kind, ())
    for field, pattern in _PATTERNS.items():
        if field not in unused and not pattern.fullmatch(getattr(pin, field)):
            return f"Julia package {pin.name} has an invalid {field}"
    links = (*pin.dependencies, *pin.weak_dependencies)
    if not all(map(LINK.fullmatch, links)) or not all(map(EXTENSION.fullmatch, pin.extensions)):
        return f"Julia package {pin.name} has an invalid dependency"
    return "" if pin.kind == "standard" else find_archive_problem(pin.to_archive())


def split_request(request: str) -> tuple[str, str]:
    """Return name and version of a package in a build file; the version may be empty."""
    match = REQUEST.fullmatch(request)
    assert match is not None  # the call was checked
    return match[1], match[2] or ""
