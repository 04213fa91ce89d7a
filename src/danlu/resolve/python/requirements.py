"""Parse the Python requirements of an environment into lines that are safe to pass to uv.

uv runs on the host, and some requirements make it run foreign code there (an editable one even when
building is disabled). So uv never sees the user's text: each line is parsed here, validated and
written again. Requirements that must be built are separated for the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import normalize_name, requirement_name
from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, Span
from danlu.resolve.python.project_sources import PlacedRequirement, ProjectReader
from danlu.resolve.python.pylock import marker_environment
from danlu.sandbox.machine_settings import iter_settings
from danlu.sources.pypi.editable_metadata import locate_editable
from danlu.sources.pypi.indexes import TORCH_PACKAGES, IndexSettings, torch_index
from danlu.sources.pypi.platform_target import PlatformTarget, is_compatible
from danlu.sources.pypi.requirements import (
    ANY_FORMAT,
    FORMAT_OPTIONS,
    DirectReference,
    FormatControl,
    RequirementLine,
    attach_span,
    check_constraint,
    confine_reference,
    parse_reference,
    read_declared,
    read_requirements,
    split_marker,
)
from danlu.sources.pypi.uv_compile import write_index_pins
from danlu.sources.pypi.uv_project import LOCK_NAME, UvProject, read_uv_project
from danlu.util.urls import mask_credentials


class UvRequirement(msgspec.Struct, frozen=True):
    """A requirement as passed to uv, and where the user wrote it."""

    text: str
    span: Span | None = None


class SourceRequirement(msgspec.Struct, frozen=True):
    """A requirement that must be built from source, and where the user wrote it.

    An ``editable`` one is used in place, and its location is a path without links. One
    ``from_uv`` is from ``[tool.uv.sources]``, which uv would follow for its dependencies, too.
    """

    reference: DirectReference
    text: str
    span: Span | None = None
    editable: bool = False
    from_uv: bool = False


class UvLockRequest(msgspec.Struct, frozen=True):
    """Packages to take from a ``uv.lock``: the dependencies of a project, its extras and groups."""

    project: UvProject
    lock: Path
    groups: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    span: Span | None = None


class HashedFile(msgspec.Struct, frozen=True):
    """A wheel at a URL or ``path`` that must have one of ``hashes`` (``ALGORITHM:DIGEST``)."""

    location: str
    path: Path | None
    hashes: tuple[str, ...]
    span: Span | None = None


class DeclaredRequirements(msgspec.Struct, frozen=True):
    """All declared requirements.

    ``hashes`` are the sha256 hashes that a requirements file allows, by name, for files of an
    index, ``files`` the wheels at a location that have a hash; ``user_paths`` maps
    the absolute path of a local wheel to the text the user wrote; ``pylock_files`` are
    ``pylock.toml`` files; ``formats`` says which packages must, or must not, be built. ``pins`` are
    the names of the indexes that packages must come from, by normalised package name. ``virtual``
    are packages that others may require but that are not installed.
    """

    lines: tuple[UvRequirement, ...] = ()
    constraints: tuple[UvRequirement, ...] = ()
    sources: tuple[SourceRequirement, ...] = ()
    hashes: Mapping[str, frozenset[str]] = {}
    files: Mapping[str, HashedFile] = {}
    user_paths: Mapping[str, str] = {}
    pylock_files: tuple[Path, ...] = ()
    formats: FormatControl = ANY_FORMAT
    pins: Mapping[str, str] = {}
    uv_locks: tuple[UvLockRequest, ...] = ()
    virtual: frozenset[str] = frozenset()


class _RequirementCollector:
    def __init__(self, project: Path, target: PlatformTarget) -> None:
        self.project = project
        self.target = target
        self.lines: dict[str, UvRequirement] = {}
        self.constraints: dict[str, UvRequirement] = {}
        self.sources: dict[str, SourceRequirement] = {}
        self.hashes: dict[str, frozenset[str]] = {}
        self.files: dict[str, HashedFile] = {}
        self.spelled: dict[str, str] = {}
        self.locked: list[Path] = []
        self.formats = ANY_FORMAT
        self.pins: dict[str, str] = {}
        self.uv_locks: list[UvLockRequest] = []
        self.reader = ProjectReader(project, target)
        self._environment = {**marker_environment(target), "extra": ""}

    def add(
        self,
        text: str,
        base: Path,
        where: Span | None,
        *,
        constraint: bool = False,
        hashes: Sequence[str] = (),
    ) -> None:
        """Add a requirement from a requirements file or the build file, if its marker applies."""
        with attach_span(where):
            reference = parse_reference(text, base)
        if reference is not None:
            if not self.applies(text, where):
                return
            reference = replace(reference, hashes=(*reference.hashes, *hashes))
            self._add_reference(reference, text, where, constraint=constraint)
            return
        line = _parse_requirement(text, where)
        if not self.applies(text, where):
            return
        (self.constraints if constraint else self.lines).setdefault(line.text, line)
        self._note_hashes(requirement_name(text), text, hashes, where)

    def applies(self, text: str, where: Span | None) -> bool:
        """Return whether a requirement is for the target: pip ignores the others completely."""
        marker = split_marker(text)[1]
        try:
            return not marker or Marker(marker).evaluate(self._environment)
        except InvalidMarker as error:
            raise _invalid_requirement(text, str(error), where) from error

    def _add_reference(
        self,
        reference: DirectReference,
        text: str,
        where: Span | None,
        *,
        constraint: bool = False,
        from_uv: bool = False,
    ) -> None:
        with attach_span(where):
            confine_reference(reference, self.project)
        if reference.kind == "wheel":
            line = self._wheel_requirement(reference, where)
            (self.constraints if constraint else self.lines).setdefault(line.text, line)
        elif constraint:
            raise ResolveError(
                f"a constraint cannot be built from source: {mask_credentials(text)}", span=where
            )
        else:
            self._add_source(reference, text, where, from_uv=from_uv)

    def _wheel_requirement(self, reference: DirectReference, where: Span | None) -> UvRequirement:
        file = Path(reference.path or unquote(urlsplit(reference.location).path)).name
        _check_wheel(file, reference, self.target, where)
        name = reference.name or file.partition("-")[0]
        place = reference.location
        if reference.hashes:
            self.files[normalize_name(name)] = HashedFile(
                place, reference.path, reference.hashes, where
            )
        if reference.path is not None:
            place = reference.path.as_uri()
            self.spelled[str(reference.path)] = self.lock_location(reference)
        return UvRequirement(f"{name}{reference.extras} @ {place}", where)

    def lock_location(self, reference: DirectReference) -> str:
        """Return a path as the lock stores it: relative to the project, unless the user wrote a
        full path.

        In requirements files, paths are relative to the file; in the lock, to the project.
        """
        full = reference.location.startswith(("/", "~", "file:"))
        if reference.path is None or (full and not reference.path.is_relative_to(self.project)):
            return str(reference.path or reference.location)
        return os.path.relpath(reference.path, self.project)

    def _add_source(
        self, reference: DirectReference, text: str, where: Span | None, *, from_uv: bool
    ) -> None:
        if reference.kind == "vcs":
            raise ResolveError(
                f"{mask_credentials(text)}: unsupported version control system",
                span=where,
                hint="use a git repository (git+https://…)",
            )
        if reference.path is not None and not reference.path.exists():
            raise ResolveError(f"{reference.location} not found", span=where)
        if reference.hashes and reference.kind != "archive":
            raise ResolveError(
                f"{mask_credentials(text)}: only a file has a hash, not a {reference.kind}",
                span=where,
                hint="remove the hash: danlu.lock has one of the content",
            )
        placed = replace(reference, location=self.lock_location(reference))
        source = SourceRequirement(placed, text, where, from_uv=from_uv)
        self.sources.setdefault(f"{text} {reference.path} {reference.marker}", source)
        self._follow_sources(reference, where)

    def _follow_sources(self, reference: DirectReference, where: Span | None) -> None:
        """Add what a package in a directory of the project requires from ``[tool.uv.sources]``."""
        if reference.kind == "directory":
            with attach_span(where):
                sourced = list(self.reader.list_with_sources(reference))
            for placed in sourced:
                self._add_with_source(placed, where)

    def _add_with_source(self, placed: PlacedRequirement, where: Span | None) -> None:
        reference = placed.reference
        if reference is None:
            self.add(placed.text, placed.base, where)
            if placed.index:
                self._pin_index(requirement_name(placed.text), placed.index, where)
        elif placed.editable:
            self._add_editable_directory(reference, placed.text, where)
        else:
            self._add_reference(reference, placed.text, where, from_uv=True)

    def pin_torch(self, packages: PythonPackages) -> None:
        """Let PyTorch's packages, of whatever list or file, come from its index for the backend."""
        index = torch_index(packages.torch_backend).name
        for line in self.lines.values():
            name = requirement_name(line.text)
            if name in TORCH_PACKAGES and " @ " not in line.text:
                self._pin_index(name, index, packages.span)

    def _pin_index(self, name: str, index: str, where: Span | None) -> None:
        if self.pins.setdefault(name, index) != index:
            raise ResolveError(
                f"{name} must come from the index {self.pins[name]!r} and from {index!r}",
                span=where,
                hint="torch_backend= and [tool.uv.sources] of the project must agree",
            )

    def add_file(self, path: Path) -> None:
        """Add a requirements file, a ``pyproject.toml`` or a ``pylock.toml``."""
        name = path.name
        if name == "pylock.toml" or (name.startswith("pylock.") and name.endswith(".toml")):
            self.locked.append(path)
        elif name.endswith(".toml"):
            self.add_pyproject(path, None)
        elif name == LOCK_NAME:
            raise ResolveError(
                f"{name} is not a requirements file",
                hint="use pyproject=: it is read with the pyproject.toml next to it",
            )
        elif name in ("setup.py", "setup.cfg"):
            raise ResolveError(
                f"{name} is not a requirements file",
                hint="list its packages in a requirements file, or install the project itself",
            )
        else:
            self._add_requirements_file(path)

    def add_pyproject(
        self,
        path: Path,
        where: Span | None,
        *,
        groups: Sequence[str] = (),
        extras: Sequence[str] = (),
    ) -> None:
        """Add the dependencies in a ``pyproject.toml``, with those of its extras and groups.

        If the project has a ``uv.lock``, they are taken from it.
        """
        with attach_span(where):
            project = read_uv_project(path, self.project)
            if project.lock is not None:
                wanted = UvLockRequest(project, project.lock, tuple(groups), tuple(extras), where)
                self.uv_locks.append(wanted)
                return
            _refuse_unread_settings(project)
            found = list(self.reader.list_requirements(project, groups=groups, extras=extras))
        for placed in found:
            self._add_with_source(placed, where)

    def _add_requirements_file(self, path: Path) -> None:
        entries = [
            (entry, Span(os.path.relpath(entry.file, self.project), entry.line))
            for entry in read_requirements(path, self.project)
        ]
        self._require_all_hashes(entries)
        for entry, where in entries:
            self.add_line(entry, where)

    def _require_all_hashes(self, entries: Sequence[tuple[RequirementLine, Span]]) -> None:
        """Raise if only some requirements have hashes, as pip does (``--require-hashes``)."""
        required = [
            (entry, where)
            for entry, where in entries
            if not entry.option and not entry.constraint and self.applies(entry.value, where)
        ]
        demanded = any(entry.option == "--require-hashes" for entry, _ in entries)
        if not demanded and not any(entry.hashes for entry, _ in required):
            return
        for entry, where in required:
            reference = parse_reference(entry.value, entry.base)
            if not entry.hashes and not (reference and reference.hashes):
                raise ResolveError(
                    f"{mask_credentials(entry.value)} has no --hash, but"
                    + (" --require-hashes is set" if demanded else " other requirements have one"),
                    span=where,
                    hint="add hashes to all requirements (`uv pip compile --generate-hashes`), or"
                    " remove them all: danlu.lock has the hash of every file",
                )

    def add_line(self, entry: RequirementLine, where: Span | None) -> None:
        """Add a line of a requirements file, or a name in the build file."""
        if entry.settings:
            raise ResolveError(
                f"per-requirement option {entry.settings[0]} is not supported",
                span=where,
                hint="build settings of single packages cannot be set",
            )
        if entry.constraint:
            check_constraint(entry, where)
        if entry.option == "--editable":
            self._add_editable(entry, where)
        elif entry.option == "":
            self.add(
                entry.value, entry.base, where, constraint=entry.constraint, hashes=entry.hashes
            )
        elif entry.option in ("--requirement", "--constraint") and entry.included_file is None:
            raise ResolveError(
                f"cannot include a remote requirements file: {mask_credentials(entry.value)}",
                span=where,
                hint="download it into the project, so that its content is locked",
            )
        elif (
            entry.option == "--requirement"
            and entry.included_file
            and entry.value.endswith(".toml")
        ):
            self.add_file(entry.included_file)
        elif entry.option in FORMAT_OPTIONS:
            self._limit_formats(entry, where)
        elif entry.option not in _KNOWN_OPTIONS:
            raise ResolveError(f"{entry.option} is not supported", span=where)

    def _add_editable(self, entry: RequirementLine, where: Span | None) -> None:
        """Add a directory to use in place; a repository is installed as any other package.

        pip would keep a checkout of the repository, which nobody edits in an image.
        """
        with attach_span(where):
            reference = parse_reference(entry.value, entry.base)
        if not self.applies(entry.value, where):
            return
        if reference is None or reference.kind in ("wheel", "archive"):
            raise ResolveError(
                f"-e {mask_credentials(entry.value)}: only a directory can be editable",
                span=where,
                hint=f"use -e ./DIRECTORY, or {mask_credentials(entry.value)} without -e",
            )
        if reference.kind != "directory" or reference.path is None:
            if reference.kind == "git" and not reference.name:
                raise ResolveError(
                    f"-e {mask_credentials(entry.value)} has no name",
                    span=where,
                    hint=f'write -e "NAME @ {mask_credentials(entry.value)}"',
                )
            self.add(entry.value, entry.base, where)
            return
        if reference.subdirectory:
            place = os.path.join(reference.path, reference.subdirectory)
            reference = replace(reference, path=Path(place), subdirectory="")
        self._add_editable_directory(reference, f"-e {entry.value}", where)

    def _add_editable_directory(
        self, reference: DirectReference, text: str, where: Span | None
    ) -> None:
        with attach_span(where):
            location = locate_editable(self.project, reference.path or "")
        # Several lines may add extras of the same directory.
        key = f"-e {location} {reference.marker}"
        known = self.sources.get(key)
        if known is not None:
            reference = replace(reference, name=reference.name or known.reference.name)
            extras = {*_split_extras(reference.extras), *_split_extras(known.reference.extras)}
            reference = replace(reference, extras=f"[{','.join(sorted(extras))}]" if extras else "")
        placed = replace(reference, location=location)
        self.sources[key] = SourceRequirement(placed, text, where, editable=True)
        self._follow_sources(placed, where)

    def _limit_formats(self, entry: RequirementLine, where: Span | None) -> None:
        try:
            self.formats = self.formats.with_option(entry.option, entry.value)
        except ValueError as error:
            raise ResolveError(
                f"{entry.option}: invalid package name {str(error)!r}",
                span=where,
                hint=f"use {entry.option} numpy,scipy or {entry.option} :all:",
            ) from error

    def _note_hashes(self, name: str, text: str, hashes: Sequence[str], where: Span | None) -> None:
        """Remember the hashes that files of an index may have: all lines must allow them."""
        if not hashes:
            return
        admitted = frozenset(
            digest.removeprefix("sha256:").lower() for digest in hashes if _SHA256.fullmatch(digest)
        )
        if not admitted:
            raise ResolveError(
                f"{mask_credentials(text)} has no valid --hash=sha256:…",
                span=where,
                hint="danlu compares files by their SHA-256",
            )
        self.hashes[name] = self.hashes.get(name, admitted) & admitted


