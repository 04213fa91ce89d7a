"""Resolve requirements to versions and files: run ``uv pip compile`` and parse its output."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from danlu.environment.package_names import requirement_name
from danlu.errors import OutsideError
from danlu.sources.pypi.indexes import NamedIndex
from danlu.sources.pypi.platform_target import PlatformTarget, best_wheel
from danlu.sources.pypi.uv import Uv, target_options
from danlu.sources.pypi.uv_errors import uv_error


class Pin(msgspec.Struct, frozen=True):
    """A line of a resolution: a version, or a URL instead."""

    name: str
    version: str = ""
    url: str = ""

    @property
    def line(self) -> str:
        """The pin as a requirement."""
        return f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"


class PackageFile(msgspec.Struct, frozen=True):
    """The file selected for a package.

    ``kind`` is ``wheel`` or ``sdist``, ``url`` its location (also ``file://``). ``direct`` means
    that the user specified the location; ``size`` is 0 if the index does not report it.
    """

    name: str
    version: str
    kind: str
    file: str
    url: str
    sha256: str
    size: int = 0
    direct: bool = False


def read_pins(text: str) -> tuple[Pin, ...]:
    """Parse uv's requirements output (without annotations and hashes) into pins."""
    pins = []
    for raw in text.splitlines():
        line = raw.partition(" ;")[0].split(" \\")[0].strip()
        if not line or line.startswith(("#", "-", "--")):
            continue
        if " @ " in line:
            name, _, url = line.partition(" @ ")
            pins.append(Pin(name.partition("[")[0], url=url.strip()))
        elif "==" in line:
            name, _, version = line.partition("==")
            pins.append(Pin(name.partition("[")[0], version=version.strip()))
    return tuple(pins)


def _compile_options(target: PlatformTarget) -> list[str]:
    return [*target_options(target), "--no-annotate", "--no-header"]


def write_index_pins(
    lines: Iterable[str], pins: Mapping[str, str], named: Iterable[NamedIndex], directory: Path
) -> list[str]:
    """Write a ``pyproject.toml`` that says which indexes packages must come from; return its path.

    uv has no option for that. ``lines`` are requirements, ``pins`` the names of indexes by
    normalised package name. Without such a requirement, nothing is written.
    """
    pinned = [line for line in lines if requirement_name(line) in pins]
    if not pinned:
        return []
    names = dict.fromkeys(requirement_name(line) for line in pinned)
    used = {pins[name] for name in names}
    encode = msgspec.json.Encoder().encode  # strings and arrays are written as in JSON
    text = [
        '[project]\nname = "danlu-requirements"\nversion = "0"',
        f"dependencies = {encode(pinned).decode()}",
        "[tool.uv.sources]",
        *(f'"{name}" = {{ index = {encode(pins[name]).decode()} }}' for name in names),
    ]
    for index in named:
        if index.name in used:
            address = encode(index.url).decode()
            name = encode(index.name).decode()
            text.append(f"[[tool.uv.index]]\nname = {name}\nurl = {address}\nexplicit = true")
    path = directory / "pyproject.toml"
    path.write_text("\n".join((*text, "")), encoding="utf-8")
    return [str(path)]


def upgrade_options(upgrade: Iterable[str], *, upgrade_all: bool) -> list[str]:
    """Return uv's options for packages that may leave their locked version."""
    if upgrade_all:
        return ["--upgrade"]
    return [word for name in upgrade for word in ("--upgrade-package", name)]


async def compile_pins(
    uv: Uv,
    sources: Sequence[str],
    target: PlatformTarget,
    *,
    scratch: Path,
    preferences: Iterable[Pin] = (),
    renew: Sequence[str] = (),
    offline: bool = False,
) -> tuple[Pin, ...]:
    """Resolve the requirements files ``sources`` to pins, using wheels only.

    ``preferences`` keep their versions if possible; ``renew`` are :func:`upgrade_options`. Raises
    :class:`ResolveError`, :class:`OutsideError`.
    """
    output = scratch / "resolved.txt"
    output.write_text("".join(f"{pin.line}\n" for pin in preferences), encoding="utf-8")
    options = [*_compile_options(target), "--output-file", str(output), *sources]
    options += renew
    code, messages = await uv.compile_requirements(options, offline=offline)
    if code:
        raise uv_error(messages, doing="resolving Python packages")
    return read_pins(output.read_text(encoding="utf-8"))


def _file_name_and_url(entry: dict[str, Any]) -> tuple[str, str]:
    """Return file name and URL of a file entry of a pylock (PEP 751: ``url`` or ``path``)."""
    if url := entry.get("url"):
        return entry.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]), url
    path = Path(entry.get("path", ""))
    return entry.get("name") or path.name, (
        path.as_uri() if path.is_absolute() else f"file:{quote(str(path))}"
    ) if path.name else ""


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _local_file_size(url: str) -> int:
    if not url.startswith("file:///"):
        return 0
    try:
        return Path(unquote(urlsplit(url).path)).stat().st_size
    except OSError:
        return 0


