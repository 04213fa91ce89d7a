"""What an environment declares of Python packages, read into lines that uv may be given.

uv runs on the host, and some requirements make it run a stranger's code there (an editable one
even when building is forbidden). So it is never given the user's text: each line is read here,
checked, and written again; what would have to be built is set apart for the sandbox.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from danlu.environment.names import name_of, normalised
from danlu.errors import ResolveError, Span
from danlu.sources.pypi.formats import EVERY_FORMAT, FORMAT_OPTIONS, Formats
from danlu.sources.pypi.requirements import Entry, Reference, read_requirements, reference_of
from danlu.sources.pypi.target import Target, fits

if TYPE_CHECKING:
    from danlu.environment.types import PythonPackages

__all__ = ["Line", "Source", "Wanted", "gather"]


class Line(msgspec.Struct, frozen=True):
    """One requirement as uv gets it, and where the user wrote it."""

    text: str
    where: Span | None = None


class Source(msgspec.Struct, frozen=True):
    """Something that has to be built: what the user named, and where."""

    reference: Reference
    spelled: str
    where: Span | None = None


class Wanted(msgspec.Struct, frozen=True):
    """All that was declared.

    ``hashes`` are the sha256 a requirements file admits, by name; ``spelled`` maps the absolute
    path of a local wheel to what the user wrote; ``locked`` are ``pylock.toml`` files; ``formats``
    says which packages must be built, and which must not.
    """

    lines: tuple[Line, ...] = ()
    constraints: tuple[Line, ...] = ()
    sources: tuple[Source, ...] = ()
    hashes: Mapping[str, frozenset[str]] = {}
    spelled: Mapping[str, str] = {}
    locked: tuple[Path, ...] = ()
    formats: Formats = EVERY_FORMAT


class _Gathering:
    def __init__(self, project: Path, target: Target) -> None:
        self.project = project
        self.target = target
        self.lines: dict[str, Line] = {}
        self.constraints: dict[str, Line] = {}
        self.sources: dict[str, Source] = {}
        self.hashes: dict[str, frozenset[str]] = {}
        self.spelled: dict[str, str] = {}
        self.locked: list[Path] = []
        self.formats = EVERY_FORMAT

    def add(self, text: str, base: Path, where: Span | None, *, constraint: bool = False) -> None:
        """Take one requirement, as it stands in a file or in the build file."""
        kept = self.constraints if constraint else self.lines
        if text.startswith("-"):
            raise ResolveError(
                f"{text!r} is an option, not a package",
                span=where,
                hint="options belong in a requirements file, indexes in config.pip_index",
            )
        reference = reference_of(text, base)
        if reference is None:
            line = _checked(text, where)
        elif reference.kind == "wheel":
            line = self._wheel(reference, where)
        elif constraint:
            raise ResolveError(f"a constraint cannot be built from source: {text}", span=where)
        else:
            self._source(reference, text, where)
            return
        kept.setdefault(line.text, line)

    def _wheel(self, reference: Reference, where: Span | None) -> Line:
        file = Path(reference.path or reference.location).name
        _check_wheel(file, reference, self.target, where)
        name = reference.name or file.partition("-")[0]
        place = reference.location
        if reference.path is not None:
            place = reference.path.as_uri()
            self.spelled[str(reference.path)] = self.location(reference)
        marker = f" ; {reference.marker}" if reference.marker else ""
        return Line(f"{name}{reference.extras} @ {place}{marker}", where)

    def location(self, reference: Reference) -> str:
        """How the lock calls a place: relative to the project, unless the user wrote a full path.

        Paths in requirements files are relative to their file, in the lock to the project.
        """
        full = reference.location.startswith(("/", "~", "file:"))
        if reference.path is None or (full and not reference.path.is_relative_to(self.project)):
            return str(reference.path or reference.location)
        return os.path.relpath(reference.path, self.project)

    def _source(self, reference: Reference, text: str, where: Span | None) -> None:
        if reference.kind == "vcs":
            raise ResolveError(
                f"{text}: only git repositories are understood", span=where, hint="use git+https://"
            )
        if reference.path is not None and not reference.path.exists():
            raise ResolveError(f"there is no {reference.location}", span=where)
        placed = replace(reference, location=self.location(reference))
        self.sources.setdefault(f"{text} {reference.path}", Source(placed, text, where))

    def file(self, path: Path) -> None:
        """Take a requirements file, a ``pyproject.toml``'s dependencies or a ``pylock.toml``."""
        name = path.name
        if name == "pylock.toml" or (name.startswith("pylock.") and name.endswith(".toml")):
            self.locked.append(path)
        elif name.endswith(".toml"):
            for text in _project_dependencies(path):
                self.add(text, path.parent, Span(name, 0))
        elif name in ("setup.py", "setup.cfg") or path.suffix in (".yml", ".yaml"):
            raise ResolveError(
                f"{name} is not a requirements file",
                hint="name its packages in a requirements file, or install the project itself",
            )
        else:
            self._requirements(path)

    def _requirements(self, path: Path) -> None:
        entries = read_requirements(path)
        constraining = _constraint_files(entries)
        for entry in entries:
            where = Span(os.path.relpath(entry.file, self.project), entry.line)
            if entry.settings:
                raise ResolveError(
                    f"{entry.settings[0]} after a requirement is not understood",
                    span=where,
                    hint="build settings cannot be given to one package",
                )
            if entry.option == "--editable":
                # In an image a package under development is a copy, as any other.
                self.add(entry.value, entry.file.parent, where)
            elif entry.option == "":
                constraint = entry.file in constraining
                self.add(entry.value, entry.file.parent, where, constraint=constraint)
                self._note_hashes(entry)
            elif entry.option in ("--requirement", "--constraint") and "://" in entry.value:
                raise ResolveError(
                    f"requirements at an address are not read: {entry.value}",
                    span=where,
                    hint="download the file into the project, so that its content is locked",
                )
            elif entry.option == "--requirement" and entry.value.endswith(".toml"):
                self.file(Path(os.path.abspath(entry.file.parent / entry.value)))
            elif entry.option in FORMAT_OPTIONS:
                self._limit_formats(entry, where)
            elif entry.option not in _KNOWN_OPTIONS:
                raise ResolveError(f"unknown option {entry.option}", span=where)

    def _limit_formats(self, entry: Entry, where: Span) -> None:
        try:
            self.formats = self.formats.after(entry.option, entry.value)
        except ValueError as error:
            raise ResolveError(
                f"{entry.option} names packages, and {str(error)!r} is none",
                span=where,
                hint=f"it looks like {entry.option} numpy,scipy or {entry.option} :all:",
            ) from error

    def _note_hashes(self, entry: Entry) -> None:
        admitted = frozenset(one.removeprefix("sha256:") for one in entry.hashes)
        if admitted:
            name = name_of(entry.value)
            self.hashes[name] = self.hashes.get(name, frozenset()) | admitted