_SHA256 = re.compile(r"sha256:[0-9a-fA-F]{64}")

#: Options of requirements files that are handled elsewhere (indexes) or have no effect here.
_KNOWN_OPTIONS = frozenset(
    {
        "--constraint",
        "--extra-index-url",
        "--find-links",
        "--index-url",
        "--no-index",
        "--pre",
        "--prefer-binary",
        "--require-hashes",
        "--requirement",
        "--trusted-host",
        "--use-feature",
    }
)


def _refuse_unread_settings(project: UvProject) -> None:
    """Raise if settings of uv decide versions, but are not those of danlu's own project."""
    root = project.workspace
    if root.directory == project.project:
        return  # they are this machine's settings: danlu.sandbox.pip_uv_config
    unread = sorted(root.uv_table.keys() & _RESOLVER_SETTINGS)
    if unread:
        raise ResolveError(
            f"{root.place}: [tool.uv] {unread[0]} is not used: only [tool.uv] of the project's own"
            " directory is",
            hint="put the build file next to it, or run `uv lock` there: a uv.lock is complete",
        )


#: uv's settings that decide which versions are chosen.
_RESOLVER_SETTINGS = frozenset(
    name for setting in iter_settings({"resolving", "building"}) for name in setting.uv
) | {"find-links", "index-url", "extra-index-url", "no-index", "index-strategy"}


