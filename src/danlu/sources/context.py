"""The project's files: which of them count, and digests of what they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from danlu.errors import UsageError

__all__ = ["IGNORE_FILES", "Member", "digest_of_members", "digest_of_path", "members_of"]

#: The first of these that is there says which files of a project do not count.
IGNORE_FILES = (".danluignore", ".dockerignore", ".gitignore")

#: Never part of a context, whatever the ignore file says.
_ALWAYS = frozenset({".git"})

_CHUNK = 1 << 20


class Member(msgspec.Struct, frozen=True):
    """One file, link or directory: ``path`` in the project, ``inside`` what it is copied from.

    ``alone`` is true where the source named this very file.
    """

    path: str
    inside: str
    alone: bool = False


def members_of(project: Path, source: str) -> list[Member]:
    """What ``source`` (a file, a directory or a pattern, relative to ``project``) names, sorted.

    A named file or link counts even if an ignore file excludes it; below directories ignored files
    do not count. Raises :class:`UsageError` where nothing is there or it lies outside the project.
    """
    path = Path(os.path.normpath(project / source))
    if path != project and project not in path.parents:
        raise UsageError(
            f"{source} is outside the project {project.name}", hint="copy from below the build file"
        )
    if os.path.lexists(path):
        return _named(project, path)
    matches = sorted(project.glob(source.removeprefix("./"))) if _is_pattern(source) else []
    if not matches:
        raise UsageError(f"there is no {source} in the project")
    ignored = _ignored(project)
    members = [one for match in matches for one in _below_or_self(project, match, ignored)]
    return sorted(members, key=lambda one: one.inside)


def _is_pattern(source: str) -> bool:
    return any(mark in source for mark in "*?[")


def _named(project: Path, path: Path) -> list[Member]:
    if path.is_dir() and not path.is_symlink():
        return list(_below(project, path, path, _ignored(project)))
    return [Member(str(path.relative_to(project)), path.name, alone=True)]


def _below_or_self(
    project: Path, match: Path, ignored: Callable[[str, bool], bool]
) -> Iterator[Member]:
    relative = str(match.relative_to(project))
    if ignored(relative, match.is_dir()):
        return
    yield Member(relative, match.name)
    if match.is_dir() and not match.is_symlink():
        yield from _below(project, match, match.parent, ignored)


def _below(
    project: Path, directory: Path, start: Path, ignored: Callable[[str, bool], bool]
) -> Iterator[Member]:
    for entry in sorted(os.scandir(directory), key=lambda one: one.name):
        path = Path(entry.path)
        relative = str(path.relative_to(project))
        is_dir = entry.is_dir(follow_symlinks=False)
        if entry.name in _ALWAYS or ignored(relative, is_dir):
            continue
        if not (is_dir or entry.is_symlink() or entry.is_file()):
            continue
        yield Member(relative, str(path.relative_to(start)))
        if is_dir:
            yield from _below(project, path, start, ignored)


def _ignored(project: Path) -> Callable[[str, bool], bool]:
    """A predicate over (path in the project, is a directory)."""
    for name in IGNORE_FILES:
        file = project / name
        if file.is_file():
            return _predicate(file.read_text().splitlines(), anchored=name == ".dockerignore")
    return lambda path, is_dir: False


def _predicate(lines: list[str], *, anchored: bool) -> Callable[[str, bool], bool]:
    import pathspec

    if anchored:
        lines = [_anchor(line) for line in lines]
    spec = pathspec.GitIgnoreSpec.from_lines(lines)
    return lambda path, is_dir: spec.match_file(f"{path}/" if is_dir else path)


def _anchor(line: str) -> str:
    """A line of .dockerignore, whose patterns start at the root, as one of .gitignore."""
    text = line.strip()
    if not text or text.startswith("#"):
        return line
    negated = text.startswith("!")
    return ("!" if negated else "") + "/" + text.lstrip("!").strip().lstrip("/")


def digest_of_members(project: Path, members: list[Member]) -> str:
    """``sha256:…`` over names, kinds, executable bits, link targets and content, not over times."""
    digest = hashlib.sha256()
    for member in members:
        path = project / member.path
        kind, content = _content(path)
        digest.update(f"{kind}\0{member.inside}\0".encode() + content)
    return "sha256:" + digest.hexdigest()


def _content(path: Path) -> tuple[str, bytes]:
    if path.is_symlink():
        return "link", os.readlink(path).encode() + b"\0"
    if path.is_dir():
        return "dir", b""
    executable = "x" if path.stat().st_mode & 0o100 else "-"
    return f"file{executable}", _hash_file(path)


def _hash_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.digest()


def digest_of_path(project: Path, source: str) -> str:
    """The digest of what ``source`` names in ``project``."""
    return digest_of_members(project, members_of(project, source))