#: Options of requirements files that are read elsewhere (indexes), or change nothing here.
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


def _constraint_files(entries: Iterable[Entry]) -> set[Path]:
    """Files that are drawn in by ``-c``, themselves or through one that is."""
    found: set[Path] = set()
    for entry in entries:
        other = Path(os.path.abspath(entry.file.parent / entry.value))
        inherited = entry.option == "--requirement" and entry.file in found
        if entry.option == "--constraint" or inherited:
            found.add(other)
    return found


def _checked(text: str, where: Span | None) -> Line:
    """A plain requirement, parsed and written again (PEP 508)."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        problem = str(error).splitlines()[0]
        raise ResolveError(f"{text!r} is no requirement: {problem}", span=where) from error
    if requirement.url is not None:
        raise ResolveError(f"{text!r} names a place that is not understood", span=where)
    return Line(str(requirement), where)


def _check_wheel(file: str, reference: Reference, target: Target, where: Span | None) -> None:
    if reference.path is not None and not reference.path.is_file():
        raise ResolveError(f"there is no wheel {reference.location}", span=where)
    if not fits(file, target):
        tags = "-".join(file.removesuffix(".whl").split("-")[-3:])
        raise ResolveError(
            f"the wheel {file} is for another Python or platform ({tags})",
            span=where,
            hint=f"the environment has Python {target.python} on {target.machine}, {target.libc}",
        )


def _project_dependencies(path: Path) -> Iterator[str]:
    """``project.dependencies`` of a ``pyproject.toml`` (PEP 621)."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        raise ResolveError(f"there is no {path}") from None
    except (OSError, ValueError) as error:
        raise ResolveError(f"{path.name} cannot be read: {error}") from error
    if "dependencies" in table.get("dynamic", ()):
        raise ResolveError(
            f"the dependencies of {path.name} are only known by running the project's build",
            hint='install the project itself: install.python_packages(["."])',
        )
    yield from table.get("dependencies", ())


def _refuse_forbidden(sources: Iterable[Source], formats: Formats) -> None:
    """Raise for a source that ``--only-binary`` forbids to build: uv does, where pip would not."""
    for source in sources:
        name = normalised(source.reference.name)
        if not formats.allow(name, wheel=False):
            raise ResolveError(
                f"{source.spelled} has to be built, which --only-binary forbids",
                span=source.where,
                hint=f"--no-binary {name or 'NAME'} allows it, for a requirement NAME @ PLACE",
            )


def gather(declared: Sequence[PythonPackages], project: Path, target: Target) -> Wanted:
    """Everything that ``declared`` asks for.

    Raises :class:`ResolveError` with the place for what is no requirement, is missing, is a wheel
    that does not fit ``target``, or would have to be built against ``--only-binary``.
    """
    project = Path(os.path.abspath(project))
    found = _Gathering(project, target)
    for packages in declared:
        where = packages.span if packages.span.line else None
        for name in packages.names:
            found.add(name.strip(), project, where)
        for wheel in packages.local_wheels:
            found.add(wheel if "/" in wheel else f"./{wheel}", project, where)
        if packages.requirements:
            found.file(project / packages.requirements)
    _refuse_forbidden(found.sources.values(), found.formats)
    return Wanted(
        tuple(found.lines.values()),
        tuple(found.constraints.values()),
        tuple(found.sources.values()),
        found.hashes,
        found.spelled,
        tuple(found.locked),
        found.formats,
    )
