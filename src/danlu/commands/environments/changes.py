"""What was changed by hand in an environment: packages, files, and the lines that make the same.

The writable layer is untrusted: programs inside wrote it. No link in it is followed, what is read
is bounded, and only valid names and versions get into lines of a build file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from danlu.oci.overlay import is_whiteout
from danlu.sandbox.layer_view import LayerView

_MAX_READ = 16 << 20
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_DPKG_STATUS = "var/lib/dpkg/status"
_APT_STATES = "var/lib/apt/extended_states"
_DPKG_DIRECTORIES = ("var", "var/lib", "var/lib/apt", "var/lib/dpkg", "var/lib/dpkg/info")
#: Written by package managers and shells; a rebuild makes its own.
_IGNORED_PREFIXES = (
    "etc/ld.so.cache",
    "home/envd/.bash_history",
    "home/envd/.cache/",
    "root/.bash_history",
    "root/.cache/",
    "root/.local/share/jupyter/",
    "root/.ipython/",
    "run/",
    "tmp/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/dpkg/",
    "var/log/",
    "var/tmp/",
    "workspace",
)


@dataclass(frozen=True)
class PythonChange:
    """A distribution installed by hand; ``requested`` unless it only came as a dependency."""

    name: str
    version: str
    requested: bool


@dataclass(frozen=True)
class ChangedFile:
    """A file that was ``added``, ``changed`` or ``removed``, and belongs to no package."""

    kind: str
    path: str
    size: int = 0
    is_regular: bool = True


@dataclass(frozen=True)
class EnvironmentChanges:
    """Everything that differs from the image.

    Attributes:
        python: Distributions that were installed or upgraded.
        system: Names of packages of the distribution that were installed on request.
        dependencies: How many packages of the distribution came with them.
        files: Other files, by path.
    """

    python: tuple[PythonChange, ...] = ()
    system: tuple[str, ...] = ()
    dependencies: int = 0
    files: tuple[ChangedFile, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not (self.python or self.system or self.files)


def collect_changes(upper: Path, below: Sequence[Path]) -> EnvironmentChanges:
    """Compare a finalized writable layer with the layers ``below`` (lowest first)."""
    view = LayerView(below)
    owned: set[str] = set()
    python = tuple(_find_python_changes(upper, owned))
    system, dependencies = _find_system_changes(upper, view, owned)
    files = sorted(_find_file_changes(upper, view, owned), key=lambda change: change.path)
    return EnvironmentChanges(python, system, dependencies, tuple(files))


def render_build_lines(changes: EnvironmentChanges, *, copied: str = "") -> list[str]:
    """Return calls of build functions that make the same changes.

    ``copied`` is the project's directory with copies of the files, in which each has its path.
    """
    lines = []
    requested = [package for package in changes.python if package.requested] or changes.python
    if requested:
        names = ", ".join(f'"{package.name}=={package.version}"' for package in requested)
        lines.append(f"install.python_packages([{names}])")
    if changes.system:
        names = ", ".join(f'"{name}"' for name in changes.system)
        lines.append(f"install.apt_packages([{names}])")
    for change in changes.files:
        if change.kind != "removed" and change.is_regular and copied:
            source, target = (_quote_text(path) for path in (copied + change.path, change.path))
            lines.append(f"io.copy({source}, {target})")
    removed = [change.path for change in changes.files if change.kind == "removed"]
    lines += [f"run([{_quote_text('rm -rf -- ' + _quote_shell(path))}])" for path in removed]
    return lines


def _quote_text(text: str) -> str:
    """Return a string literal that is the same in Starlark and in Python."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(map(_escape_character, escaped)) + '"'


def _escape_character(char: str) -> str:
    return char if char.isprintable() else f"\\u{ord(char):04x}"


def _quote_shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- packages


def _find_python_changes(upper: Path, owned: set[str]) -> Iterator[PythonChange]:
    """Yield the distributions in the layer, and add their files to ``owned``."""
    for directory in sorted(_walk_directories(upper)):
        if not directory.endswith(".dist-info"):
            continue
        text = _read_text(upper / directory / "METADATA")
        metadata = HeaderParser().parsestr(text or "", headersonly=True)
        name, version = str(metadata.get("Name", "")), str(metadata.get("Version", ""))
        if not _PACKAGE_NAME.fullmatch(name) or not _is_version(version):
            continue
        owned.update(f"{directory}/{file}" for file in os.listdir(upper / directory))
        site_packages = os.path.dirname(directory)
        for line in (_read_text(upper / directory / "RECORD") or "").splitlines():
            path = line.rpartition(",")[0].rpartition(",")[0].strip('"')
            owned.add(os.path.normpath(f"{site_packages}/{path}"))
        requested = (upper / directory / "REQUESTED").exists()
        yield PythonChange(canonicalize_name(name), version, requested)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _find_system_changes(
    upper: Path, view: LayerView, owned: set[str]
) -> tuple[tuple[str, ...], int]:
    """Return the packages installed on request and the number of others; add their files."""
    # A link in place of a directory could lead out of the layer.
    if any((upper / name).is_symlink() for name in _DPKG_DIRECTORIES):
        return (), 0
    status = _read_text(upper / _DPKG_STATUS)
    if status is None:
        return (), 0
    added = _installed_packages(status) - _installed_packages(_read_lower(view, _DPKG_STATUS))
    automatic = set()
    for stanza in (_read_text(upper / _APT_STATES) or "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if fields.get("Auto-Installed") == "1":
            automatic.add(fields.get("Package", ""))
    for name in os.listdir(upper / "var/lib/dpkg/info") if added else ():
        package, _, kind = name.rpartition(".")
        if kind == "list" and package.partition(":")[0] in added:
            text = _read_text(upper / "var/lib/dpkg/info" / name) or ""
            owned.update(os.path.normpath(line).lstrip("/") for line in text.splitlines())
    requested = sorted(added - automatic)
    return tuple(requested), len(added) - len(requested)


def _installed_packages(status: str) -> set[str]:
    """Return the names of installed packages in a dpkg status file."""
    names = set()
    for stanza in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in stanza.splitlines()
            if line.startswith(("Package: ", "Status: "))
        )
        name = fields.get("Package", "")
        if fields.get("Status", "").endswith(" installed") and _DEBIAN_NAME.fullmatch(name):
            names.add(name)
    return names


# -- files


def _find_file_changes(upper: Path, view: LayerView, owned: set[str]) -> Iterator[ChangedFile]:
    for path, entry in _walk_entries(upper):
        if path in owned or path.startswith(_IGNORED_PREFIXES) or "__pycache__" in path:
            continue
        status = entry.stat(follow_symlinks=False)
        parts = tuple(path.split("/"))
        if is_whiteout(entry.path, status):
            yield ChangedFile("removed", f"/{path}")
        elif not stat.S_ISDIR(status.st_mode):
            kind = "added" if view.entry(parts) is None else "changed"
            yield ChangedFile(kind, f"/{path}", status.st_size, stat.S_ISREG(status.st_mode))


def _walk_entries(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries below ``root`` with their relative paths, sorted, links not followed."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(root / prefix) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path = f"{prefix}{entry.name}"
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")


def _walk_directories(root: Path) -> Iterator[str]:
    for path, entry in _walk_entries(root):
        if entry.is_dir(follow_symlinks=False):
            yield path


def _read_text(path: Path) -> str | None:
    """Return the content of a regular file; None if it does not exist or is something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(_MAX_READ).decode(errors="replace")


def _read_lower(view: LayerView, path: str) -> str:
    place = view.entry(tuple(path.split("/")))
    return (_read_text(Path(place)) or "") if place else ""