def _parse_requirement(text: str, where: Span | None) -> UvRequirement:
    """Parse a requirement (PEP 508) whose marker applies and return it in canonical form."""
    try:
        requirement = Requirement(split_marker(text)[0])
    except InvalidRequirement as error:
        raise _invalid_requirement(text, str(error), where) from error
    if requirement.url is not None:
        raise ResolveError(f"{mask_credentials(text)!r}: unsupported kind of URL", span=where)
    return UvRequirement(str(requirement), where)


def _invalid_requirement(text: str, problem: str, where: Span | None) -> ResolveError:
    return ResolveError(
        f"invalid requirement {mask_credentials(text)!r}:"
        f" {mask_credentials(problem.splitlines()[0])}",
        span=where,
        hint="write one requirement per element or line" if " " in text else "",
    )


def _check_wheel(
    file: str, reference: DirectReference, target: PlatformTarget, where: Span | None
) -> None:
    if reference.path is not None and not reference.path.is_file():
        raise ResolveError(f"wheel {reference.location} not found", span=where)
    if not is_compatible(file, target):
        tags = "-".join(file.removesuffix(".whl").split("-")[-3:])
        raise ResolveError(
            f"wheel {file} is for another Python or platform ({tags})",
            span=where,
            hint=f"the environment has Python {target.python} on {target.machine}, {target.libc}",
        )


