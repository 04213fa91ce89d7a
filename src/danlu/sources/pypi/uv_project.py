"""Read what uv knows about a project: sources of its dependencies, its workspace, its indexes.

Rules are those of uv's documentation: "Dependency sources", "Using workspaces", "Package indexes".
Everything here only reads files of the project; which requirements apply is decided elsewhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from danlu.environment.package_names import normalize_name, requirement_name
from danlu.errors import ResolveError, Span, UsageError
from danlu.util.decoding import convert_value
from danlu.util.safe_paths import ProjectTree

LOCK_NAME = "uv.lock"


class UvSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of ``[tool.uv.sources]``: exactly one of git, url, path, index and workspace.

    ``marker``, ``extra`` and ``group`` limit it to some requirements. ``editable`` and ``package``
    are None if the entry does not say.
    """

    git: str = ""
    url: str = ""
    path: str = ""
    index: str = ""
    workspace: bool = False
    rev: str = ""
    tag: str = ""
    branch: str = ""
    subdirectory: str = ""
    editable: bool | None = None
    package: bool | None = None
    marker: str = ""
    extra: str = ""
    group: str = ""

    @property
    def kind(self) -> Literal["git", "url", "path", "index", "workspace"]:
        """The field that says where the package comes from."""
        if self.workspace:
            return "workspace"
        for name in ("git", "url", "path"):
            if getattr(self, name):
                return name
        return "index"


class UvIndex(msgspec.Struct, frozen=True, rename="kebab"):
    """An entry of ``[[tool.uv.index]]``. ``url`` may be a path relative to its file."""

    url: str
    name: str = ""
    explicit: bool = False
    default: bool = False
    format: str = "simple"
    ignore_error_codes: tuple[int, ...] = ()


@dataclass(frozen=True)
class UvProject:
    """A ``pyproject.toml`` of ``project``, which is danlu's, and its workspace root if there is
    one.
    """

    path: Path
    document: Mapping[str, Any]
    project: Path
    root: UvProject | None = None

    @property
    def directory(self) -> Path:
        """The directory of the file."""
        return self.path.parent

    @property
    def place(self) -> str:
        """The file's path relative to danlu's project."""
        return os.path.relpath(self.path, self.project)

    @property
    def name(self) -> str:
        """The normalised name of the package; empty if it has none."""
        return normalize_name(str(self._read_table("project").get("name", "")))

    @property
    def is_package(self) -> bool:
        """Whether uv installs it when something depends on it."""
        return self.uv_table.get("package") is not False

    @cached_property
    def workspace(self) -> UvProject:
        """The project with the workspace's table, which may be this one."""
        return self.root or self

    @cached_property
    def sources(self) -> Mapping[str, tuple[tuple[UvSource, UvProject], ...]]:
        """The sources by normalised package name, each with the file that it is from.

        Those of the workspace's root apply unless the project names the package itself.
        """
        inherited = self.root.sources if self.root else {}
        table = self.uv_table.get("sources", {})
        found = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            values = value if isinstance(value, list) else [value]
            found[normalize_name(name)] = tuple(
                (self._read_source(name, item), self) for item in values
            )
        return {**inherited, **found}

    def _read_source(self, name: str, value: object) -> UvSource:
        what = f"{self.place}: the source of {name} in [tool.uv.sources]"
        try:
            source = convert_value(value, UvSource)
        except msgspec.ValidationError as error:
            raise ResolveError(f"{what} is not supported: {error}") from error
        given = [source.git, source.url, source.path, source.index, source.workspace]
        if len([item for item in given if item]) != 1:
            raise ResolveError(f"{what} must be one of git, url, path, index and workspace")
        if len([item for item in (source.rev, source.tag, source.branch) if item]) > 1:
            raise ResolveError(f"{what} must have at most one of rev, tag and branch")
        if source.subdirectory.startswith("/") or ".." in source.subdirectory.split("/"):
            raise ResolveError(f"{what} has a subdirectory outside it")
        return source

    @cached_property
    def indexes(self) -> tuple[tuple[UvIndex, UvProject], ...]:
        """The indexes of the project and of its workspace, each with the file that it is from."""
        try:
            own = convert_value(self.uv_table.get("index", []), tuple[UvIndex, ...])
        except msgspec.ValidationError as error:
            raise ResolveError(f"{self.place}: invalid [[tool.uv.index]]: {error}") from error
        return (*((index, self) for index in own), *(self.root.indexes if self.root else ()))

    @cached_property
    def members(self) -> Mapping[str, UvProject]:
        """The members of the workspace by normalised name, its root included."""
        root = self.workspace
        found = {root.name: root} if root.name else {}
        for directory in root._list_member_directories():
            member = _read_file(directory / "pyproject.toml", self.project, root=root)
            if member is not None and member.name:
                found[member.name] = member
        return found

    def _list_member_directories(self) -> list[Path]:
        workspace = self.uv_table.get("workspace")
        if not isinstance(workspace, dict):
            return []
        chosen = {*self._expand_patterns(workspace.get("members", []))}
        return sorted(
            chosen - {*self._expand_patterns(workspace.get("exclude", []))} - {self.directory}
        )

    def _expand_patterns(self, patterns: object) -> Iterator[Path]:
        for pattern in patterns if isinstance(patterns, list) else ():
            try:
                yield from (path for path in self.directory.glob(str(pattern)) if path.is_dir())
            except (NotImplementedError, ValueError) as error:
                raise ResolveError(
                    f"{self.place}: invalid pattern {pattern!r} in [tool.uv.workspace]: {error}"
                ) from error

    def has_member(self, directory: Path) -> bool:
        """Return whether ``directory`` belongs to the workspace that this file declares."""
        return directory == self.directory or directory in self._list_member_directories()

    @property
    def has_workspace(self) -> bool:
        """Whether this file declares a workspace."""
        return isinstance(self.uv_table.get("workspace"), dict)

    @property
    def lock(self) -> Path | None:
        """The ``uv.lock`` of the project or its workspace; None if it does not exist."""
        path = self.workspace.directory / LOCK_NAME
        return path if os.path.lexists(path) else None

    def list_dependency_names(self, *, groups: bool = False) -> frozenset[str]:
        """Return the normalised names of all dependencies and those of extras, also of groups."""
        table = self._read_table("project")
        lists = [table.get("dependencies", [])]
        tables = [table.get("optional-dependencies", {})]
        if groups:
            tables.append(self._read_table("dependency-groups"))
        for named in tables:
            lists += named.values() if isinstance(named, dict) else ()
        texts = [text for items in lists if isinstance(items, list) for text in items]
        return frozenset(requirement_name(text) for text in texts if isinstance(text, str))

    def list_local_projects(self, *, groups: bool = False) -> Iterator[tuple[UvSource, Path]]:
        """Yield the directories and files that sources of its dependencies name."""
        for name in sorted(self.list_dependency_names(groups=groups)):
            for source, owner in self.sources.get(name, ()):
                if source.kind == "path":
                    yield source, locate(owner.directory, source.path)
                elif source.kind == "workspace" and name in owner.members:
                    yield source, owner.members[name].directory

    @property
    def uv_table(self) -> Mapping[str, Any]:
        """The table ``[tool.uv]``; empty if the file has none."""
        tool = self._read_table("tool").get("uv", {})
        return tool if isinstance(tool, dict) else {}

    def _read_table(self, name: str) -> Mapping[str, Any]:
        table = self.document.get(name, {})
        return table if isinstance(table, dict) else {}


