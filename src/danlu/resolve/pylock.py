"""``pylock.toml`` in and out (PEP 751): the interchange with other tools.

danlu's own lock holds no addresses; a ``pylock.toml`` must. Going out they are looked up and
passed in; coming in only those are kept that the file alone can know.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.names import normalised
from danlu.errors import ResolveError, UsageError
from danlu.sources.pypi.compiling import File, choose_file
from danlu.sources.pypi.target import Target

__all__ = ["check_pylock_name", "export_pylock", "import_pylock"]


def import_pylock(
    path: Path, target: Target, *, project: Path | None = None
) -> tuple[LockedPackage, ...]:
    """The packages of a ``pylock.toml`` that ``target`` needs, by normalised name.

    Places on this machine are told relative to ``project`` (default: the file's directory).
    Raises :class:`ResolveError` where the file is not one, excludes the target's Python, or has a
    package with no file for it.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResolveError(f"there is no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ResolveError(f"{path.name} cannot be read: {error}") from error
    version = str(table.get("lock-version", ""))
    if version.partition(".")[0] != "1":
        raise ResolveError(f"{path.name} has lock-version {version or 'none'!r}, not 1.0 (PEP 751)")
    _check_python(table, target, path.name)
    environment = marker_environment(target)
    found: dict[str, LockedPackage] = {}
    for package in table.get("packages", []):
        if _applies(package, environment):
            one = _package(package, target, path, project or path.parent)
            if one.name in found:
                raise ResolveError(f"{path.name} has {one.name} twice for this environment")
            found[one.name] = one
    return tuple(found[name] for name in sorted(found))


def _check_python(table: Mapping[str, Any], target: Target, name: str) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    text = table.get("requires-python", "")
    try:
        fits = SpecifierSet(text).contains(target.python, prereleases=True)
    except InvalidSpecifier as error:
        raise ResolveError(f"{name}: requires-python {text!r} is not understood") from error
    if not fits:
        raise ResolveError(
            f"{name} is for Python {text}, the environment has {target.python}",
            hint="declare that version: install.python(version=...)",
        )


def marker_environment(target: Target) -> dict[str, str]:
    """The variables of environment markers on ``target`` (PEP 508)."""
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


def _applies(package: Mapping[str, Any], environment: dict[str, str]) -> bool:
    text = package.get("marker", "")
    if not text:
        return True
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName

    try:
        return Marker(text).evaluate({**environment, "extra": ""})
    except (InvalidMarker, UndefinedEnvironmentName):
        # Markers over extras and dependency groups select what one may ask for beyond the
        # default; nothing is asked for here.
        return False


def _package(package: dict[str, Any], target: Target, path: Path, project: Path) -> LockedPackage:
    name = normalised(str(package.get("name", "")))
    if vcs := package.get("vcs"):
        raise ResolveError(
            f"{path.name}: {name} comes from a repository",
            hint=f'declare it: install.python_packages(["{name} @ git+{vcs.get("url", "…")}"])',
        )
    if "directory" in package:
        raise ResolveError(
            f"{path.name}: {name} is a directory of this machine",
            hint='declare it: install.python_packages(["./directory"])',
        )
    file = choose_file(package, target)
    if file is None or not file.sha256:
        raise ResolveError(
            f"{path.name} has no file of {name} {package.get('version', '')} for Python "
            f"{target.python} on {target.machine} ({target.libc})"
        )
    return _locked(file, name, path.parent, project)


def _locked(file: File, name: str, directory: Path, project: Path) -> LockedPackage:
    common = {"name": name, "version": file.version, "file": file.file, "sha256": file.sha256}
    if file.direct and not file.url.startswith("file:"):
        return LockedPackage(**common, source="url", size=file.size, location=file.url)
    if file.direct:
        place = os.path.abspath(directory / unquote(urlsplit(file.url).path))
        location = os.path.relpath(place, os.path.abspath(project))
        return LockedPackage(**common, source="local", size=file.size, location=location)
    source: Any = "index" if file.kind == "wheel" else "sdist"
    return LockedPackage(**common, source=source, size=file.size)


def check_pylock_name(name: str) -> None:
    """Raise :class:`UsageError` for a file name that installers do not accept (PEP 751)."""
    if not re.fullmatch(r"pylock\.([^.]+\.)?toml", name):
        raise UsageError(
            f"{name!r} is no name for a lock of Python packages",
            hint="PEP 751 wants pylock.toml or pylock.NAME.toml, NAME without dots",
        )


def export_pylock(
    lock: FunctionLock, urls: Mapping[str, str], *, project: Path, directory: Path
) -> str:
    """The Python packages of ``lock`` as a ``pylock.toml`` that lies in ``directory``.

    ``urls`` gives the address of each file of an index by its sha256; places in the lock are
    relative to ``project``.
    """
    lines = ['lock-version = "1.0"', 'created-by = "danlu"']
    if lock.python is not None:
        minor = ".".join(lock.python.version.split(".")[:2])
        target = Target(lock.python.version, lock.base.libc, lock.platform.split("/")[1])
        marker = f"sys_platform == 'linux' and platform_machine == '{target.machine}'"
        lines += [f"environments = [{_text(marker)}]", f'requires-python = "=={minor}.*"']
    for package in sorted(lock.packages, key=lambda one: one.name):
        lines += ["", "[[packages]]", f"name = {_text(package.name)}"]
        # What a source tree is may change its version (PEP 751, packages.version).
        if package.version and package.file:
            lines.append(f"version = {_text(package.version)}")
        lines.append(_source(_placed(package, project, directory), urls))
    return "\n".join(lines) + "\n"


def _placed(package: LockedPackage, project: Path, directory: Path) -> LockedPackage:
    """``package`` with its place on this machine relative to ``directory``, unless it is full."""
    if package.source != "local" or os.path.isabs(package.location):
        return package
    place = os.path.abspath(project / package.location)
    return replace(package, location=os.path.relpath(place, os.path.abspath(directory)))


def _text(value: str) -> str:
    # A JSON string is a TOML basic string.
    return msgspec.json.encode(value).decode()


def _table(**values: str | int) -> str:
    """An inline table of the values that are not empty."""
    pairs = [
        f"{key.replace('_', '-')} = {_text(value) if isinstance(value, str) else value}"
        for key, value in values.items()
        if value
    ]
    return f"{{ {', '.join(pairs)} }}"


def _file(package: LockedPackage, *, name: str = "", url: str = "", subdirectory: str = "") -> str:
    """The table of one file (PEP 751: ``url`` or ``path``, size, hashes)."""
    if url.startswith("file:"):
        place = _table(name=name, path=unquote(urlsplit(url).path), size=package.size)
    elif url:
        place = _table(name=name, url=url, size=package.size)
    else:
        place = _table(path=package.location, size=package.size)
    rest = f", subdirectory = {_text(subdirectory)}" if subdirectory else ""
    return f"{place[:-2]}{rest}, hashes = {_table(sha256=package.sha256)} }}"


def _source(package: LockedPackage, urls: Mapping[str, str]) -> str:
    if package.source == "git":
        values = {
            "url": package.location,
            "requested_revision": package.ref,
            "commit_id": package.commit,
            "subdirectory": package.subdirectory,
        }
        return f"vcs = {_table(type='git', **values)}"
    if not package.file:
        return f"directory = {_table(path=package.location, subdirectory=package.subdirectory)}"
    if package.source in ("url", "local"):
        url = package.location if package.source == "url" else ""
        return f"archive = {_file(package, url=url, subdirectory=package.subdirectory)}"
    entry = _file(package, name=package.file, url=urls[package.sha256])
    return f"wheels = [{entry}]" if package.source == "index" else f"sdist = {entry}"