def choose_file(package: dict[str, Any], target: PlatformTarget) -> PackageFile | None:
    """Return the best file of a package in a ``pylock.toml``; None if none is compatible."""
    wheels = {_file_name_and_url(wheel)[0]: wheel for wheel in package.get("wheels", ())}
    chosen = best_wheel(wheels, target)
    entry: dict[str, Any] | None
    entry, kind = (wheels[chosen], "wheel") if chosen else (package.get("sdist"), "sdist")
    direct = False
    if entry is None:
        entry, direct = package.get("archive"), True
        if entry is None:
            return None
        kind = "wheel" if _file_name_and_url(entry)[0].endswith(".whl") else "sdist"
    file, url = _file_name_and_url(entry)
    sha256 = entry.get("hashes", {}).get("sha256", "")
    size = entry.get("size", 0) or _local_file_size(url)
    return PackageFile(
        package["name"], package.get("version", ""), kind, file, url, sha256, size, direct
    )


def read_pylock(text: str, target: PlatformTarget) -> tuple[PackageFile, ...]:
    """Return the best file of each package in a ``pylock.toml``; skips directories and VCS."""
    packages = tomllib.loads(text).get("packages", [])
    files = [chosen for package in packages if (chosen := choose_file(package, target)) is not None]
    return tuple(sorted(files, key=lambda file: file.name))


def _preference_pylock(pins: Iterable[Pin]) -> str:
    """Return a ``pylock.toml`` with versions only: uv reads nothing else from an existing one."""
    entries = [f"[[packages]]\nname = '{pin.name}'\nversion = '{pin.version}'\n" for pin in pins]
    return "\n".join(["lock-version = '1.0'\ncreated-by = 'danlu'\n", *entries]) if entries else ""


async def locate_files(
    uv: Uv,
    sources: Sequence[str],
    target: PlatformTarget,
    *,
    scratch: Path,
    dependencies: bool = False,
    preferences: Iterable[Pin] = (),
    offline: bool = False,
) -> tuple[PackageFile, ...]:
    """Return the wheels for the requirements files ``sources``, with names and hashes.

    Without ``dependencies`` they must be pins; ``preferences`` keep their versions if possible.
    Raises :class:`OutsideError` if an index provides no sha256.
    """
    options = [] if dependencies else ["--no-deps"]
    before = _preference_pylock(preferences)
    text = await _compile_pylock(
        uv, [*options, *sources], target, scratch=scratch, before=before, offline=offline
    )
    files = read_pylock(text, target)
    bare = [file.name for file in files if not file.sha256]
    if bare:
        raise OutsideError(f"the package index provides no sha256 for {', '.join(bare)}")
    return files


async def locate_urls(
    uv: Uv, pins: Iterable[Pin], target: PlatformTarget, *, scratch: Path
) -> dict[str, str]:
    """Return the URLs of all files of exactly these versions that uv knows, by sha256.

    The URLs contain no credentials. Raises :class:`ResolveError` if an index no longer has one of
    the versions.
    """
    listing = scratch / "pins.txt"
    listing.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
    text = await _compile_pylock(uv, ["--no-deps", str(listing)], target, scratch=scratch)
    urls = {}
    for package in tomllib.loads(text).get("packages", []):
        for entry in (*package.get("wheels", ()), package.get("sdist", {})):
            if digest := entry.get("hashes", {}).get("sha256"):
                urls[digest] = _without_credentials(_file_name_and_url(entry)[1])
    return urls


async def _compile_pylock(
    uv: Uv,
    options: Sequence[str],
    target: PlatformTarget,
    *,
    scratch: Path,
    before: str = "",
    offline: bool = False,
) -> str:
    """Return uv's ``pylock.toml`` for ``options``; versions in ``before`` are preferred."""
    output = scratch / "pylock.toml"
    output.unlink(missing_ok=True)
    if before:
        output.write_text(before, encoding="utf-8")
    common = [*_compile_options(target), "--format", "pylock.toml", "--output-file", str(output)]
    code, messages = await uv.compile_requirements([*common, *options], offline=offline)
    if code:
        raise uv_error(messages, doing="locating the files of Python packages")
    return output.read_text(encoding="utf-8")
