"""``pylock.toml`` in and out (PEP 751): the interchange with other tools.

danlu's own lock holds no addresses; a ``pylock.toml`` must. Going out they are looked up and
passed in; coming in only those are kept that the file alone can know.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from danlu.environment.lock import FunctionLock, LockedPackage
from danlu.environment.names import normalised
from danlu.errors import ResolveError
from danlu.sources.pypi.compiling import File, choose_file
from danlu.sources.pypi.target import Target

__all__ = ["export_pylock", "import_pylock"]


def import_pylock(path: Path, target: Target) -> tuple[LockedPackage, ...]:
    """The packages of a ``pylock.toml`` that ``target`` needs, by normalised name.

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
            one = _package(package, target, path)
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


def _package(package: dict[str, Any], target: Target, path: Path) -> LockedPackage:
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
    return _locked(file, name, path)


def _locked(file: File, name: str, path: Path) -> LockedPackage:
    common = {"name": name, "version": file.version, "file": file.file, "sha256": file.sha256}
    if file.direct and not file.url.startswith("file:"):
        return LockedPackage(**common, source="url", size=file.size, location=file.url)
    if file.direct:
        place = (path.parent / urlsplit(file.url).path).resolve()
        location = os.path.relpath(place, path.parent)
        return LockedPackage(**common, source="local", size=file.size, location=location)
    source: Any = "index" if file.kind == "wheel" else "sdist"
    return LockedPackage(**common, source=source, size=file.size)


def export_pylock(lock: FunctionLock, urls: Mapping[str, str]) -> str:
    """The Python packages of ``lock`` as a ``pylock.toml``.

    ``urls`` gives the address of each file by its sha256; a file without one is named by its file
    name alone, to lie beside the ``pylock.toml``.
    """
    lines = ['lock-version = "1.0"', 'created-by = "danlu"']
    if lock.python is not None:
        minor = ".".join(lock.python.version.split(".")[:2])
        lines.append(f'requires-python = "=={minor}.*"')
    for package in sorted(lock.packages, key=lambda one: one.name):
        lines += ["", "[[packages]]", f"name = {_text(package.name)}"]
        if package.version:
            lines.append(f"version = {_text(package.version)}")
        lines.append(_source(package, urls))
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _source(package: LockedPackage, urls: Mapping[str, str]) -> str:
    if package.source == "git":
        pairs = [("type", "git"), ("url", package.location), ("commit-id", package.commit)]
        if package.subdirectory:
            pairs.append(("subdirectory", package.subdirectory))
        return f"vcs = {{ {', '.join(f'{key} = {_text(value)}' for key, value in pairs)} }}"
    if not package.file:
        return f"directory = {{ path = {_text(package.location)} }}"
    hashes = f"hashes = {{ sha256 = {_text(package.sha256)} }}"
    size = f"size = {package.size}, " if package.size else ""
    if package.source in ("url", "local"):
        place = "url" if package.source == "url" else "path"
        return f"archive = {{ {place} = {_text(package.location)}, {size}{hashes} }}"
    url = urls.get(package.sha256, "")
    place = f"url = {_text(url)}" if url else f"path = {_text(package.file)}"
    entry = f"{{ name = {_text(package.file)}, {place}, {size}{hashes} }}"
    return f"wheels = [{entry}]" if package.file.endswith(".whl") else f"sdist = {entry}"
