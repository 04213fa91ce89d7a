"""Parse requirements files as far as danlu must understand them before uv does.

uv parses the files itself when it resolves. This parser only finds what decides *where* that may
happen and which other files belong to the build (pip documentation, "Requirements File Format").
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from danlu.environment.package_names import normalize_name
from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, Span, UsageError
from danlu.sources.pypi.uv_project import (
    LOCK_NAME,
    UvProject,
    locate,
    read_pyproject,
    read_uv_project,
)
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import strip_credentials

_LONG_OPTIONS = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-i": "--index-url",
    "--pypi-url": "--index-url",
    "-f": "--find-links",
}
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OWN_OPTION = re.compile(r"\s(--[A-Za-z][\w-]*|-[A-Za-z])")
_VCS = re.compile(r"(git|hg|svn|bzr)\+")
_NAMED_REFERENCE = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*@\s*(.+)", re.DOTALL)
_ARCHIVES = (
    *(".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tbz"),
    *(".tar.xz", ".tar.zst", ".tar", ".tar.lzma"),
)


class RequirementLine(msgspec.Struct, frozen=True):
    """A logical line: an option (``--index-url``) with its value, or a requirement (no option).

    ``file`` and ``line`` are its location (first physical line); ``hashes`` are the requirement's
    ``--hash`` options (``sha256:…``), ``settings`` the names of its other options.
    """

    option: str
    value: str
    file: Path
    line: int
    hashes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


class DirectReference(msgspec.Struct, frozen=True):
    """A requirement that specifies a location instead of a version (PEP 440, "Direct
    references").

    ``name`` is empty if the user gave none. ``kind`` is what is at the location: a wheel, an
    archive (source distribution), a directory, or a repository. ``location`` is the URL, or the
    path as written; ``path`` is its absolute form if it is local.
    """

    name: str
    extras: str
    kind: Literal["wheel", "archive", "directory", "git", "vcs"]
    location: str
    path: Path | None = None
    marker: str = ""
    reference: str = ""
    subdirectory: str = ""


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        first = first if pending else number
        if not pending and raw.lstrip().startswith("#"):
            continue
        if raw.endswith("\\"):
            pending += raw[:-1] + " "
            continue
        yield first, pending + raw
        pending = ""
    if pending:
        yield first, pending


def _expand_variables(text: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[0], text)


def list_variables(text: str) -> list[str]:
    """Return the names of the variables that ``text`` still contains: those that are not set."""
    return _VARIABLE.findall(text)


def _split_option(line: str) -> tuple[str, str]:
    """Return the option (long form; empty for a requirement) and its value."""
    if not line.startswith("-"):
        return "", line
    match = re.match(r"(--[\w-]+|-[a-zA-Z])(?:\s*=\s*|\s+|(?=[^\s-]))?(.*)", line)
    assert match is not None
    value = match[2].strip()
    try:
        words = shlex.split(value)
    except ValueError:
        words = [value]
    return _LONG_OPTIONS.get(match[1], match[1]), words[0] if len(words) == 1 else value


def _read_lines(
    tree: ProjectTree, path: Path, environ: Mapping[str, str]
) -> Iterator[RequirementLine]:
    try:
        text = tree.read_text(path, "utf-8-sig")
    except FileNotFoundError:
        raise ResolveError(f"requirements file {_format_path(path, tree)} not found") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResolveError(
            f"cannot read requirements file {_format_path(path, tree)}: {reason}"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ResolveError(
            f"{_format_path(path, tree)} is not UTF-8: {error.reason}",
            span=Span(_format_path(path, tree), line),
            hint="convert it, for example with `iconv -t UTF-8`",
        ) from error
    if _is_conda_file(path):
        from danlu.sources.environment_file import parse_environment_file  # few projects have one

        yield from _parse_lines(parse_environment_file(text, path.name).pip, path, environ)
    else:
        yield from parse_requirements(text, path, environ)


def _format_path(path: Path, tree: ProjectTree) -> str:
    return os.path.relpath(path, os.path.abspath(tree.project))


def parse_requirements(
    text: str, path: Path, environ: Mapping[str, str]
) -> Iterator[RequirementLine]:
    """Yield the lines of ``text``, the content of the requirements file ``path``."""
    yield from _parse_lines(_logical_lines(text), path, environ)


def _parse_lines(
    lines: Iterable[tuple[int, str]], path: Path, environ: Mapping[str, str]
) -> Iterator[RequirementLine]:
    for number, line in lines:
        line = _expand_variables(re.sub(r"(^|\s)#.*$", "", line).strip(), environ)
        if line:
            yield _parse_line(*_split_option(line), path, number)


def _is_conda_file(path: Path) -> bool:
    """Return whether a file lists Python packages next to conda packages."""
    return path.suffix in (".yml", ".yaml")


def _parse_line(option: str, text: str, path: Path, number: int) -> RequirementLine:
    """Parse a line; after a requirement, its own options may follow."""
    if option not in ("", "--editable"):
        return RequirementLine(option, text, path, number)
    value = _OWN_OPTION.split(text, maxsplit=1)[0].strip()
    own = text[len(value) :]
    hashes = tuple(re.findall(r"--hash[=\s]+(\S+)", own))
    settings = tuple(name for name in _OWN_OPTION.findall(own) if name != "--hash")
    return RequirementLine(option, value, path, number, hashes, settings)


def read_requirements(
    path: Path, project: Path, environ: Mapping[str, str] | None = None
) -> tuple[RequirementLine, ...]:
    """Return all lines of a requirements file and of the files it includes, each file once.

    Files in other formats (``pyproject.toml``, ``pylock.toml``) and URLs contribute no lines.
    Raises :class:`ResolveError` if a file is missing or not text, and :class:`UsageError`, with the
    line that includes it, if it is outside ``project``.
    """
    env = os.environ if environ is None else environ
    lines: list[RequirementLine] = []
    seen: set[Path] = set()
    pending: list[tuple[Path, Span | None]] = [(path, None)]
    with ProjectTree(project) as tree:
        while pending:
            named, where = pending.pop(0)
            current = Path(os.path.abspath(named))
            if current in seen or (current.suffix == ".toml" and not _is_conda_file(current)):
                continue
            seen.add(current)
            with attach_span(where):
                entries = list(_read_lines(tree, current, env))
            for entry in entries:
                lines.append(entry)
                if entry.option in ("--requirement", "--constraint") and "://" not in entry.value:
                    pending.append((current.parent / entry.value, _line_span(entry, project)))
    return tuple(lines)


def read_declared(
    packages: PythonPackages, project: Path, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[RequirementLine, Span]]:
    """Yield the names of ``packages`` as lines (number 0), then those of its requirements file.

    Variables are expanded in requirements files only: a build file may come from strangers, who
    must not learn their values through the address of an index.
    """
    build_file = project / "build.envd"  # paths are relative to its directory
    for name in packages.names:
        yield _parse_line(*_split_option(name.strip()), build_file, 0), packages.span
    if packages.requirements:
        with attach_span(packages.span if packages.span.line else None):
            entries = read_requirements(project / packages.requirements, project, environ)
        for entry in entries:
            yield entry, _line_span(entry, project)


def _line_span(entry: RequirementLine, project: Path) -> Span:
    return Span(os.path.relpath(entry.file, project), entry.line)


@contextmanager
def attach_span(where: Span | None) -> Iterator[None]:
    """Add the location ``where`` to errors that have none of their own."""
    try:
        yield
    except UsageError as error:
        error.span = error.span or where
        raise


def list_included_files(path: Path, project: Path) -> tuple[Path, ...]:
    """Return ``path`` and all files it includes, absolute, each once."""
    files = [Path(os.path.abspath(path))]
    for entry in read_requirements(path, project):
        if entry.option in ("--requirement", "--constraint") and "://" not in entry.value:
            other = Path(os.path.abspath(entry.file.parent / entry.value))
            if other not in files:
                files.append(other)
    return tuple(files)


def list_pylock_directories(path: Path, project: Path, *, editable: bool = False) -> list[Path]:
    """Return the directories that a ``pylock.toml`` installs packages from (PEP 751).

    With ``editable``, these are only the ones to be used in place.
    """
    try:
        with ProjectTree(project) as tree:
            packages = tomllib.loads(tree.read_text(path)).get("packages", [])
            entries = [package.get("directory") or {} for package in packages]
            if editable:
                entries = [entry for entry in entries if entry.get("editable") is True]
            return [path.parent / entry["path"] for entry in entries if "path" in entry]
    except (AttributeError, OSError, TypeError, ValueError):
        return []  # resolving reports it


def list_project_files(path: Path, project: Path) -> tuple[Path, ...]:
    """Return all project files that a requirements file refers to: files, wheels, directories.

    Raises :class:`UsageError` with the line for a path outside the project.
    """
    files = list(list_included_files(path, project))
    if path.suffix == ".toml":
        files += list_pylock_directories(path, project)
    for entry in read_requirements(path, project):
        if entry.option in ("", "--editable"):
            with attach_span(_line_span(entry, project)):
                place = resolve_in_project(parse_reference(entry.value, entry.file.parent), project)
            if place and place not in files:
                files.append(place)
    return tuple(files)


def resolve_in_project(reference: DirectReference | None, project: Path) -> Path | None:
    """Return the local path of a reference, or None if it has none.

    Raises :class:`UsageError` if it is outside ``project``, or leads there through a symlink.
    """
    if reference is None:
        return None
    place = reference.path or _local_repository(reference, project)
    if place is not None:
        with ProjectTree(project) as tree:
            tree.real_path(place)
    return reference.path


def _local_repository(reference: DirectReference, project: Path) -> Path | None:
    """Return the path of a local repository; None if git would contact a server."""
    location = reference.location
    if reference.kind not in ("git", "vcs"):
        return None
    if location.lower().startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    # As git(1) parses URLs: with a scheme, or a colon before the first slash, it is remote.
    if "://" in location or ":" in location.partition("/")[0]:
        return None
    return project / location


def declared_paths(declared: Iterable[PythonPackages], project: Path) -> tuple[Path, ...]:
    """Return all local files and directories that ``declared`` packages come from, sorted."""
    paths: set[Path] = set()
    for packages in declared:
        with attach_span(packages.span if packages.span.line else None):
            for name in (*_list_required(packages, project), *packages.local_wheels):
                place = resolve_in_project(parse_reference(name, project), project)
                if place:
                    paths.add(place)
            if packages.requirements:
                paths.update(list_project_files(project / packages.requirements, project))
            if packages.pyproject:
                paths.add(project / packages.pyproject)
            for known, _ in iter_uv_projects(packages, project):
                paths |= {known.path, known.workspace.path}
                if known.lock is not None:
                    paths.add(known.lock)
                    paths.update(path for path, _ in list_uv_lock_directories(known))
                paths.update(path for _, path in known.list_local_projects(groups=True))
    return tuple(sorted(paths))


def list_absent_locks(declared: Iterable[PythonPackages], project: Path) -> tuple[str, ...]:
    """Return where a ``uv.lock`` would decide the versions of ``declared`` packages, if it existed.

    The paths are relative to ``project``.
    """
    places = [
        known.workspace.directory / LOCK_NAME
        for packages in declared
        for known, is_declared in iter_uv_projects(packages, project)
        if is_declared and known.lock is None
    ]
    return tuple(sorted({os.path.relpath(place, os.path.abspath(project)) for place in places}))


def iter_uv_projects(packages: PythonPackages, project: Path) -> Iterator[tuple[UvProject, bool]]:
    """Yield the ``pyproject.toml`` files whose sources may apply to ``packages``, each once.

    These are the declared ones, those of directories that are installed, and of directories that
    the sources of these name. Each is with whether it is a declared one.
    """
    project = Path(os.path.abspath(project))
    declared = [project / name for name in (packages.pyproject,) if name]
    if _is_pyproject(packages.requirements):
        declared.append(project / packages.requirements)
    pending: list[Path] = []
    for entry, _ in read_declared(packages, project):
        if entry.option == "--requirement" and _is_pyproject(entry.value):
            declared.append(entry.file.parent / entry.value)
        elif entry.option in ("", "--editable"):
            reference = parse_reference(entry.value, entry.file.parent)
            if reference is not None and reference.kind == "directory" and reference.path:
                pending.append(reference.path / reference.subdirectory / "pyproject.toml")
    installed, seen = len(declared) + len(pending), set()
    pending = [*declared, *pending]
    for number, path in enumerate(pending):
        path = Path(os.path.abspath(path))
        if path in seen or not path.is_file():
            continue  # a missing file is reported when it is resolved
        seen.add(path)
        found = read_uv_project(path, project)
        yield found, number < len(declared)
        local = found.list_local_projects(groups=number < installed)
        pending += [place / "pyproject.toml" for _, place in local]


def _is_pyproject(name: str) -> bool:
    file = name.rpartition("/")[2]
    return file.endswith(".toml") and not file.startswith("pylock.")


def list_uv_lock_directories(project: UvProject) -> list[tuple[Path, bool]]:
    """Return the directories that the ``uv.lock`` of a project installs packages from.

    Each is with whether it is used in place. Directories of the project itself are left out.
    """
    if project.lock is None:
        return []
    table = read_pyproject(project.lock, project.project)
    found = []
    for package in table.get("package", ()) if isinstance(table.get("package"), list) else ():
        source = package.get("source") if isinstance(package, dict) else None
        for kind in ("editable", "directory", "virtual"):
            if isinstance(source, dict) and isinstance(source.get(kind), str):
                path = locate(project.lock.parent, source[kind])
                if kind != "virtual" and path not in (project.directory, project.lock.parent):
                    found.append((path, kind == "editable"))
    return found


def list_editable_paths(declared: Iterable[PythonPackages], project: Path) -> frozenset[Path]:
    """Return the directories, absolute, that ``declared`` packages are used from in place."""
    paths: set[Path] = set()
    for packages in declared:
        for entry, _ in read_declared(packages, project):
            if entry.option == "--editable":
                reference = parse_reference(entry.value, entry.file.parent)
                if reference is not None and reference.kind == "directory" and reference.path:
                    paths.add(reference.path)
        if packages.requirements.endswith(".toml"):
            file = project / packages.requirements
            paths.update(list_pylock_directories(file, project, editable=True))
        for known, _ in iter_uv_projects(packages, project):
            paths.update(path for path, in_place in list_uv_lock_directories(known) if in_place)
            for source, path in known.list_local_projects(groups=True):
                if source.kind == "workspace" if source.editable is None else source.editable:
                    paths.add(path)
    return frozenset(paths)


def _list_required(packages: PythonPackages, project: Path) -> list[str]:
    """Return the requirements among the names of ``packages``, without options."""
    lines = read_declared(replace(packages, requirements=""), project)
    return [entry.value for entry, _ in lines if entry.option in ("", "--editable")]


def urls_with_credentials(declared: Sequence[PythonPackages], project: Path) -> dict[str, str]:
    """Return the declared URLs with credentials, by the URL without them."""
    places = []
    for packages in declared:
        for entry, _ in read_declared(packages, project):
            if entry.option in ("", "--editable"):
                places.append(parse_reference(entry.value, entry.file.parent))
    urls = [place.location for place in places if place is not None and place.path is None]
    for packages in declared:
        for known, _ in iter_uv_projects(packages, project):
            sources = [source for items in known.sources.values() for source, _ in items]
            urls += [source.git.removeprefix("git+") or source.url for source in sources]
    by_plain_url = {strip_credentials(url): url for url in urls}
    return {plain: url for plain, url in by_plain_url.items() if plain != url}


def _local_path(text: str, base: Path) -> Path | None:
    """Return the path that ``text`` denotes, or None if it is not a path."""
    if text.startswith("file:"):
        return Path(unquote(urlsplit(text).path))
    if "://" in text:
        return None
    path = Path(os.path.expanduser(text))
    plain = text.startswith((".", "/", "~")) or os.sep in text or text.endswith(".whl")
    if plain or text.lower().endswith(_ARCHIVES):
        return Path(os.path.normpath(base / path))
    return None


def parse_reference(requirement: str, base: Path) -> DirectReference | None:
    """Return the direct reference in a requirement, or None for an ordinary ``name>=version``.

    ``base`` is the directory for relative paths.
    """
    text, _, marker = requirement.partition(" ;")
    named = _NAMED_REFERENCE.fullmatch(text)
    name, extras, place = (named[1], named[2] or "", named[3]) if named else ("", "", text)
    place = place.strip()
    place, _, fragment = place.partition("#")
    options = dict(part.split("=", 1) for part in fragment.split("&") if "=" in part)
    name = name or options.get("egg", "").partition("[")[0]
    common = {"marker": marker.strip(), "subdirectory": options.get("subdirectory", "")}
    if match := _VCS.match(place):
        return _parse_repository(place[match.end() :], match[1], name, extras, common)
    if not named and (match_extras := re.fullmatch(r"(.*?[^\s])(\[[^\]]*\])", place)):
        place, extras = match_extras[1], match_extras[2]
    path = _local_path(place, base)
    if path is None and "://" not in place:
        return None
    kind = classify_file(path.name if path else unquote(urlsplit(place).path))
    if kind == "directory" and path is None:
        kind = "archive"
    return DirectReference(name, extras, kind, place, path, **common)


def classify_file(name: str) -> Literal["wheel", "archive", "directory"]:
    """Return what a path with this name denotes."""
    if name.endswith(".whl"):
        return "wheel"
    return "archive" if name.lower().endswith(_ARCHIVES) else "directory"


def _parse_repository(
    address: str, kind: str, name: str, extras: str, common: Mapping[str, str]
) -> DirectReference:
    """Parse a VCS URL ``https://host/repo@ref``; its user part can contain an ``@``, too."""
    head, slash, tail = address.rpartition("/")
    tail, _, reference = tail.partition("@")
    return DirectReference(
        name,
        extras,
        "git" if kind == "git" else "vcs",
        head + slash + tail,
        marker=common["marker"],
        reference=reference,
        subdirectory=common["subdirectory"],
    )


FORMAT_OPTIONS = frozenset({"--no-binary", "--only-binary"})

_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?")


class FormatControl(msgspec.Struct, frozen=True):
    """Packages, or ``:all:``, that must not be wheels and that must be nothing else.

    These are pip's options ``--no-binary`` and ``--only-binary`` (pip documentation, "pip
    install"): the later option wins, ``:all:`` means every package, ``:none:`` resets the same
    option, and a name takes precedence over ``:all:``. Names are normalised.
    """

    no_binary: frozenset[str] = frozenset()
    only_binary: frozenset[str] = frozenset()

    def with_option(self, option: str, value: str) -> FormatControl:
        """Return the result of adding one more of :data:`FORMAT_OPTIONS`.

        ``value`` is a comma-separated list of names. Raises :class:`ValueError` with an invalid
        name.
        """
        sets = {"--no-binary": set(self.no_binary), "--only-binary": set(self.only_binary)}
        (opposite,) = FORMAT_OPTIONS - {option}
        for name in value.split(","):
            _apply_name(name.strip(), sets[option], sets[opposite])
        return FormatControl(frozenset(sets["--no-binary"]), frozenset(sets["--only-binary"]))

    def allows(self, name: str, *, wheel: bool) -> bool:
        """Return whether a package (normalised name) may be a wheel, or a source distribution."""
        forbidden, other = self.no_binary, self.only_binary
        if not wheel:
            forbidden, other = other, forbidden
        return name not in forbidden and (":all:" not in forbidden or name in other)

    def to_options(self) -> list[str]:
        """Return the same options for uv, which follows pip's rules within one call."""
        return [
            *(word for name in sorted(self.no_binary) for word in ("--no-binary", name)),
            *(word for name in sorted(self.only_binary) for word in ("--only-binary", name)),
        ]


ANY_FORMAT = FormatControl()


def _apply_name(name: str, target: set[str], opposite: set[str]) -> None:
    if name == ":none:":
        target.clear()
    elif name == ":all:":
        target.clear()
        opposite.clear()
        target.add(name)
    elif _NAME.fullmatch(name):
        opposite.discard(normalize_name(name))
        target.add(normalize_name(name))
    else:
        raise ValueError(name)
