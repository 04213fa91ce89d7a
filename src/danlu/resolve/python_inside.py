"""Resolving inside the sandbox: for packages that have to be built before they say what they need.

A stranger's build code runs there, as a user without rights, in a root file system that is thrown
away. What comes back is text that this code could have written, so it is checked as such.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.names import normalised
from danlu.errors import DanluError, OutsideError, ResolveError
from danlu.resolve.python_locked import locked_file, stays
from danlu.resolve.python_wanted import Line, Source, Wanted
from danlu.sandbox.types import SYSTEM_PATH, Mount
from danlu.sources.pypi.building import UV_INSIDE, copy_directory, hand_over, indexes_inside
from danlu.sources.pypi.compiling import File, read_pylock
from danlu.sources.pypi.refusals import refusal
from danlu.sources.pypi.requirements import Reference
from danlu.sources.pypi.target import Target
from danlu.sources.pypi.uv import find_uv

if TYPE_CHECKING:
    from danlu.resolve.python_task import PythonRequest, Task

__all__ = ["Placed", "place_sources", "resolve_inside"]

_WORK = "/run/danlu/resolve"
_SOURCES = "/run/danlu/sources"

#: Below it local wheels are inside at their own paths, so that what names them is easily put right.
_WHEELS = "/run/danlu/wheels"


class Placed(msgspec.Struct, frozen=True):
    """A source as it is on the host (``path``) and inside (``inside``), and what the lock keeps."""

    source: Source
    path: Path
    inside: str
    package: LockedPackage

    @property
    def line(self) -> str:
        """The requirement inside."""
        reference = self.source.reference
        name = f"{reference.name}{reference.extras} @ file://" if reference.name else ""
        extras = "" if reference.name else reference.extras
        fragment = f"#subdirectory={reference.subdirectory}" if reference.subdirectory else ""
        if fragment and not self.inside.endswith(_archive_suffixes):
            fragment, inside = "", f"{self.inside}/{reference.subdirectory}"
        else:
            inside = self.inside
        marker = f" ; {reference.marker}" if reference.marker else ""
        return f"{name}{inside}{fragment}{extras}{marker}"


_archive_suffixes = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar")


async def place_sources(task: Task) -> list[Placed]:
    """Fetch or copy every source below the task's directory: no build changes the user's own."""
    sources = task.scratch / "sources"
    return [
        await _place(task.request, source, number, task.kept, sources / str(number))
        for number, source in enumerate(task.wanted.sources)
    ]


async def _place(
    request: PythonRequest,
    source: Source,
    number: int,
    kept: Mapping[str, LockedPackage],
    directory: Path,
) -> Placed:
    reference = source.reference
    inside = f"{_SOURCES}/{number}"
    directory.mkdir(parents=True)
    if reference.kind == "git":
        package = await _checked_out(request, reference, kept, directory / "tree")
        return Placed(source, directory, f"{inside}/tree", package)
    if reference.kind == "directory":
        package = await _copied(request, reference, directory / "tree")
        return Placed(source, directory, f"{inside}/tree", package)
    package, path = await _archive(request, reference)
    shutil.copyfile(path, directory / package.file)
    return Placed(source, directory, f"{inside}/{package.file}", package)


async def _checked_out(
    request: PythonRequest,
    reference: Reference,
    kept: Mapping[str, LockedPackage],
    place: Path,
) -> LockedPackage:
    import anyio.to_thread

    from danlu.sources import git

    cache = request.paths.cache / "git"
    commit = ""
    for one in kept.values():
        same = (one.location, one.ref) == (reference.location, reference.reference)
        if one.source == "git" and same:
            commit = one.commit

    def fetch() -> tuple[str, str]:
        meant = commit or git.resolve(
            reference.location, reference.reference, cache=cache, offline=request.offline
        )
        tree = git.checkout(reference.location, meant, cache=cache, offline=request.offline)
        shutil.copytree(tree, place, symlinks=True)
        return meant, git.tree_digest(tree)

    commit, digest = await anyio.to_thread.run_sync(fetch)
    return LockedPackage(
        name=normalised(reference.name),
        version="",
        source="git",
        sha256=digest,
        location=reference.location,
        commit=commit,
        subdirectory=reference.subdirectory,
        ref=reference.reference,
    )


async def _copied(request: PythonRequest, reference: Reference, place: Path) -> LockedPackage:
    import anyio.to_thread

    assert reference.path is not None
    digest = await anyio.to_thread.run_sync(
        partial(copy_directory, reference.path, place, request.project)
    )
    return LockedPackage(
        name=normalised(reference.name),
        version="",
        source="local",
        sha256=digest,
        location=reference.location,
        subdirectory=reference.subdirectory,
    )


async def _archive(request: PythonRequest, reference: Reference) -> tuple[LockedPackage, Path]:
    from urllib.parse import unquote, urlsplit

    from danlu.sources.http import fetch

    cache = request.paths.cache / "http"
    url = reference.path.as_uri() if reference.path else reference.location
    fetched = await fetch(url, None, cache=cache, offline=request.offline)
    package = LockedPackage(
        name=normalised(reference.name),
        version="",
        source="local" if reference.path else "url",
        file=unquote(urlsplit(url).path).rpartition("/")[2],
        sha256=fetched.sha256,
        size=fetched.size,
        location=reference.location,
        subdirectory=reference.subdirectory,
    )
    return package, fetched.path


_SCRIPT = """\
export HOME=/tmp UV_CACHE_DIR=/run/danlu/resolve/cache UV_NO_PROGRESS=1 NO_COLOR=1
export UV_PYTHON_DOWNLOADS=never
uv() { /run/danlu/uv pip compile --quiet --python "$PYTHON" --no-sources \
    ${UV_NO_INDEX:+--no-index} $FORMATS "$@"; }
