"""Python packages that were installed by hand in an environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import msgspec
from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from danlu.engine.layer_reading import read_lower, read_text
from danlu.environment.image_layout import VENV
from danlu.oci.overlay import is_whiteout
from danlu.sandbox.layer_view import LayerView
from danlu.util.decoding import decode_json

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Without credentials, and with a commit, which no one can move.
_GIT_URL = re.compile(
    r"git\+https://[A-Za-z0-9._~:/%+-]+@[0-9a-f]{40,64}(#subdirectory=[A-Za-z0-9._/-]+)?"
)
#: Where ``install.python_packages`` installs, and where pip does in images without that.
_SITES = (VENV.lstrip("/"), "usr/local")
_SITE_DIRECTORY = re.compile(r"lib/python(\d+\.\d+)t?/site-packages")


@dataclass(frozen=True)
class PythonChange:
    """A distribution installed by hand; ``requested`` unless it only came as a dependency.

    ``url`` is where it came from if not from an index (PEP 610), with the commit of a repository.
    ``implied`` means that a requested one depends on it.
    """

    name: str
    version: str
    requested: bool
    url: str = ""
    implied: bool = False

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
class PythonChanges:
    """The distributions, and requirements of theirs that are not installed: (name, missing)."""

    packages: tuple[PythonChange, ...] = ()
    unmet: tuple[tuple[str, str], ...] = ()


def find_python_changes(
    upper: Path, view: LayerView, owned: dict[str, str], skipped: Iterable[str]
) -> PythonChanges:
    """Return the distributions in the layer, and add their files and hashes to ``owned``.

    The files of the versions that they replaced are added, too: a rebuild does not have them.
    Distributions that no requirement installs keep their files, which are copied like others.
    Those in ``skipped`` belong to packages of another kind.
    """
    found: list[PythonChange] = []
    metadata: dict[str, Message] = {}
    installed: set[str] = set()
    version = ""
    for site, minor in _find_sites(upper, view):
        for entry in sorted(os.listdir(upper / site)):
            directory = f"{site}/{entry}"
            if not entry.endswith(".dist-info") or f"{directory}/METADATA" in skipped:
                continue
            text = read_text(upper / directory / "METADATA") or ""
            headers = HeaderParser().parsestr(text, headersonly=True)
            change = _read_distribution(upper / directory, headers)
            if change is None:
                continue
            found.append(change)
            if change.requirement:
                owned.update(_list_owned_files(upper, directory))
                for replaced in _find_replaced_versions(upper, directory, change.name):
                    listing = read_lower(view, f"{replaced}/RECORD")
                    files = set(parse_record(replaced, listing))
                    files |= set(_find_removed_directories(view, replaced, files))
                    owned.update({file: owned.get(file, "") for file in files})
            version, metadata[change.name] = minor, headers
        installed |= {_name_of(name) for name in view.names(tuple(site.split("/")))}
    names = installed | metadata.keys()
    roots = [item.name for item in found if item.requested and item.requirement]
    implied, unmet = _find_dependencies(roots, metadata, names, version)
    packages = [replace(item, implied=item.name in implied) for item in found]
    return PythonChanges(tuple(packages), tuple(sorted(unmet)))


def _find_sites(upper: Path, view: LayerView) -> Iterator[tuple[str, str]]:
    """Yield the directories that the environment's pip installs into, with Python's version."""
    has_venv = bool(view.directories(tuple(_SITES[0].split("/")))) or (upper / _SITES[0]).exists()
    prefix = _SITES[0] if has_venv else _SITES[1]
    for library in sorted((upper / prefix / "lib").glob("python*")):
        match = _SITE_DIRECTORY.fullmatch(f"lib/{library.name}/site-packages")
        site = library / "site-packages"
        # A link in place of a directory could lead out of the layer.
        if match and site.is_dir() and not any(_is_link(upper, site)):
            yield str(site.relative_to(upper)), match[1]


def _is_link(upper: Path, path: Path) -> Iterator[bool]:
    while path != upper:
        yield path.is_symlink()
        path = path.parent


def _read_distribution(info: Path, headers: Message) -> PythonChange | None:
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    if info.is_symlink() or not _PACKAGE_NAME.fullmatch(name) or not _is_version(version):
        return None
    url = _parse_direct_url(read_text(info / "direct_url.json"))
    return PythonChange(canonicalize_name(name), version, (info / "REQUESTED").exists(), url)


def _name_of(directory: str) -> str:
    return canonicalize_name(directory.removesuffix(".dist-info").partition("-")[0])


def _list_owned_files(upper: Path, directory: str) -> dict[str, str]:
    """Return the files of a distribution with the hashes that RECORD has, or empty ones."""
    owned = {f"{directory}/{file}": "" for file in os.listdir(upper / directory)}
    listed = parse_record(directory, read_text(upper / directory / "RECORD"))
    return owned | {path: hash for path, hash in listed.items() if path not in owned}


def parse_record(directory: str, text: str | None) -> dict[str, str]:
    """Return the paths in the ``RECORD`` of the distribution in ``directory``, with hashes."""
    files = {}
    for line in (text or "").splitlines():
        path, _, hash = line.rpartition(",")[0].rpartition(",")
        files[os.path.normpath(f"{os.path.dirname(directory)}/{path.strip(chr(34))}")] = hash
    return files


def _find_replaced_versions(upper: Path, directory: str, name: str) -> Iterator[str]:
    """Yield the metadata directories of the image's versions of ``name`` that were removed."""
    with os.scandir(upper / os.path.dirname(directory)) as entries:
        for entry in entries:
            if not entry.name.endswith(".dist-info") or _name_of(entry.name) != name:
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
        direct = decode_json(text, _DirectUrl)
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


# -- what the requested ones depend on


def _find_dependencies(
    roots: Iterable[str], metadata: Mapping[str, Message], installed: set[str], version: str
) -> tuple[set[str], set[tuple[str, str]]]:
    """Return what an installer adds for ``roots``, and (name, requirement) pairs it would add.

    Extras that were asked for by hand are recorded nowhere, so what only they need is not found.
    """
    implied: set[str] = set()
    unmet: set[tuple[str, str]] = set()
    waiting = [(root, "") for root in roots]
    for name, extra in waiting:
        for requirement in _list_requirements(metadata.get(name), extra, version):
            dependency = canonicalize_name(requirement.name)
            if dependency not in installed:
                unmet.add((name, dependency))
            implied.add(dependency)
            more = [(dependency, text) for text in ("", *sorted(requirement.extras))]
            waiting += [pair for pair in more if pair not in waiting]
    return implied, unmet


def _list_requirements(headers: Message | None, extra: str, version: str) -> Iterator[Requirement]:
    environment = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": version,
        "python_full_version": f"{version}.0",
        "extra": extra,
    }
    for text in (headers.get_all("Requires-Dist") or []) if headers is not None else ():
        try:
            requirement = Requirement(str(text))
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement
        except (InvalidRequirement, UndefinedEnvironmentName, InvalidVersion):
            continue