def locate(directory: Path, path: str) -> Path:
    """Return the absolute path that a file in ``directory`` names."""
    return Path(os.path.normpath(directory / os.path.expanduser(path)))


def read_uv_project(path: Path, project: Path) -> UvProject:
    """Return the ``pyproject.toml`` at ``path``, with the workspace that it is a member of.

    Raises :class:`ResolveError` if a file is missing or invalid, :class:`UsageError` if it is
    outside ``project``.
    """
    path, project = Path(os.path.abspath(path)), Path(os.path.abspath(project))
    found = UvProject(path, read_pyproject(path, project), project)
    if found.has_workspace or not path.is_relative_to(project):
        return found
    for directory in path.parent.parents:
        is_inside = directory.is_relative_to(project)
        above = _read_file(directory / "pyproject.toml", project if is_inside else directory)
        if above is None or not above.has_workspace:
            continue
        if not above.has_member(path.parent):
            break
        if is_inside:
            return UvProject(path, found.document, project, above)
        inherited = (above.sources.keys() - found.sources.keys()) & found.list_dependency_names()
        if inherited:
            raise ResolveError(
                f"{found.place} is in a workspace whose root, {above.path}, is outside the project:"
                f" its source of {min(inherited)} cannot be used",
                hint="put the build file next to the pyproject.toml of the workspace's root",
            )
        break
    return found


def _read_file(path: Path, project: Path, root: UvProject | None = None) -> UvProject | None:
    """Return a ``pyproject.toml``, or None if it does not exist."""
    if not path.is_file():
        return None
    return UvProject(path, read_pyproject(path, project), project, root)


def find_uv_project(directory: Path, project: Path) -> UvProject | None:
    """Return the ``pyproject.toml`` in ``directory``; None if it has none."""
    path = directory / "pyproject.toml"
    return read_uv_project(path, project) if path.is_file() else None


def read_pyproject(path: Path, project: Path) -> dict[str, Any]:
    """Return the content of a TOML file of the project.

    Raises :class:`ResolveError` with the line if it is not TOML.
    """
    try:
        with ProjectTree(project) as tree:
            return tomllib.loads(tree.read_text(path))
    except FileNotFoundError:
        raise ResolveError(f"{path} not found") from None
    except tomllib.TOMLDecodeError as error:
        raise toml_error(error, os.path.relpath(path, os.path.abspath(project))) from error
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise ResolveError(f"cannot read {path.name}: {error}") from error


def toml_error(error: tomllib.TOMLDecodeError, name: str) -> ResolveError:
    """Return the error for a file of the project that is not TOML, with its line."""
    match = re.search(r" \(at line (\d+), column \d+\)$", str(error))
    span = Span(name, int(match[1])) if match else None
    reason = str(error)[: match.start()] if match else str(error)
    return ResolveError(f"{name} is not valid TOML: {reason}", span=span)


def remove_sources(text: str) -> str:
    """Return the text of a ``pyproject.toml`` without ``[tool.uv.sources]``.

    Raises :class:`ResolveError` if the sources are not written as their own table.
    """
    kept, is_source = [], False
    for line in text.splitlines(keepends=True):
        if re.match(r"\s*\[\[?[^\[\]{},=]+\]", line):
            is_source = _SOURCES_HEADER.match(line) is not None
        if not is_source:
            kept.append(line)
    wanted = tomllib.loads(text)
    wanted["tool"]["uv"].pop("sources", None)
    result = "".join(kept)
    read = tomllib.loads(result)
    if not wanted["tool"]["uv"] and "uv" not in read.get("tool", {}):
        del wanted["tool"]["uv"]
    if not wanted["tool"] and "tool" not in read:
        del wanted["tool"]
    if read != wanted:
        raise ResolveError(
            "the sources of a package can only be replaced if they are in their own table",
            hint="write `[tool.uv.sources]` as a header in its pyproject.toml",
        )
    return result


_SOURCES_HEADER = re.compile(r"\s*\[\[?\s*tool\s*\.\s*uv\s*\.\s*sources\b")
