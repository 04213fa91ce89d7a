"""Resolve in the sandbox: for packages that must be built before their requirements are known.

Untrusted build code runs there, as an unprivileged user in a root file system that is discarded.
What it returns is text that this code could have written, so the text is validated.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.package_names import normalize_name
from danlu.errors import DanluError, OutsideError, ResolveError, UsageError
from danlu.resolve.python.project_sources import find_other_source
from danlu.resolve.python.request import (
    PythonRequest,
    ResolveTask,
    can_keep,
    to_locked_package,
    verify_required_urls,
)
from danlu.resolve.python.requirements import DeclaredRequirements, SourceRequirement, UvRequirement
from danlu.sandbox.types import SYSTEM_PATH, Mount
from danlu.sources import git
from danlu.sources.http import fetch
from danlu.sources.pypi.editable_metadata import copy_for_editable, digest_metadata
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import DirectReference, check_hashes
from danlu.sources.pypi.scm_version import list_version_variables, write_description
from danlu.sources.pypi.sdist_build import UV_INSIDE, chown_to_builder, sandbox_indexes
from danlu.sources.pypi.source_tree import copy_source, digest_source
from danlu.sources.pypi.uv import Uv, find_uv
from danlu.sources.pypi.uv_compile import PackageFile, read_pins, read_pylock, write_index_pins
from danlu.sources.pypi.uv_errors import find_missing_extras, format_missing_extra, uv_error
from danlu.sources.pypi.uv_project import find_uv_project, remove_sources
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import strip_credentials

_WORK = "/run/danlu/resolve"
_SOURCES = "/run/danlu/sources"

#: Limit for the output and the result that are read back from the sandbox.
_MAX_OUTPUT = 64 << 20

#: Local wheels are mounted here at their host paths, so that removing this prefix restores the
#: path in a message or in the result.
_WHEELS = "/run/danlu/wheels"


class StagedSource(msgspec.Struct, frozen=True):
    """A source copied to ``path`` and mounted at ``sandbox_path``, and its lock entry."""

    source: SourceRequirement
    path: Path
    sandbox_path: str
    package: LockedPackage

    @property
    def line(self) -> str:
        """The requirement to use in the sandbox."""
        reference = self.source.reference
        name = f"{reference.name}{reference.extras} @ file://" if reference.name else ""
        extras = "" if reference.name else reference.extras
        fragment = f"#subdirectory={reference.subdirectory}" if reference.subdirectory else ""
        if fragment and not self.sandbox_path.endswith(_ARCHIVE_SUFFIXES):
            fragment, inside = "", f"{self.sandbox_path}/{reference.subdirectory}"
        else:
            inside = self.sandbox_path
        marker = f" ; {reference.marker}" if reference.marker else ""
        return f"{name}{inside}{fragment}{extras}{marker}"


_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar")


async def stage_sources(task: ResolveTask) -> list[StagedSource]:
    """Fetch or copy all sources, so that builds cannot modify the originals."""
    sources = task.scratch / "sources"
    return [
        await _stage_source(
            task.request, source, number, task.kept, sources / str(number), task.wanted
        )
        for number, source in enumerate(task.wanted.sources)
    ]


async def _stage_source(
    request: PythonRequest,
    source: SourceRequirement,
    number: int,
    kept: Mapping[str, LockedPackage],
    directory: Path,
    wanted: DeclaredRequirements,
) -> StagedSource:
    reference = source.reference
    inside = f"{_SOURCES}/{number}"
    directory.mkdir(parents=True)
    if reference.kind == "git":
        package = await _stage_repository(request, reference, kept, directory / "tree")
        if source.from_uv:
            _refuse_other_sources(directory / "tree", source, wanted)
        return StagedSource(source, directory, f"{inside}/tree", package)
    if reference.kind == "directory":
        package = await _stage_directory(request, source, directory / "tree")
        return StagedSource(source, directory, f"{inside}/tree", package)
    package, path = await _fetch_archive(request, reference)
    with path.open("rb") as archive:
        check_hashes(archive, reference.hashes, reference.location, source.span)
    shutil.copyfile(path, directory / package.file)
    return StagedSource(source, directory, f"{inside}/{package.file}", package)


def _refuse_other_sources(
    tree: Path, source: SourceRequirement, wanted: DeclaredRequirements
) -> None:
    """Raise if a repository takes a package from a source that nothing of the project names.

    uv would follow it. Only the project's own sources are: a repository can name any.
    """
    located = [other.reference.name for other in wanted.sources]
    located += [
        line.text.split("[")[0].split(" ")[0] for line in wanted.lines if " @ " in line.text
    ]
    known = frozenset({*wanted.pins, *map(normalize_name, located)})
    found = find_other_source(tree, source.reference, known)
    if found:
        raise ResolveError(
            f"{strip_credentials(source.text)}: its own pyproject.toml takes {found} from"
            " [tool.uv.sources]",
            span=source.span,
            hint=f"name {found} among the dependencies and in [tool.uv.sources] of your"
            " pyproject.toml, too",
        )


async def _stage_repository(
    request: PythonRequest,
    reference: DirectReference,
    kept: Mapping[str, LockedPackage],
    place: Path,
) -> LockedPackage:
    cache = request.paths.cache / "git"
    location, commit = strip_credentials(reference.location), ""
    for package in kept.values():
        same = (package.location, package.ref) == (location, reference.reference)
        if package.source == "git" and same:
            commit = package.commit

    def fetch() -> tuple[str, str]:
        meant = commit or git.resolve_commit(
            reference.location, reference.reference, cache=cache, offline=request.offline
        )
        tree = git.checkout(reference.location, meant, cache=cache, offline=request.offline)
        shutil.copytree(tree, place, symlinks=True)
        return meant, git.digest_tree(tree)

    commit, digest = await anyio.to_thread.run_sync(fetch)
    return LockedPackage(
        name=normalize_name(reference.name),
        version="",
        source="git",
        sha256=digest,
        location=location,
        commit=commit,
        subdirectory=reference.subdirectory,
        ref=reference.reference,
    )


async def hash_sources(
    request: PythonRequest, packages: Sequence[LockedPackage]
) -> tuple[LockedPackage, ...]:
    """Return packages of a ``pylock.toml`` with the hashes of their repositories and directories.

    The repositories are fetched; the lock contains their addresses without credentials.
    """
    hashed = []
    for package in packages:
        if not package.sha256:
            package = await anyio.to_thread.run_sync(_hash_source, request, package)
        hashed.append(package)
    return tuple(hashed)


def _hash_source(request: PythonRequest, package: LockedPackage) -> LockedPackage:
    if package.source == "git":
        cache, url = request.paths.cache / "git", package.location
        tree = git.checkout(url, package.commit, cache=cache, offline=request.offline)
        return replace(package, sha256=git.digest_tree(tree), location=strip_credentials(url))
    digest_package = digest_metadata if package.editable else digest_source
    digest = digest_package(request.project, request.project / package.location)
    return replace(package, sha256=digest.removeprefix("sha256:"))


async def _stage_directory(
    request: PythonRequest, source: SourceRequirement, place: Path
) -> LockedPackage:
    reference = source.reference
    assert reference.path is not None
    copy = copy_for_editable if source.editable else copy_source
    digest = await anyio.to_thread.run_sync(partial(copy, request.project, reference.path, place))
    package = place / reference.subdirectory
    describe = partial(git.describe, reference.path)
    await anyio.to_thread.run_sync(write_description, package, describe)
    return LockedPackage(
        name=normalize_name(reference.name),
        version="",
        source="local",
        sha256=digest,
        location=reference.location,
        subdirectory=reference.subdirectory,
        editable=source.editable,
    )


async def _fetch_archive(
    request: PythonRequest, reference: DirectReference
) -> tuple[LockedPackage, Path]:
    cache = request.paths.cache / "http"
    url = reference.path.as_uri() if reference.path else reference.location
    fetched = await fetch(url, None, cache=cache, offline=request.offline)
    package = LockedPackage(
        name=normalize_name(reference.name),
        version="",
        source="local" if reference.path else "url",
        file=unquote(urlsplit(url).path).rpartition("/")[2],
        sha256=fetched.sha256,
        size=fetched.size,
        location=strip_credentials(reference.location),
        subdirectory=reference.subdirectory,
    )
    return package, fetched.path


_SCRIPT = """\
export HOME=/tmp UV_CACHE_DIR=/run/danlu/resolve/cache UV_NO_PROGRESS=1 NO_COLOR=1
export UV_PYTHON_DOWNLOADS=never UV_CONFIG_FILE=/run/danlu/resolve/uv.toml
uv() { /run/danlu/uv pip compile --python "$PYTHON" $SOURCES \
    ${UV_NO_INDEX:+--no-index} $FORMATS "$@" >/dev/null; }
