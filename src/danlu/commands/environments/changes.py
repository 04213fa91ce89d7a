"""What was changed by hand in an environment: packages, files, and the lines that reproduce them.

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

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from danlu.commands.environments.conda_changes import (
    CondaChange,
    find_conda_changes,
    render_conda_line,
)
from danlu.engine.vscode_servers import MOUNT_TARGET
from danlu.oci.overlay import is_whiteout
from danlu.sandbox.layer_view import LayerView

_MAX_READ = 16 << 20
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Without credentials, and with a commit, which no one can move.
_GIT_URL = re.compile(
    r"git\+https://[A-Za-z0-9._~:/%+-]+@[0-9a-f]{40,64}(#subdirectory=[A-Za-z0-9._/-]+)?"
)
_DEBIAN_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_DPKG_STATUS = "var/lib/dpkg/status"
_APT_STATES = "var/lib/apt/extended_states"
_DPKG_DIRECTORIES = ("var", "var/lib", "var/lib/apt", "var/lib/dpkg", "var/lib/dpkg/info")
#: Written by package managers and shells; a rebuild makes its own.
_IGNORED_PREFIXES = (
    "etc/ld.so.cache",
    "home/envd/.bash_history",
    "home/envd/.cache/",
    "home/envd/.conda/",
    "opt/conda/CACHEDIR.TAG",
    "opt/conda/pkgs/",
    "root/.bash_history",
    "root/.cache/",
    "root/.conda/",
    "root/.local/share/jupyter/",
    "root/.ipython/",
    "run/",
    "tmp/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/dpkg/",
    "var/log/",
    "var/tmp/",
    "workspace/",
)


@dataclass(frozen=True)
class PythonChange:
    """A distribution installed by hand; ``requested`` unless it only came as a dependency.

    ``url`` is where it came from if not from an index (PEP 610), with the commit of a repository.
    """

    name: str
    version: str
    requested: bool
    url: str = ""

    @property
    def requirement(self) -> str:
        """The requirement that installs the same; empty if a build cannot get it."""
        if not self.url:
            return f"{self.name}=={self.version}"
        return f"{self.name} @ {self.url}" if _GIT_URL.fullmatch(self.url) else ""


class _VcsInfo(msgspec.Struct, frozen=True):
    vcs: str
    commit_id: str


class _DirectUrl(msgspec.Struct, frozen=True):
    """``direct_url.json`` of a distribution that was not installed from an index (PEP 610)."""

    url: str
    vcs_info: _VcsInfo | None = None
    subdirectory: str = ""


@dataclass(frozen=True)
class ChangedFile:
    """A file that was ``added``, ``changed`` or ``removed``, and belongs to no package."""

    kind: str
    path: str
    size: int = 0
    is_regular: bool = True

    @property
    def has_line(self) -> bool:
        """Whether a line of a build file, which is UTF-8, can reproduce it."""
        is_text = not any("\ud800" <= char <= "\udfff" for char in self.path)
        return is_text and (self.kind == "removed" or self.is_regular)


@dataclass(frozen=True)
class EnvironmentChanges:
    """Everything that differs from the image.

    Attributes:
        python: Distributions that were installed or upgraded.
        conda: Conda packages that were installed or upgraded.
        system: Names of packages of the distribution that were installed on request.
        dependencies: How many packages of the distribution came with them.
        files: Other files, by path.
    """

    python: tuple[PythonChange, ...] = ()
    conda: tuple[CondaChange, ...] = ()
    system: tuple[str, ...] = ()
    dependencies: int = 0
    files: tuple[ChangedFile, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not (self.python or self.conda or self.system or self.files)


def collect_changes(upper: Path, below: Sequence[Path]) -> EnvironmentChanges:
    """Compare a finalized writable layer with the layers ``below`` (lowest first)."""
    view = LayerView(below)
    owned: set[str] = set()
    # First: the packages of Python among them have distribution metadata, too.
    conda = tuple(find_conda_changes(upper, view, owned, _read_text))
    python = tuple(_find_python_changes(upper, view, owned))
    system, dependencies = _find_system_changes(upper, view, owned)
    files = sorted(_find_file_changes(upper, view, owned), key=lambda change: change.path)
    return EnvironmentChanges(python, conda, system, dependencies, tuple(files))


def render_build_lines(changes: EnvironmentChanges, *, copied: str = "") -> list[str]:
    """Return calls of build functions that reproduce the changes.

    ``copied`` is the project's directory with copies of the files, in which each has its path.
    """
    lines = render_conda_line(changes.conda)
    requested = [package for package in changes.python if package.requested]
    if not all(package.requirement for package in requested):
        requested = []  # the dependencies of what no line installs need lines
    requirements = [package.requirement for package in requested or changes.python]
    if any(requirements):
        names = ", ".join(f'"{requirement}"' for requirement in requirements if requirement)
        lines.append(f"install.python_packages([{names}])")
    if changes.system:
        names = ", ".join(f'"{name}"' for name in changes.system)
        lines.append(f"install.apt_packages([{names}])")
    for change in changes.files:
        if change.kind != "removed" and change.has_line and copied:
            source, target = (_quote_text(path) for path in (copied + change.path, change.path))
            lines.append(f"io.copy({source}, {target})")
    files = [change for change in changes.files if change.has_line]
    removed = [change.path for change in files if change.kind == "removed"]
    lines += [f"run([{_quote_text('rm -rf -- ' + _quote_shell(path))}])" for path in removed]
    return lines


def _quote_text(text: str) -> str:
    """Return a string literal that is the same in Starlark and in Python."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(map(_escape_character, escaped)) + '"'


