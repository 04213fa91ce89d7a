"""Parse requirements files as pip does, as far as danlu must understand them before uv does.

uv parses the files itself when it resolves. This parser only finds what decides *where* that may
happen and which other files belong to the build. Its rules are those of pip's ``req_file.py`` and
``req/constructors.py``; what pip drops without a word is refused.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from getopt import GetoptError, gnu_getopt
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from danlu.environment.package_names import normalize_name
from danlu.environment.types import PythonPackages
from danlu.errors import ChecksumError, ResolveError, Span, UsageError
from danlu.sources.pypi.uv_project import (
    LOCK_NAME,
    UvProject,
    locate,
    read_pyproject,
    read_uv_project,
)
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import mask_credentials, strip_credentials

#: The options of a line for :mod:`getopt`, which completes abbreviations as pip's parser does.
_SHORT_OPTIONS = "r:c:e:i:f:C:"
_LONG_OPTIONS = (
    *("requirement=", "constraint=", "editable=", "index-url=", "pypi-url=", "extra-index-url="),
    *("find-links=", "no-index", "trusted-host=", "no-binary=", "only-binary=", "prefer-binary"),
    *("pre", "require-hashes", "use-feature=", "hash=", "config-settings="),
    *("no-require-hashes", "all-releases=", "only-final=", "global-option="),
)
_OPTION_NAMES = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-i": "--index-url",
    "--pypi-url": "--index-url",
    "-f": "--find-links",
    "-C": "--config-settings",
}
_INCLUDING = ("--requirement", "--constraint")
_OF_REQUIREMENTS = ("--hash", "--config-settings")

#: No project has more; each file that includes the next one twice would double the work.
_MAX_INCLUDED_FILES = 200

#: The order matters: the mark of UTF-16 is the start of that of UTF-32.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CODING_LINE = re.compile(rb"#.*?coding[:=]\s*([-\w.]+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_URL = re.compile(r"(https?|ftp|file|(git|hg|svn|bzr)(\+[a-z]+)?):", re.IGNORECASE)
_VCS = re.compile(r"(git|hg|svn|bzr)\+")
_NAMED_REFERENCE = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*@\s*(.+)", re.DOTALL)
_FRAGMENT_HASH = re.compile(r"[#&](sha512|sha384|sha256|sha224|sha1|md5)=([^&]*)")
_ARCHIVES = (
    *(".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tbz"),
    *(".tar.xz", ".txz", ".tlz", ".tar.lz", ".tar.zst", ".tar", ".tar.lzma"),
)


class RequirementLine(msgspec.Struct, frozen=True):
    """An option (``--index-url``) with its value, or a requirement (no option).

    ``file`` and ``line`` are its location (first physical line), ``base`` the directory that a path
    in a requirement is relative to. ``hashes`` are the requirement's ``--hash`` options
    (``sha256:…``), ``settings`` the names of its other options. ``constraint`` says that it is in a
    file included with ``-c``.
    """

    option: str
    value: str
    file: Path
    line: int
    base: Path
    hashes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    constraint: bool = False

    @property
    def included_file(self) -> Path | None:
        """The file that the line includes; None for other lines and for URLs."""
        if self.option not in _INCLUDING or "://" in self.value:
            return None
        return Path(os.path.abspath(self.file.parent / self.value))


class DirectReference(msgspec.Struct, frozen=True):
    """A requirement that specifies a location instead of a version (PEP 440, "Direct
    references").

    ``name`` is empty if the user gave none. ``kind`` is what is at the location: a wheel, an
    archive (source distribution), a directory, or a repository. ``location`` is the URL, or the
    path as written; ``path`` is its absolute form if it is local. ``hashes`` (``sha256:…``) are
    those in the fragment of the URL.
    """

    name: str
    extras: str
    kind: Literal["wheel", "archive", "directory", "git", "vcs"]
    location: str
    path: Path | None = None
    marker: str = ""
    reference: str = ""
    subdirectory: str = ""
    hashes: tuple[str, ...] = ()


def _decode_text(data: bytes) -> str:
    """Decode by mark, by a line as in PEP 263, or as UTF-8.

    pip's last resort is the locale, which is another one on another machine.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding)
    for line in data.split(b"\n")[:2]:
        if match := _CODING_LINE.match(line):
            return data.decode(match[1].decode("ascii"))
    return data.decode()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments, joined at backslashes, with the number of the first one."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if parts else number
        is_comment = _COMMENT.match(line)
        if line.endswith("\\") and not is_comment:
            parts.append(line.strip("\\"))
            continue
        # The blank makes the end of a joined line a comment.
        yield first, "".join((*parts, f" {line}" if is_comment else line))
        parts = []
    if parts:
        yield first, "".join(parts)


def _expand_variables(text: str, environ: Mapping[str, str]) -> str:
    for name in _VARIABLE.findall(text):
        text = text.replace(f"${{{name}}}", environ.get(name) or f"${{{name}}}")
    return text


def list_variables(text: str) -> list[str]:
    """Return the names of the variables that ``text`` still contains: those that are not set."""
    return _VARIABLE.findall(text)


def _parse_line(line: str, file: Path, number: int, base: Path) -> list[RequirementLine]:
    """Parse a logical line: options, or a requirement that may have options."""

    def refuse(problem: str, hint: str = "") -> ResolveError:
        message = mask_credentials(f"cannot read requirement {line!r}: {problem}")
        return ResolveError(message, hint=hint)

    # Options start at a blank and a dash: markers before them have quotes of their own.
    text, dash, rest = f" {line}".partition(" -")
    text = text.strip()
    try:
        found, more = gnu_getopt(shlex.split(dash + rest), _SHORT_OPTIONS, [*_LONG_OPTIONS])
    except (GetoptError, ValueError) as error:
        raise refuse(str(error)) from error
    options = [(_OPTION_NAMES.get(name, name), value) for name, value in found]
    names = [name for name, _ in options]
    if more:
        raise refuse(f"pip ignores {more[0]!r} after an option", "quote a value that has blanks")
    editable = "--editable" in names
    if text or editable:
        if editable and names.count("--editable") + bool(text) > 1:
            raise refuse("pip reads one requirement only", "write one per line")
        value = text or dict(options)["--editable"]
        if editable and _NAME.match(value) and (base / value.partition("[")[0]).is_dir():
            value = f"./{value}"  # a name, as in the other lines, if there is no such directory
        others = tuple(name for name in names if name != ("--editable" if editable else "--hash"))
        hashes = tuple(value for name, value in options if name == "--hash" and not editable)
        option = "--editable" if editable else ""
        return [RequirementLine(option, value, file, number, base, hashes, others)]
    if len(options) > 1 and {*names} & {*_INCLUDING, *_OF_REQUIREMENTS}:
        raise refuse("pip reads one of these options only", "write them on lines of their own")
    if names.count("--find-links") > 1:
        raise refuse("pip reads the first --find-links only", "write one per line")
    return [RequirementLine(name, value, file, number, base) for name, value in options]


def read_lines(
    file: Path,
    base: Path,
    environ: Mapping[str, str],
    read: Callable[[Path], bytes],
    *,
    shown: Callable[[Path], str] = str,
) -> Iterator[RequirementLine]:
    """Yield the lines of a requirements file and of those that it includes, in pip's order.

    A line that includes a file is followed by that file's lines. ``read`` returns the content of a
    file, ``shown`` its path as in messages. Files in other formats (``pyproject.toml``,
    ``pylock.toml``) and URLs contribute no lines. Raises :class:`ResolveError` with the line.
    """
    included = 0

    def follow(
        file: Path, base: Path, where: Span | None, outer: tuple[Path, ...], constraint: bool
    ) -> Iterator[RequirementLine]:
        nonlocal included
        is_conda = file.suffix in (".yml", ".yaml")
        if file.suffix == ".toml":
            return
        included += 1
        if file in outer or included > _MAX_INCLUDED_FILES:
            raise ResolveError(f"requirements file {shown(file)} includes itself", span=where)
        with attach_span(where):
            numbered = _read_logical_lines(file, read, shown)
        # conda runs pip in the directory of its file.
        base = file.parent if is_conda else base
        for number, line in numbered:
            line = _expand_variables(_COMMENT.sub("", line).strip(), environ)
            span = Span(shown(file), number)
            with attach_span(span):
                entries = _parse_line(line, file, number, base) if line else ()
            for entry in entries:
                yield replace(entry, constraint=constraint)
                if entry.included_file is not None:
                    nested = entry.option == "--constraint"
                    yield from follow(entry.included_file, base, span, (*outer, file), nested)

    yield from follow(Path(os.path.abspath(file)), base, None, (), constraint=False)


def _read_logical_lines(
    file: Path, read: Callable[[Path], bytes], shown: Callable[[Path], str]
) -> list[tuple[int, str]]:
    try:
        data = read(file)
        text = _decode_text(data)
    except FileNotFoundError:
        raise ResolveError(f"requirements file {shown(file)} not found") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResolveError(f"cannot read requirements file {shown(file)}: {reason}") from error
    except (UnicodeDecodeError, LookupError) as error:
        start = getattr(error, "start", 0)
        raise ResolveError(
            f"{shown(file)} is not UTF-8: {error}",
            span=Span(shown(file), data[:start].count(b"\n") + 1),
            hint="convert it, for example with `iconv -t UTF-8`",
        ) from error
    if file.suffix in (".yml", ".yaml"):
        from danlu.sources.environment_file import parse_environment_file  # few projects have one

        return list(parse_environment_file(text, file.name).pip)
    return list(_logical_lines(text))


def read_requirements(
    path: Path, project: Path, environ: Mapping[str, str] | None = None
) -> tuple[RequirementLine, ...]:
    """Return all lines of a requirements file and of the files it includes, in pip's order.

    Paths of requirements are relative to ``project``, which is where pip would run. Raises
    :class:`ResolveError` if a file is missing, not text or invalid, and :class:`UsageError`, with
    the line that includes it, if it is outside ``project``.
    """
    env = os.environ if environ is None else environ
    root = Path(os.path.abspath(project))
    with ProjectTree(project) as tree:
        lines = read_lines(
            path, root, env, tree.read_bytes, shown=lambda file: os.path.relpath(file, root)
        )
        return tuple(lines)


def read_declared(
    packages: PythonPackages, project: Path, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[RequirementLine, Span]]:
    """Yield the names of ``packages`` as lines (number 0), then those of its requirements file.

    Variables are expanded in requirements files only: a build file may come from strangers, who
    must not learn their values through the address of an index.
    """
    for name in packages.names:
        with attach_span(packages.span if packages.span.line else None):
            entries = _parse_line(name.strip(), project / "build.envd", 0, project)
        for entry in entries:
            yield entry, packages.span
    if packages.requirements:
        with attach_span(packages.span if packages.span.line else None):
            lines = read_requirements(project / packages.requirements, project, environ)
        for entry in lines:
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


def iter_references(
    packages: PythonPackages, project: Path
) -> Iterator[tuple[RequirementLine, Span | None, DirectReference]]:
    """Yield the lines of :func:`read_declared` that refer to a location, with their references."""
    for entry, where in read_declared(packages, project):
        if entry.option in ("", "--editable"):
            span = where if where.line else None
            with attach_span(span):
                reference = parse_reference(entry.value, entry.base)
            if reference is not None:
                yield entry, span, reference


def _list_pylock_directories(path: Path, project: Path, *, editable: bool = False) -> list[Path]:
    """Return the directories that a ``pylock.toml`` installs packages from (PEP 751).

    With ``editable``, these are only the ones to be used in place.
    """
    if path.suffix != ".toml":
        return []
    try:
        with ProjectTree(project) as tree:
            packages = tomllib.loads(tree.read_text(path)).get("packages", [])
            entries = [package.get("directory") or {} for package in packages]
            if editable:
                entries = [entry for entry in entries if entry.get("editable") is True]
            return [path.parent / entry["path"] for entry in entries if "path" in entry]
    except (AttributeError, OSError, TypeError, ValueError):
        return []  # resolving reports it


def confine_reference(reference: DirectReference, project: Path) -> None:
    """Raise :class:`UsageError` if a local path is outside ``project``, or leads there through a
    symlink.
    """
    place = reference.path or _local_repository(reference, project)
    if place is not None:
        with ProjectTree(project) as tree:
            tree.real_path(place)


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
            for entry, _ in read_declared(packages, project):
                if entry.included_file:
                    paths.add(entry.included_file)
            found = [(span, reference) for _, span, reference in iter_references(packages, project)]
            for wheel in packages.local_wheels:
                reference = parse_reference(wheel, project)
                found += [(None, reference)] if reference else []
            for span, reference in found:
                with attach_span(span):
                    confine_reference(reference, project)
                if reference.path:
                    paths.add(reference.path)
            if packages.requirements:
                file = Path(os.path.abspath(project / packages.requirements))
                paths |= {file, *_list_pylock_directories(file, project)}
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
        if entry.option == "--requirement" and entry.included_file and _is_pyproject(entry.value):
            declared.append(entry.included_file)
    for _, _, reference in iter_references(packages, project):
        if reference.kind == "directory" and reference.path:
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
        for entry, _, reference in iter_references(packages, project):
            if entry.option and reference.kind == "directory" and reference.path:
                paths.add(reference.path)
        file = project / packages.requirements
        paths.update(_list_pylock_directories(file, project, editable=True))
        for known, _ in iter_uv_projects(packages, project):
            paths.update(path for path, in_place in list_uv_lock_directories(known) if in_place)
            for source, path in known.list_local_projects(groups=True):
                if source.kind == "workspace" if source.editable is None else source.editable:
                    paths.add(path)
    return frozenset(paths)


def urls_with_credentials(declared: Sequence[PythonPackages], project: Path) -> dict[str, str]:
    """Return the declared URLs with credentials, by the URL without them."""
    urls = []
    for packages in declared:
        urls += [place.location for _, _, place in iter_references(packages, project)]
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


def split_marker(requirement: str) -> tuple[str, str]:
    """Return a requirement without its environment marker, and the marker.

    A bare URL may contain semicolons: its marker starts after a blank.
    """
    text, _, marker = requirement.partition("; " if _URL.match(requirement) else ";")
    return text.strip(), marker.strip()


def parse_reference(requirement: str, base: Path) -> DirectReference | None:
    """Return the direct reference in a requirement, or None for an ordinary ``name>=version``.

    ``base`` is the directory for relative paths. Raises :class:`ResolveError` for a fragment that
    pip refuses.
    """
    text, marker = split_marker(requirement)
    named = _NAMED_REFERENCE.fullmatch(text)
    name, extras, place = (named[1], named[2] or "", named[3]) if named else ("", "", text)
    address = place.strip()
    if not named and "://" in text and not _URL.match(text):
        return None  # invalid, which is reported where it is parsed
    if re.search(r"\s", address) and (named or _URL.match(text)):
        raise ResolveError(f"{mask_credentials(requirement)!r}: a URL cannot contain blanks")
    place, _, fragment = address.partition("#")
    options = dict(part.split("=", 1) for part in fragment.split("&") if "=" in part)
    egg = options.get("egg", "")
    if egg and not _NAME.fullmatch(egg):
        raise ResolveError(
            f"{mask_credentials(requirement)}: invalid fragment egg={egg}",
            hint="write the name, and extras, in front: NAME[EXTRA] @ URL",
        )
    found = _FRAGMENT_HASH.search(address)
    reference = DirectReference(
        name or egg,
        extras,
        "vcs",
        place,
        marker=marker,
        subdirectory=options.get("subdirectory", ""),
        hashes=(f"{found[1]}:{found[2].lower()}",) if found else (),
    )
    if match := _VCS.match(place):
        return _parse_repository(place[match.end() :], match[1], reference)
    if not named and (match_extras := re.fullmatch(r"(.*?[^\s])(\[[^\]]*\])", place)):
        place, extras = match_extras[1], match_extras[2]
    path = _local_path(place, base)
    if path is None and "://" not in place:
        return None
    kind = classify_file(path.name if path else unquote(urlsplit(place).path))
    if kind == "directory" and path is None:
        kind = "archive"
    return replace(reference, extras=extras, kind=kind, location=place, path=path)


def classify_file(name: str) -> Literal["wheel", "archive", "directory"]:
    """Return what a path with this name denotes."""
    if name.endswith(".whl"):
        return "wheel"
    return "archive" if name.lower().endswith(_ARCHIVES) else "directory"


def _parse_repository(address: str, kind: str, reference: DirectReference) -> DirectReference:
    """Parse a VCS URL ``https://host/repo@ref``; the user part can contain an ``@``, too."""
    scheme, delimiter, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    path, at, commit = path.rpartition("@") if "@" in path else (path, "", "")
    if at and not commit:
        raise ResolveError(
            f"{mask_credentials(address)} has an empty revision after @", hint="remove the @"
        )
    return replace(
        reference,
        kind="git" if kind == "git" else "vcs",
        location="".join((scheme, delimiter, host, slash, path)),
        reference=unquote(commit),
    )


def check_hashes(file: BinaryIO, hashes: Iterable[str], name: str, where: Span | None) -> None:
    """Raise :class:`ChecksumError` unless a file has one of ``hashes`` (``ALGORITHM:DIGEST``)."""
    expected = [*hashes]
    for text in expected:
        algorithm, _, digest = text.partition(":")
        file.seek(0)
        found = hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]
        if found == digest.lower():
            return
    if expected:
        raise wrong_hash(name, expected, where)


def wrong_hash(name: str, expected: Iterable[str], where: Span | None) -> ChecksumError:
    """Return the error about a file with another hash than the user wrote."""
    return ChecksumError(
        f"{mask_credentials(name)} does not have the hash {' or '.join(expected)}",
        span=where,
        hint="check where the file comes from, or correct the hash",
    )


def check_constraint(entry: RequirementLine, where: Span | None = None) -> None:
    """Raise :class:`ResolveError` for a line of a constraints file that pip refuses."""
    problem = ""
    if entry.option == "--editable":
        problem = "editable requirements are not allowed as constraints"
    elif not entry.option and "[" in split_marker(entry.value)[0].partition("@")[0]:
        problem = "constraints cannot have extras"
    if problem:
        raise ResolveError(
            f"{mask_credentials(entry.value)}: {problem}",
            span=where,
            hint="write it in a requirements file",
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
