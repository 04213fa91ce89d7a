"""Requirements files, read as far as danlu must know before uv does: options, files, addresses.

uv parses the files itself when it resolves; this reader only finds what decides *where* that may
run and what else belongs to the build (pip documentation, "Requirements File Format").
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import msgspec

from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError

__all__ = [
    "Entry",
    "Reference",
    "drawn_in",
    "included_files",
    "project_files",
    "read_requirements",
    "reference_of",
]

_OPTIONS = {
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
_NAMED = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*@\s*(.+)", re.DOTALL)
_ARCHIVES = (
    *(".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tbz"),
    *(".tar.xz", ".tar.zst", ".tar", ".tar.lzma"),
)


class Entry(msgspec.Struct, frozen=True):
    """One logical line: an option (``--index-url``) with its value, or a requirement (no option).

    ``file`` is the file that has it, ``line`` the number of its first physical line; ``hashes`` are
    the requirement's ``--hash`` options (``sha256:…``), ``settings`` the names of its others.
    """

    option: str
    value: str
    file: Path
    line: int
    hashes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


class Reference(msgspec.Struct, frozen=True):
    """A requirement that names a place instead of a version.

    ``name`` is empty where the user gave none. ``kind`` says what is there: a wheel, an archive
    (a source distribution), a directory, or a repository. ``location`` is the URL, or the path as
    it was written; ``path`` its absolute form for things of this machine.
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


def _expand(text: str, environ: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: environ.get(match[1]) or match[0], text)


def _split(line: str) -> tuple[str, str]:
    """The option (long form, or empty for a requirement) and its value."""
    if not line.startswith("-"):
        return "", line
    match = re.match(r"(--[\w-]+|-[a-zA-Z])(?:\s*=\s*|\s+|(?=[^\s-]))?(.*)", line)
    assert match is not None
    value = match[2].strip()
    try:
        words = shlex.split(value)
    except ValueError:
        words = [value]
    return _OPTIONS.get(match[1], match[1]), words[0] if len(words) == 1 else value


def _entries(path: Path, environ: Mapping[str, str]) -> Iterator[Entry]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ResolveError(f"the requirements file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ResolveError(f"the requirements file {path} cannot be read: {error}") from error
    for number, line in _logical_lines(text):
        line = _expand(re.sub(r"(^|\s)#.*$", "", line).strip(), environ)
        if line:
            yield _entry(*_split(line), path, number)


def _entry(option: str, text: str, path: Path, number: int) -> Entry:
    """The entry of a line; what follows a requirement are its own options."""
    if option not in ("", "--editable"):
        return Entry(option, text, path, number)
    value = _OWN_OPTION.split(text, maxsplit=1)[0].strip()
    own = text[len(value) :]
    hashes = tuple(re.findall(r"--hash[=\s]+(sha256:[0-9a-fA-F]{64})", own))
    settings = tuple(name for name in _OWN_OPTION.findall(own) if name != "--hash")
    return Entry(option, value, path, number, hashes, settings)


def read_requirements(path: Path, environ: Mapping[str, str] | None = None) -> tuple[Entry, ...]:
    """All entries of a requirements file and of the files it includes, each file once.

    Files of other formats (``pyproject.toml``, ``pylock.toml``) and addresses have no entries.
    Raises :class:`ResolveError` where a file is missing or is not text.
    """
    env = os.environ if environ is None else environ
    found: list[Entry] = []
    seen: set[Path] = set()
    pending = [path]
    while pending:
        current = Path(os.path.abspath(pending.pop(0)))
        if current in seen or current.suffix == ".toml":
            continue
        seen.add(current)
        for entry in _entries(current, env):
            found.append(entry)
            if entry.option in ("--requirement", "--constraint") and "://" not in entry.value:
                pending.append(current.parent / entry.value)
    return tuple(found)


def included_files(path: Path) -> tuple[Path, ...]:
    """``path`` and every requirements or constraints file it includes, absolute, each once."""
    files = [Path(os.path.abspath(path))]
    for entry in read_requirements(path):
        if entry.option in ("--requirement", "--constraint") and "://" not in entry.value:
            other = Path(os.path.abspath(entry.file.parent / entry.value))
            if other not in files:
                files.append(other)
    return tuple(files)


def project_files(path: Path) -> tuple[Path, ...]:
    """Everything on this machine that a requirements file draws in: files, wheels, directories."""
    files = list(included_files(path))
    for entry in read_requirements(path):
        if entry.option in ("", "--editable"):
            reference = reference_of(entry.value, entry.file.parent)
            if reference and reference.path and reference.path not in files:
                files.append(reference.path)
    return tuple(files)


def drawn_in(declared: Iterable[PythonPackages], project: Path) -> tuple[Path, ...]:
    """All files and directories of this machine that ``declared`` packages come from, sorted."""
    found: set[Path] = set()
    for packages in declared:
        for name in (*packages.names, *packages.local_wheels):
            reference = reference_of(name.removeprefix("-e ").strip(), project)
            if reference and reference.path:
                found.add(reference.path)
        if packages.requirements:
            found.update(project_files(project / packages.requirements))
    return tuple(sorted(found))


def _local(text: str, base: Path) -> Path | None:
    """The path that ``text`` names, if it is one."""
    if text.startswith("file:"):
        return Path(unquote(urlsplit(text).path))
    if "://" in text:
        return None
    path = Path(os.path.expanduser(text))
    plain = text.startswith((".", "/", "~")) or os.sep in text or text.endswith(".whl")
    if plain or text.lower().endswith(_ARCHIVES):
        return Path(os.path.normpath(base / path))
    return None


def reference_of(requirement: str, base: Path) -> Reference | None:
    """What place a requirement names, or None for an ordinary ``name>=version``.

    ``base`` is the directory that relative paths start from.
    """
    text, _, marker = requirement.partition(" ;")
    named = _NAMED.fullmatch(text)
    name, extras, place = (named[1], named[2] or "", named[3]) if named else ("", "", text)
    place = place.strip()
    place, _, fragment = place.partition("#")
    options = dict(part.split("=", 1) for part in fragment.split("&") if "=" in part)
    name = name or options.get("egg", "").partition("[")[0]
    common = {"marker": marker.strip(), "subdirectory": options.get("subdirectory", "")}
    if match := _VCS.match(place):
        return _repository(place[match.end() :], match[1], name, extras, common)
    if not named and (match_extras := re.fullmatch(r"(.*?[^\s])(\[[^\]]*\])", place)):
        place, extras = match_extras[1], match_extras[2]
    path = _local(place, base)
    if path is None and "://" not in place:
        return None
    file = path.name if path else unquote(urlsplit(place).path)
    kind: Literal["wheel", "archive", "directory"] = "archive"
    if file.endswith(".whl"):
        kind = "wheel"
    elif path is not None and not file.lower().endswith(_ARCHIVES):
        kind = "directory"
    return Reference(name, extras, kind, place, path, **common)


def _repository(
    address: str, kind: str, name: str, extras: str, common: Mapping[str, str]
) -> Reference:
    """A version control address: ``https://host/repo@ref``; the user part may hold an ``@`` too."""
    head, slash, tail = address.rpartition("/")
    tail, _, reference = tail.partition("@")
    return Reference(
        name,
        extras,
        "git" if kind == "git" else "vcs",
        head + slash + tail,
        marker=common["marker"],
        reference=reference,
        subdirectory=common["subdirectory"],
    )
