"""Import and export ``pylock.toml`` (PEP 751), the interchange format of Python lockfiles.

danlu's own lock contains no URLs, but a ``pylock.toml`` must. For an export they are looked up and
passed in; of an import only those are kept that are not on an index.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace
from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.package_names import normalize_name, versions_equal
from danlu.errors import ResolveError, UsageError
from danlu.sources.pypi.editable_metadata import locate_editable
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv_compile import PackageFile, choose_file
from danlu.sources.pypi.uv_project import toml_error
from danlu.util.safe_paths import ProjectTree
from danlu.util.toml_text import format_value
from danlu.util.urls import strip_credentials


def import_pylock(
    path: Path, target: PlatformTarget, *, project: Path | None = None
) -> tuple[LockedPackage, ...]:
    """Return the packages in a ``pylock.toml`` that ``target`` needs, sorted by normalised name.

    Local paths are made relative to ``project`` (default: the file's directory). Raises
    :class:`ResolveError` if the file is invalid, excludes the target's Python, or lacks a file for
    a package.
    """
    try:
        with ProjectTree(project or path.parent) as tree:
            table = tomllib.loads(tree.read_text(path))
    except FileNotFoundError:
        raise ResolveError(f"{path.name} not found") from None
    except tomllib.TOMLDecodeError as error:
        place = os.path.relpath(path, os.path.abspath(project or path.parent))
        raise toml_error(error, place) from error
    except (OSError, ValueError) as error:
        raise ResolveError(f"cannot read {path.name}: {error}") from error
    return list_packages(table, path, target, project or path.parent)


def list_packages(
    table: Mapping[str, Any], path: Path, target: PlatformTarget, project: Path
) -> tuple[LockedPackage, ...]:
    """Return the packages in ``table``, the content of a ``pylock.toml``, for ``target``.

    Paths in it are relative to the directory of ``path``. Raises as :func:`import_pylock` does.
    """
    version = str(table.get("lock-version", ""))
    if version.partition(".")[0] != "1":
        raise ResolveError(f"{path.name} has lock-version {version or 'none'!r}, not 1.0 (PEP 751)")
    _check_python(table, target, path.name)
    environment = marker_environment(target)
    packages: dict[str, LockedPackage] = {}
    for entry in table.get("packages", []):
        if _marker_applies(entry, environment):
            package = _read_package(entry, target, path, project)
            if package.name in packages:
                raise ResolveError(f"{path.name} lists {package.name} twice for this environment")
            packages[package.name] = package
    return tuple(packages[name] for name in sorted(packages))


def _check_python(table: Mapping[str, Any], target: PlatformTarget, name: str) -> None:
    text = table.get("requires-python", "")
    try:
        fits = SpecifierSet(text).contains(target.python, prereleases=True)
    except InvalidSpecifier as error:
        raise ResolveError(f"{name}: invalid requires-python {text!r}") from error
    if not fits:
        raise ResolveError(
            f"{name} requires Python {text}, but the environment has {target.python}",
            hint="change the version with install.python(version=...)",
        )


def marker_environment(target: PlatformTarget) -> dict[str, str]:
    """Return the variables of environment markers for ``target`` (PEP 508)."""
    major, minor = target.minor
    return {
        "implementation_name": "cpython",
        "implementation_version": target.python,
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.python,
        "python_version": f"{major}.{minor}",
        "sys_platform": "linux",
    }


def _marker_applies(package: Mapping[str, Any], environment: dict[str, str]) -> bool:
    text = package.get("marker", "")
    if not text:
        return True
    try:
        return Marker(text).evaluate({**environment, "extra": ""})
    except (InvalidMarker, UndefinedEnvironmentName):
        # A marker on extras or dependency groups selects packages beyond the default set, and
        # none of these were requested.
        return False


def _read_package(
    package: dict[str, Any], target: PlatformTarget, path: Path, project: Path
) -> LockedPackage:
    name = normalize_name(str(package.get("name", "")))
    if "vcs" in package:
        return _read_vcs_entry(package, name, path)
    if "directory" in package:
        return _read_directory_entry(package, name, path, project)
    file = choose_file(package, target)
    if file is None or not file.sha256:
        raise ResolveError(
            f"{path.name} has no file for {name} {package.get('version', '')} on Python "
            f"{target.python}, {target.machine} ({target.libc})"
        )
    if file.kind == "wheel" and not _is_named_after(file, name):
        raise ResolveError(
            f"{path.name}: the wheel {file.file} is not {name} {package.get('version', '')}"
        )
    return _to_locked_package(file, name, path.parent, project)


def _is_named_after(file: PackageFile, name: str) -> bool:
    """Return whether a wheel's file name has the name and version of its package."""
    stem, version = (*file.file.split("-"), "")[:2]
    same = versions_equal(version.replace("_", "+"), file.version) or not file.version
    return normalize_name(stem) == name and same


def _read_vcs_entry(package: Mapping[str, Any], name: str, path: Path) -> LockedPackage:
    """Return a git repository at a commit; its content is hashed when it is fetched."""
    vcs = package["vcs"] if isinstance(package["vcs"], dict) else {}
    url, commit = str(vcs.get("url", "")), str(vcs.get("commit-id", ""))
    if vcs.get("type") != "git" or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise ResolveError(f"{path.name}: the VCS entry {name} is not a commit of git")
    if "://" not in url:
        raise ResolveError(
            f"{path.name}: the VCS entry {name} has no URL",
            hint=f'declare it: install.python_packages(["{name} @ git+https://…"])',
        )
    return LockedPackage(
        name,
        str(package.get("version", "")),
        "git",
        location=url,
        commit=commit,
        subdirectory=_check_subdirectory(vcs, name, path),
        ref=str(vcs.get("requested-revision", "")),
    )


def _read_directory_entry(
    package: Mapping[str, Any], name: str, path: Path, project: Path
) -> LockedPackage:
    """Return a directory of the project; its content is hashed when it is copied."""
    entry = package["directory"] if isinstance(package["directory"], dict) else {}
    place = path.parent / str(entry.get("path", ""))
    subdirectory = _check_subdirectory(entry, name, path)
    if entry.get("editable") is True:
        location = locate_editable(project, place / subdirectory)
        version = str(package.get("version", ""))
        return LockedPackage(name, version, "local", location=location, editable=True)
    with ProjectTree(project) as tree:
        tree.real_path(place)
    return LockedPackage(
        name,
        str(package.get("version", "")),
        "local",
        location=os.path.relpath(place, os.path.abspath(project)),
        subdirectory=subdirectory,
    )


def _check_subdirectory(entry: Mapping[str, Any], name: str, path: Path) -> str:
    text = str(entry.get("subdirectory", ""))
    if text.startswith("/") or ".." in text.split("/"):
        raise ResolveError(f"{path.name}: {name} has a subdirectory outside its source")
    return text


def _to_locked_package(
    file: PackageFile, name: str, directory: Path, project: Path
) -> LockedPackage:
    common: dict[str, Any] = {
        "name": name,
        "version": file.version,
        "file": file.file,
        "sha256": file.sha256,
    }
    if file.direct and not file.url.startswith("file:"):
        return LockedPackage(
            **common, source="url", size=file.size, location=strip_credentials(file.url)
        )
    if file.direct:
        place = os.path.abspath(directory / unquote(urlsplit(file.url).path))
        with ProjectTree(project) as tree:
            tree.real_path(place)
        location = os.path.relpath(place, os.path.abspath(project))
        return LockedPackage(**common, source="local", size=file.size, location=location)
    source: Any = "index" if file.kind == "wheel" else "sdist"
    return LockedPackage(**common, source=source, size=file.size)


def check_pylock_name(name: str) -> None:
    """Raise :class:`UsageError` for a file name that installers do not accept (PEP 751)."""
    if not re.fullmatch(r"pylock\.([^.]+\.)?toml", name):
        raise UsageError(
            f"invalid name for a pylock file: {name!r}",
            hint="use pylock.toml or pylock.NAME.toml, where NAME contains no dots (PEP 751)",
        )


def export_pylock(
    lock: FunctionLock, urls: Mapping[str, str], *, project: Path, directory: Path
) -> str:
    """Return the Python packages of ``lock`` as a ``pylock.toml`` for ``directory``.

    ``urls`` maps the sha256 of each file of an index to its URL; paths in the lock are relative to
    ``project``. Files of the project are written relative to ``directory``; for local indexes see
    :func:`files_outside`.
    """
    places = {sha256: _export_location(url, project, directory) for sha256, url in urls.items()}
    lines = ['lock-version = "1.0"', 'created-by = "danlu"']
    if lock.python is not None:
        minor = ".".join(lock.python.version.split(".")[:2])
        target = PlatformTarget(lock.python.version, lock.base.libc, lock.platform.split("/")[1])
        marker = f"sys_platform == 'linux' and platform_machine == '{target.machine}'"
        lines += [f"environments = {format_value([marker])}", f'requires-python = "=={minor}.*"']
    for package in sorted(lock.packages, key=lambda package: package.name):
        # The version of a source tree can change, so it is left out (PEP 751, packages.version).
        version = {"version": package.version} if package.version and package.file else {}
        source = _describe_source(_relocate_package(package, project, directory), places)
        lines += ["", "[[packages]]"]
        entry = {"name": package.name, **version, **source}
        lines += [f"{key} = {format_value(value)}" for key, value in entry.items()]
    return "\n".join(lines) + "\n"


def files_outside(urls: Mapping[str, str], project: Path) -> list[str]:
    """Return the paths among ``urls`` that exist only on this machine, sorted."""
    paths = (_file_url_path(url) for url in urls.values())
    return sorted(path for path in paths if path and not _is_in_project(path, project))


def _file_url_path(url: str) -> str:
    return unquote(urlsplit(url).path) if url.startswith("file:") else ""


def _is_in_project(path: str, project: Path) -> bool:
    return Path(path).is_relative_to(os.path.abspath(project))


def _export_location(url: str, project: Path, directory: Path) -> str:
    """Return a URL, or the path of a local file, relative if it is in the project."""
    path = _file_url_path(url)
    if not path:
        return strip_credentials(url)
    return (
        os.path.relpath(path, os.path.abspath(directory)) if _is_in_project(path, project) else path
    )


def _relocate_package(package: LockedPackage, project: Path, directory: Path) -> LockedPackage:
    """Return ``package`` with a local path relative to ``directory``, unless it is absolute."""
    if package.source != "local" or os.path.isabs(package.location):
        return package
    place = os.path.abspath(project / package.location)
    return replace(package, location=os.path.relpath(place, os.path.abspath(directory)))


def _without_empty(**values: Any) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in values.items() if value}


def _describe_file(package: LockedPackage, *, name: str = "", place: str) -> dict[str, Any]:
    """Return the table of a file (PEP 751: ``url`` or ``path``, size, hashes)."""
    where = {"url": strip_credentials(place)} if "://" in place else {"path": place}
    return _without_empty(
        name=name,
        **where,
        size=package.size,
        subdirectory=package.subdirectory,
        hashes={"sha256": package.sha256},
    )


def _describe_source(package: LockedPackage, urls: Mapping[str, str]) -> dict[str, Any]:
    """Return the key and table of PEP 751 that say where a package comes from."""
    if package.source == "git":
        table = _without_empty(
            type="git",
            url=package.location,
            requested_revision=package.ref,
            commit_id=package.commit,
            subdirectory=package.subdirectory,
        )
        return {"vcs": table}
    if not package.file:
        table = _without_empty(
            path=package.location, subdirectory=package.subdirectory, editable=package.editable
        )
        return {"directory": table}
    if package.source in ("url", "local"):
        return {"archive": _describe_file(package, place=package.location)}
    file = _describe_file(package, name=package.file, place=urls[package.sha256])
    return {"wheels": [file]} if package.source == "index" else {"sdist": file}