def _escape_character(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _quote_shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- packages


def _find_python_changes(upper: Path, view: LayerView, owned: set[str]) -> Iterator[PythonChange]:
    """Yield the distributions in the layer, and add their files to ``owned``.

    The files of the versions that they replaced are added, too: a rebuild does not have them.
    """
    for directory in sorted(_walk_directories(upper)):
        if not directory.endswith(".dist-info") or f"{directory}/METADATA" in owned:
            continue
        # uv's cache has unpacked distributions, which are not installed.
        if directory.startswith(_IGNORED_PREFIXES):
            continue
        text = _read_text(upper / directory / "METADATA")
        metadata = HeaderParser().parsestr(text or "", headersonly=True)
        name, version = str(metadata.get("Name", "")), str(metadata.get("Version", ""))
        if not _PACKAGE_NAME.fullmatch(name) or not _is_version(version):
            continue
        owned.update(f"{directory}/{file}" for file in os.listdir(upper / directory))
        owned.update(_parse_record(directory, _read_text(upper / directory / "RECORD")))
        for replaced in _find_replaced_versions(upper, directory, canonicalize_name(name)):
            files = set(_parse_record(replaced, _read_lower(view, f"{replaced}/RECORD")))
            owned.update(files, _find_removed_directories(view, replaced, files))
        requested = (upper / directory / "REQUESTED").exists()
        url = _parse_direct_url(_read_text(upper / directory / "direct_url.json"))
        yield PythonChange(canonicalize_name(name), version, requested, url)


def _parse_record(directory: str, text: str | None) -> Iterator[str]:
    """Yield the paths in the ``RECORD`` of the distribution whose metadata is in ``directory``."""
    for line in (text or "").splitlines():
        path = line.rpartition(",")[0].rpartition(",")[0].strip('"')
        yield os.path.normpath(f"{os.path.dirname(directory)}/{path}")


def _find_replaced_versions(upper: Path, directory: str, name: str) -> Iterator[str]:
    """Yield the metadata directories of the image's versions of ``name`` that were removed."""
    with os.scandir(upper / os.path.dirname(directory)) as entries:
        for entry in entries:
            base, _, kind = entry.name.rpartition(".")
            if kind != "dist-info" or canonicalize_name(base.partition("-")[0]) != name:
                continue
            path = f"{os.path.dirname(directory)}/{entry.name}"
            if path == directory or is_whiteout(entry.path, entry.stat(follow_symlinks=False)):
                yield path


def _find_removed_directories(view: LayerView, replaced: str, files: set[str]) -> Iterator[str]:
    """Yield the directories of the image that have only ``files``, which pip removes, too."""
    parents = {replaced}
    for file in files:
        while (file := os.path.dirname(file)) and file != os.path.dirname(replaced):
            parents.add(file)
    for parent in parents:
        if _has_only(view, parent, files, replaced):
            yield parent


def _has_only(view: LayerView, directory: str, files: set[str], replaced: str) -> bool:
    for name in view.names(tuple(directory.split("/"))):
        path = f"{directory}/{name}"
        is_covered = path in files or name == "__pycache__" or directory == replaced
        if not is_covered and not (
            view.directories(tuple(path.split("/"))) and _has_only(view, path, files, replaced)
        ):
            return False
    return True


def _parse_direct_url(text: str | None) -> str:
    """Return the URL in a ``direct_url.json``, in the form of requirements; empty without one."""
    if text is None:
        return ""
    try:
        direct = msgspec.json.decode(text, type=_DirectUrl)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return "unknown"
    if direct.vcs_info is None:
        return direct.url
    place = f"#subdirectory={direct.subdirectory}" if direct.subdirectory else ""
    return f"{direct.vcs_info.vcs}+{direct.url}@{direct.vcs_info.commit_id}{place}"


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
        if path in owned or path.startswith(_IGNORED_PREFIXES):
            continue
        parts = tuple(path.split("/"))
        if "__pycache__" in parts:
            continue
        status = entry.stat(follow_symlinks=False)
        if is_whiteout(entry.path, status):
            yield ChangedFile("removed", f"/{path}")
        elif not stat.S_ISDIR(status.st_mode) and not _is_server_link(entry):
            kind = "added" if view.entry(parts) is None else "changed"
            yield ChangedFile(kind, f"/{path}", status.st_size, stat.S_ISREG(status.st_mode))


def _is_server_link(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link to a server that `danlu vscode add` keeps."""
    return entry.is_symlink() and os.readlink(entry.path).startswith(f"{MOUNT_TARGET}/")


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
        # Programs of the environment wrote it: it may be a link, or a pipe, at which open(2) waits.
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