def _split_extras(text: str) -> list[str]:
    return [name.strip() for name in text.strip("[]").split(",") if name.strip()]


def _refuse_mixed(sources: Sequence[SourceRequirement], project: Path) -> None:
    """Raise if a directory would be installed as a copy and used in place."""
    editable = {source.reference.location for source in sources if source.editable}
    for source in sources if editable else ():
        path = source.reference.path
        if source.editable or source.reference.kind != "directory" or path is None:
            continue
        location = locate_editable(project, path)
        if location in editable:
            raise ResolveError(
                f"{source.text} and -e {location} are the same package",
                span=source.span,
                hint="remove one of them",
            )


def _refuse_forbidden(sources: Iterable[SourceRequirement], formats: FormatControl) -> None:
    """Raise if ``--only-binary`` forbids building a source (pip would allow it)."""
    for source in sources:
        name = normalize_name(source.reference.name)
        if not formats.allows(name, wheel=False):
            raise ResolveError(
                f"{mask_credentials(source.text)} must be built, but --only-binary forbids it",
                span=source.span,
                hint=f"add --no-binary {name or 'NAME'} and write the requirement as NAME @ URL",
            )


def collect_requirements(
    declared: Sequence[PythonPackages],
    project: Path,
    target: PlatformTarget,
    *,
    formats: FormatControl = ANY_FORMAT,
) -> DeclaredRequirements:
    """Parse everything that ``declared`` packages require.

    Options in them are added to ``formats``, those of this machine.

    Raises :class:`ResolveError` with the line for a requirement that is invalid or missing, a wheel
    that does not fit ``target``, or a source that ``--only-binary`` forbids to build.
    """
    project = Path(os.path.abspath(project))
    collector = _RequirementCollector(project, target)
    collector.formats = formats
    for packages in declared:
        where = packages.span if packages.span.line else None
        for entry, _ in read_declared(replace(packages, requirements=""), project):
            if entry.option in ("--constraint", "--requirement"):
                raise ResolveError(
                    f"{entry.option} in a list of packages", span=where, hint="use requirements="
                )
            collector.add_line(entry, where)
        for text in packages.constraints:
            collector.add(text, project, where, constraint=True)
        for wheel in packages.local_wheels:
            collector.add(wheel if "/" in wheel else f"./{wheel}", project, where)
        if packages.requirements:
            with attach_span(where):
                collector.add_file(project / packages.requirements)
        if packages.pyproject:
            path = project / packages.pyproject
            collector.add_pyproject(path, where, groups=packages.groups, extras=packages.extras)
    for packages in declared:
        if packages.torch_backend:
            collector.pin_torch(packages)
    _refuse_mixed(tuple(collector.sources.values()), project)
    _refuse_forbidden(collector.sources.values(), collector.formats)
    return DeclaredRequirements(
        tuple(collector.lines.values()),
        tuple(collector.constraints.values()),
        tuple(collector.sources.values()),
        collector.hashes,
        collector.files,
        collector.spelled,
        tuple(collector.locked),
        collector.formats,
        collector.pins,
        tuple(collector.uv_locks),
        frozenset(collector.reader.virtual),
    )


def write_requirements(
    wanted: DeclaredRequirements, indexes: IndexSettings, scratch: Path
) -> list[str]:
    """Write the input files of uv, one requirement per line; return them as arguments."""
    requirements = scratch / "requirements.txt"
    lines = [line.text for line in wanted.lines]
    requirements.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [str(requirements), *write_index_pins(lines, wanted.pins, indexes.named, scratch)]
    if wanted.virtual:
        excludes = scratch / "virtual.txt"
        excludes.write_text("".join(f"{name}\n" for name in sorted(wanted.virtual)))
        files += ["--excludes", str(excludes)]
    if not wanted.constraints:
        return files
    constraints = scratch / "constraints.txt"
    constraints.write_text(
        "".join(f"{line.text}\n" for line in wanted.constraints), encoding="utf-8"
    )
    return [*files, "--constraints", str(constraints)]
