"""Asking uv which versions and which files satisfy requirements: ``uv pip compile``, read back."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from danlu.errors import OutsideError
from danlu.sources.pypi.refusals import refusal
from danlu.sources.pypi.target import Target, best_wheel
from danlu.sources.pypi.uv import Uv, target_options

__all__ = [
    "File",
    "Pin",
    "choose_file",
    "compile_pins",
    "locate_addresses",
    "locate_files",
    "read_pins",
    "read_pylock",
    "upgrade_options",
]


class Pin(msgspec.Struct, frozen=True):
    """One line of a resolution: a version, or a place (``url``) instead of one."""

    name: str
    version: str = ""
    url: str = ""

    @property
    def line(self) -> str:
        """The pin as a requirement."""
        return f"{self.name} @ {self.url}" if self.url else f"{self.name}=={self.version}"


class File(msgspec.Struct, frozen=True):
    """The one file of a package that was chosen.

    ``kind`` is ``wheel`` or ``sdist``, ``url`` where it lies (``file://`` too), ``direct`` whether
    the user named the place; ``size`` 0 where the index does not tell.
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
    """The pins in uv's requirements output (no annotations, no hashes)."""
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


def _options(target: Target) -> list[str]:
    return [*target_options(target), "--no-annotate", "--no-header", "--no-sources"]


def upgrade_options(upgrade: Iterable[str], *, upgrade_all: bool) -> list[str]:
    """uv's options for what may leave its locked version; its notes of indexes are renewed too."""
    if upgrade_all:
        return ["--upgrade"]
    return [word for name in upgrade for word in ("--upgrade-package", name)]


async def compile_pins(
    uv: Uv,
    sources: Sequence[str],
    target: Target,
    *,
    scratch: Path,
    preferences: Iterable[Pin] = (),
    renew: Sequence[str] = (),
    offline: bool = False,
) -> tuple[Pin, ...]:
    """What satisfies the requirements files ``sources``, wheels only.

    ``preferences`` keep their versions where they can; ``renew`` are :func:`upgrade_options`.
    Raises :class:`ResolveError`, :class:`OutsideError`.
    """
    output = scratch / "resolved.txt"
    output.write_text("".join(f"{pin.line}\n" for pin in preferences), encoding="utf-8")
    options = [*_options(target), "--output-file", str(output), *sources]
    options += renew
    code, _, messages = await uv.run(("pip", "compile"), options, offline=offline)
    if code:
        raise refusal(messages, doing="resolving the Python packages")
    return read_pins(output.read_text(encoding="utf-8"))


def _file_name(entry: dict[str, Any]) -> tuple[str, str]:
    """File name and address of a file entry of a pylock (PEP 751: ``url`` or ``path``)."""
    if url := entry.get("url"):
        return entry.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]), url
    path = Path(entry.get("path", ""))
    return entry.get("name") or path.name, (
        path.as_uri() if path.is_absolute() else f"file:{quote(str(path))}"
    ) if path.name else ""


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def _size(url: str) -> int:
    if not url.startswith("file:///"):
        return 0
    try:
        return Path(unquote(urlsplit(url).path)).stat().st_size
    except OSError:
        return 0


def choose_file(package: dict[str, Any], target: Target) -> File | None:
    """The best file of one package of a ``pylock.toml``; None where none fits ``target``."""
    wheels = {_file_name(one)[0]: one for one in package.get("wheels", ())}
    chosen = best_wheel(wheels, target)
    entry: dict[str, Any] | None
    entry, kind = (wheels[chosen], "wheel") if chosen else (package.get("sdist"), "sdist")
    direct = False
    if entry is None:
        entry, direct = package.get("archive"), True
        if entry is None:
            return None
        kind = "wheel" if _file_name(entry)[0].endswith(".whl") else "sdist"
    file, url = _file_name(entry)
    sha256 = entry.get("hashes", {}).get("sha256", "")
    size = entry.get("size", 0) or _size(url)
    return File(package["name"], package.get("version", ""), kind, file, url, sha256, size, direct)


def read_pylock(text: str, target: Target) -> tuple[File, ...]:
    """The best file of each package of a ``pylock.toml``, by name; directories and VCS left out."""
    packages = tomllib.loads(text).get("packages", [])
    found = [chosen for one in packages if (chosen := choose_file(one, target)) is not None]
    return tuple(sorted(found, key=lambda one: one.name))


def _preferring(pins: Iterable[Pin]) -> str:
    """A ``pylock.toml`` of versions only, which is all that uv reads of an earlier one."""
    entries = [f"[[packages]]\nname = '{pin.name}'\nversion = '{pin.version}'\n" for pin in pins]
    return "\n".join(["lock-version = '1.0'\ncreated-by = 'danlu'\n", *entries]) if entries else ""


async def locate_files(
    uv: Uv,
    sources: Sequence[str],
    target: Target,
    *,
    scratch: Path,
    dependencies: bool = False,
    preferences: Iterable[Pin] = (),
    offline: bool = False,
) -> tuple[File, ...]:
    """Names and hashes of the wheels for the requirements files ``sources``.

    Without ``dependencies`` they must be pins; ``preferences`` keep their versions where they can.
    Raises :class:`OutsideError` where an index gives no sha256.
    """
    options = [] if dependencies else ["--no-deps"]
    before = _preferring(preferences)
    text = await _locate(
        uv, [*options, *sources], target, scratch=scratch, before=before, offline=offline
    )
    files = read_pylock(text, target)
    bare = [one.name for one in files if not one.sha256]
    if bare:
        raise OutsideError(f"the package index gives no sha256 for {', '.join(bare)}")
    return files


async def locate_addresses(
    uv: Uv, pins: Iterable[Pin], target: Target, *, scratch: Path
) -> dict[str, str]:
    """Where the files of exactly these versions lie, by sha256: all that uv knows of.

    No address has credentials. Raises :class:`ResolveError` where an index no longer has one of
    the versions.
    """
    listing = scratch / "pins.txt"
    listing.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
    text = await _locate(uv, ["--no-deps", str(listing)], target, scratch=scratch)
    found = {}
    for package in tomllib.loads(text).get("packages", []):
        for entry in (*package.get("wheels", ()), package.get("sdist", {})):
            if digest := entry.get("hashes", {}).get("sha256"):
                found[digest] = _without_credentials(_file_name(entry)[1])
    return found


async def _locate(
    uv: Uv,
    options: Sequence[str],
    target: Target,
    *,
    scratch: Path,
    before: str = "",
    offline: bool = False,
) -> str:
    """uv's ``pylock.toml`` for ``options``; from ``before`` it takes the versions it can."""
    output = scratch / "pylock.toml"
    output.unlink(missing_ok=True)
    if before:
        output.write_text(before, encoding="utf-8")
    common = [*_options(target), "--format", "pylock.toml", "--output-file", str(output)]
    code, _, messages = await uv.run(("pip", "compile"), [*common, *options], offline=offline)
    if code:
        raise refusal(messages, doing="locating the files of the Python packages")
    return output.read_text(encoding="utf-8")