cd /run/danlu/resolve || exit 125
uv --no-annotate --no-header -o resolved.txt $OPTIONS requirements.txt 2>messages.txt || exit
uv --no-header --format pylock.toml -o pylock.toml --no-deps $PLATFORM resolved.txt \
    2>messages.txt
"""


async def resolve_inside(task: Task) -> tuple[LockedPackage, ...]:
    """The whole resolution, run by ``request.run_inside``; source distributions are allowed."""
    request, wanted = task.request, task.wanted
    placed = await place_sources(task)
    work = task.scratch / "work"
    work.mkdir()
    _write_inputs(task, placed, work)
    for tree in (work, *(one.path for one in placed)):
        hand_over(tree)
    options = _options(task)
    variables, places = indexes_inside(request.indexes, request.project)
    environment = {
        "LC_ALL": "C.UTF-8",
        "PATH": SYSTEM_PATH,
        "PYTHON": request.executable,
        "PLATFORM": " ".join(_platform(request.target)),
        "OPTIONS": " ".join(options),
        "FORMATS": " ".join(wanted.formats.options()),
        **variables,
    }
    mounts = [
        Mount(UV_INSIDE, find_uv(), readonly=True),
        Mount(_WORK, work),
        *(Mount(f"{_SOURCES}/{n}", one.path) for n, one in enumerate(placed)),
        *_wheels(wanted, task.scratch),
        *places,
    ]
    assert request.run_inside is not None
    code = await request.run_inside(("/bin/sh", "-c", _SCRIPT), mounts, environment)
    if code:
        raise _refused(work, code, placed)
    return _results(task, placed, work)


def _wheels(wanted: Wanted, scratch: Path) -> list[Mount]:
    """Local wheels as copies, because the user's own may be nobody else's to read."""
    mounts = []
    for number, path in enumerate(wanted.spelled):
        copy = scratch / f"{number}.whl"
        shutil.copyfile(path, copy)
        copy.chmod(0o644)
        mounts.append(Mount(f"{_WHEELS}{path}", copy, readonly=True))
    return mounts


def _platform(target: Target) -> list[str]:
    return ["--python-version", target.python, "--python-platform", target.uv_platform]


def _options(task: Task) -> list[str]:
    options = _platform(task.request.target)
    if task.wanted.constraints:
        options += ["--constraints", "constraints.txt"]
    return [*options, *task.renew]


def _write_inputs(task: Task, placed: Sequence[Placed], work: Path) -> None:
    lines = [_inside(line) for line in task.wanted.lines] + [one.line for one in placed]
    (work / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    constraints = "".join(f"{_inside(line)}\n" for line in task.wanted.constraints)
    (work / "constraints.txt").write_text(constraints)
    preferences = "".join(
        f"{one.name}=={one.version}\n"
        for one in task.kept.values()
        if one.source in ("index", "sdist")
    )
    (work / "resolved.txt").write_text(preferences)


def _inside(line: Line) -> str:
    """A requirement where a wheel of this machine stands at its place inside."""
    return line.text.replace(" @ file://", f" @ file://{_WHEELS}", 1)


def _refused(work: Path, code: int, placed: Sequence[Placed]) -> DanluError:
    """uv's refusal in the user's words, with the line of the source it is about."""
    try:
        text = (work / "messages.txt").read_text(errors="replace")
    except OSError:
        text = ""
    if not text.strip():
        return OutsideError(f"resolving in the sandbox ended with exit code {code}")
    about = next((one for one in placed if one.inside in text), None)
    for one in placed:
        location = one.source.reference.location
        text = text.replace(f"file://{one.inside}", location).replace(one.inside, location)
    text = text.replace(_WHEELS, "")
    error = refusal(text, doing="resolving the Python packages in the sandbox")
    if about is not None:
        error.span = about.source.where
    return error


def _results(task: Task, placed: Sequence[Placed], work: Path) -> tuple[LockedPackage, ...]:
    kept, wanted = task.kept, task.wanted
    text = (work / "pylock.toml").read_text(encoding="utf-8").replace(_WHEELS, "")
    found: dict[str, LockedPackage] = {}
    for file in read_pylock(text, task.request.target):
        _check(file)
        before = kept.get(normalised(file.name))
        if before and not file.direct and stays(before, file.version, wanted.formats):
            found[before.name] = before
        elif not (file.direct and _SOURCES in file.url):
            found[normalised(file.name)] = locked_file(file, wanted)
    names, versions = names_of_places(text), _versions(work)
    for one in placed:
        name, version = names.get(one.inside, ("", ""))
        version = version or versions.get(name, "")
        if name:
            found[name] = replace(one.package, name=name, version=version)
    return tuple(found[name] for name in sorted(found))


def names_of_places(text: str) -> dict[str, tuple[str, str]]:
    """Name and version of the packages of a ``pylock.toml`` that lie at a place, by that place."""
    found = {}
    for package in tomllib.loads(text).get("packages", []):
        entry = package.get("directory") or package.get("archive") or {}
        place = str(entry.get("path", "")) or str(entry.get("url", "")).removeprefix("file://")
        if place and not place.startswith("/"):
            place = f"{_WORK}/{place}"
        place = posixpath.normpath(place)
        if entry.get("subdirectory"):
            place = place.removesuffix("/" + entry["subdirectory"])
        if _NAME.fullmatch(package["name"]):
            found[place] = (normalised(package["name"]), str(package.get("version", "")))
    return found


def _versions(work: Path) -> dict[str, str]:
    """Versions of packages that stand at a place, as far as uv's cache inside tells.

    Only for people to read: the hash says what is built.
    """
    found: dict[str, str] = {}
    for root, _, files in os.walk(work / "cache"):
        path = Path(root) / "metadata.msgpack"
        if path.name not in files or path.is_symlink() or path.stat().st_size > 1 << 20:
            continue
        try:
            name, version, *_ = msgspec.msgpack.decode(path.read_bytes(), type=list[Any])
        except (msgspec.DecodeError, ValueError, OSError):
            continue
        if isinstance(version, str) and re.fullmatch(r"[\w.!+-]+", version):
            found[normalised(str(name))] = version
    return found


_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][\w.+!~-]*")


def _check(file: File) -> None:
    """What comes from inside may be anything: only what a lock may hold is taken."""
    sound = (
        _NAME.fullmatch(file.name)
        and _FILE.fullmatch(file.file)
        and re.fullmatch(r"[\w.!+-]*", file.version)
        and re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    )
    if not sound:
        raise ResolveError(f"the package index gives no usable file for {file.name!r}")