cd /run/danlu/resolve || exit 125
uv --no-annotate --no-header -o resolved.txt $OPTIONS requirements.txt $PINS 2>messages.txt || exit
uv --no-header --format pylock.toml -o pylock.toml --no-deps $PLATFORM resolved.txt $PINS \
    2>>messages.txt
"""


async def resolve_in_sandbox(task: ResolveTask) -> tuple[LockedPackage, ...]:
    """Run the whole resolution in the sandbox; source distributions are allowed."""
    request, wanted = task.request, task.wanted
    placed = await stage_sources(task)
    work = task.scratch / "work"
    work.mkdir()
    _write_inputs(task, placed, work)
    restrictions = _write_restrictions(task, work)
    indexes = sandbox_indexes(request.indexes, request.project)
    pins = write_index_pins((line.text for line in wanted.lines), wanted.pins, indexes.named, work)
    ignored = _ignore_sources(placed, wanted.pins) if pins else ["--no-sources"]
    (work / "uv.toml").write_text(indexes.uv_toml)
    # The build user must be able to write there, and git refuses repositories of other owners.
    for tree in (work, *(staged.path for staged in placed)):
        chown_to_builder(tree)
    options = [*_compile_options(task), *restrictions]
    environment = {
        "LC_ALL": "C.UTF-8",
        "PATH": SYSTEM_PATH,
        "PYTHON": request.executable,
        "PLATFORM": " ".join(_platform_options(request.target)),
        "OPTIONS": " ".join(options),
        "PINS": " ".join(os.path.basename(pin) for pin in pins),
        "SOURCES": " ".join(ignored),
        "FORMATS": " ".join(wanted.formats.to_options()),
        **list_version_variables(os.environ),
        **indexes.variables,
    }
    mounts = [
        Mount(UV_INSIDE, find_uv(), readonly=True),
        Mount(_WORK, work),
        *(Mount(f"{_SOURCES}/{n}", staged.path) for n, staged in enumerate(placed)),
        *_mount_wheels(wanted, request.project, task.scratch),
        *indexes.mounts,
    ]
    assert request.run_in_sandbox is not None
    code = await request.run_in_sandbox(("/bin/sh", "-c", _SCRIPT), mounts, environment)
    if code:
        uv = Uv(
            request.paths.cache / "uv", request.project, request.indexes, offline=request.offline
        )
        messages = await uv.add_denied_access(read_sandbox_output(work, "messages.txt"))
        raise _sandbox_error(messages, code, placed)
    for package, extra in find_missing_extras(read_sandbox_output(work, "messages.txt")):
        request.report(format_missing_extra(package, extra))
    await verify_required_urls(request, read_pins(read_sandbox_output(work, "resolved.txt")))
    return _read_results(task, placed, work)


def _ignore_sources(placed: Sequence[StagedSource], pins: Collection[str]) -> list[str]:
    """Return options that make uv ignore the sources that staged packages have for dependencies.

    They are applied already, with paths as they are on this machine. The option would also hide the
    index of a package in ``pins``, so sources of these are removed from copies of directories.
    """
    names: set[str] = set()
    for staged in placed:
        tree, reference = staged.path / "tree", staged.source.reference
        project = find_uv_project(tree / reference.subdirectory, tree)
        if project is None:
            continue
        names |= project.sources.keys()
        if reference.kind == "directory" and not project.sources.keys().isdisjoint(pins):
            for file in {project.path, project.workspace.path}:
                file.write_text(remove_sources(file.read_text(encoding="utf-8")), encoding="utf-8")
    return [word for name in sorted(names - {*pins}) for word in ("--no-sources-package", name)]


def _mount_wheels(wanted: DeclaredRequirements, project: Path, scratch: Path) -> list[Mount]:
    """Return mounts of copies of local wheels, because the originals may not be world-readable."""
    mounts = []
    for number, path in enumerate(wanted.user_paths):
        copy = scratch / f"{number}.whl"
        with (
            ProjectTree(project) as tree,
            os.fdopen(tree.open_file(path), "rb") as wheel,
            copy.open("wb") as target,
        ):
            shutil.copyfileobj(wheel, target, 1 << 20)
        copy.chmod(0o644)
        mounts.append(Mount(f"{_WHEELS}{path}", copy, readonly=True))
    return mounts


def _platform_options(target: PlatformTarget) -> list[str]:
    return ["--python-version", target.python, "--python-platform", target.uv_platform]


def _compile_options(task: ResolveTask) -> list[str]:
    options = _platform_options(task.request.target)
    if task.wanted.constraints:
        options += ["--constraints", "constraints.txt"]
    if task.wanted.virtual:
        options += ["--excludes", "virtual.txt"]
    return [*options, *task.renew]


def _write_inputs(task: ResolveTask, placed: Sequence[StagedSource], work: Path) -> None:
    lines = [_move_wheel_path(line) for line in task.wanted.lines] + [
        staged.line for staged in placed
    ]
    (work / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    constraints = "".join(f"{_move_wheel_path(line)}\n" for line in task.wanted.constraints)
    (work / "constraints.txt").write_text(constraints)
    virtual = "".join(f"{name}\n" for name in sorted(task.wanted.virtual))
    (work / "virtual.txt").write_text(virtual)
    preferences = "".join(f"{pin.line}\n" for pin in task.list_preferences())
    (work / "resolved.txt").write_text(preferences)


def _write_restrictions(task: ResolveTask, work: Path) -> list[str]:
    """Write the constraints and overrides that this machine configures; return options for them.

    The copies can be read by the build user, and nothing else in their directories can.
    """
    options = []
    for number, file in enumerate(task.request.restrictions.files):
        option = "--build-constraints" if file.decision == "building" else file.option
        place = file.place
        if "://" not in place:
            place = f"{option.removeprefix('--')}-{number}.txt"
            (work / place).write_text("".join(f"{line}\n" for line in file.lines))
        options += [option, place]
    return options


def _move_wheel_path(line: UvRequirement) -> str:
    """Return a requirement with the path of a local wheel in the sandbox."""
    return line.text.replace(" @ file://", f" @ file://{_WHEELS}", 1)


def read_sandbox_output(work: Path, name: str) -> str:
    """Return the text of a file that untrusted code could have written; empty if it does not exist.

    It may also be a symlink to a host file, a FIFO, or endless.
    """
    try:
        with ProjectTree(work) as tree, os.fdopen(tree.open_file(name), "rb") as file:
            return file.read(_MAX_OUTPUT).decode("utf-8", "replace")
    except (OSError, UsageError):
        return ""


def _sandbox_error(text: str, code: int, placed: Sequence[StagedSource]) -> DanluError:
    """Return uv's error with the user's paths, and the line of the source it is about."""
    if not text.strip():
        return OutsideError(f"resolving in the sandbox failed with exit code {code}")
    about = next((staged for staged in placed if staged.sandbox_path in text), None)
    for staged in placed:
        location = staged.source.reference.location
        text = text.replace(f"file://{staged.sandbox_path}", location).replace(
            staged.sandbox_path, location
        )
    text = text.replace(_WHEELS, "")
    error = uv_error(text, doing="resolving the Python packages in the sandbox")
    if about is not None:
        error.span = about.source.span
    return error


def _read_results(
    task: ResolveTask, placed: Sequence[StagedSource], work: Path
) -> tuple[LockedPackage, ...]:
    kept, wanted = task.kept, task.wanted
    text = read_sandbox_output(work, "pylock.toml").replace(_WHEELS, "")
    packages: dict[str, LockedPackage] = {}
    for file in read_pylock(text, task.request.target):
        _check_file(file)
        before = kept.get(normalize_name(file.name))
        formats, target = wanted.formats, task.request.target
        if before and not file.direct and can_keep(before, file.version, formats, target):
            packages[before.name] = before
        elif not (file.direct and _SOURCES in file.url):
            packages[normalize_name(file.name)] = to_locked_package(file, wanted)
    names, versions = parse_local_packages(text), _read_cached_versions(work)
    for staged in placed:
        name, version = names.get(staged.sandbox_path, ("", ""))
        version = version or versions.get(name, "")
        if name:
            packages[name] = replace(staged.package, name=name, version=version)
    return tuple(packages[name] for name in sorted(packages))


def parse_local_packages(text: str) -> dict[str, tuple[str, str]]:
    """Return name and version of the local packages in a ``pylock.toml``, by path."""
    packages = {}
    for package in tomllib.loads(text).get("packages", []):
        entry = package.get("directory") or package.get("archive") or {}
        place = str(entry.get("path", "")) or str(entry.get("url", "")).removeprefix("file://")
        if place and not place.startswith("/"):
            place = f"{_WORK}/{place}"
        place = posixpath.normpath(place)
        if entry.get("subdirectory"):
            place = place.removesuffix("/" + entry["subdirectory"])
        if _NAME.fullmatch(package["name"]):
            packages[place] = (normalize_name(package["name"]), str(package.get("version", "")))
    return packages


def _read_cached_versions(work: Path) -> dict[str, str]:
    """Return the versions of packages built from a path, as far as uv's cache in the sandbox has
    them.

    Informational only: the hash determines what is built.
    """
    versions: dict[str, str] = {}
    for root, _, files in os.walk(work / "cache"):
        path = Path(root) / "metadata.msgpack"
        # Written by untrusted code: follow no symlinks and read no more than a plausible size.
        if path.name not in files or path.is_symlink() or path.stat().st_size > 1 << 20:
            continue
        try:
            name, version, *_ = msgspec.msgpack.decode(path.read_bytes(), type=list[Any])
        except (msgspec.DecodeError, ValueError, OSError):
            continue
        if isinstance(version, str) and re.fullmatch(r"[\w.!+-]+", version):
            versions[normalize_name(str(name))] = version
    return versions


_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][\w.+!~-]*")


def _check_file(file: PackageFile) -> None:
    """Validate a file entry from the sandbox, which could contain anything."""
    sound = (
        _NAME.fullmatch(file.name)
        and _FILE.fullmatch(file.file)
        and re.fullmatch(r"[\w.!+-]*", file.version)
        and re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    )
    if not sound:
        raise ResolveError(f"the package index has no usable file for {file.name!r}")
