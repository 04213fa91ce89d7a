"""Read requirements in a ``pyproject.toml``: dependencies, extras (PEP 621), groups (PEP 735)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from packaging.dependency_groups import resolve_dependency_groups
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import normalize_name
from danlu.errors import ResolveError
from danlu.sources.pypi.uv_project import UvProject, read_pyproject
from danlu.util.decoding import convert_value
from danlu.util.suggest import did_you_mean, suggest_name


class ListedRequirement(msgspec.Struct, frozen=True):
    """A requirement of a project, and the requested extra or dependency group that lists it."""

    text: str
    extra: str = ""
    group: str = ""


def read_project_requirements(
    project: UvProject, *, groups: Sequence[str] = (), extras: Sequence[str] = ()
) -> list[ListedRequirement]:
    """Return the dependencies in a ``pyproject.toml``, with those of its extras and groups.

    A project may name its own extras in its dependencies (``all = ["mine[gpu,plots]"]``). Without
    a table ``project``, there are only groups. Raises :class:`ResolveError` for an unknown or
    cyclic extra or group, and for dependencies that only building the project reveals.
    """
    document, path = project.document, project.path
    table = _check_table(document, "project", path)
    if "dependencies" in table.get("dynamic", ()):
        raise ResolveError(
            f"the dependencies in {path.name} are dynamic: only building the project reveals them",
            hint='install the project itself: install.python_packages(["."])',
        )
    requirements = _check_list(table.get("dependencies", []), "project.dependencies", path)
    optional = _OptionalDependencies(table, path)
    found = [*optional.expand(requirements), *optional.list_extras(extras)]
    if groups:
        tables = _check_table(document, "dependency-groups", path)
        found += _list_groups(tables, groups, path)
    return list(dict.fromkeys(found))


def check_own_extras(path: Path, project: Path, names: Sequence[str]) -> None:
    """Raise :class:`ResolveError` unless the project of a ``pyproject.toml`` has these extras.

    Does nothing if only building the project reveals them: the table ``project`` is missing, or
    they are dynamic.
    """
    table = _check_table(read_pyproject(path, project), "project", path)
    if table and "optional-dependencies" not in table.get("dynamic", ()):
        _OptionalDependencies(table, path).list_extras(names)


def _check_table(document: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ResolveError(f"{path.name}: {name} is not a table")
    return table


def _check_list(value: object, name: str, path: Path) -> list[str]:
    try:
        return convert_value(value, list[str])
    except msgspec.ValidationError as error:
        raise ResolveError(f"{path.name}: {name} is not a list of requirements") from error


class _OptionalDependencies:
    """The extras of a project, by normalized name (PEP 685)."""

    def __init__(self, table: Mapping[str, Any], path: Path) -> None:
        self._path = path
        self._project = normalize_name(str(table.get("name", "")))
        self._is_dynamic = "optional-dependencies" in table.get("dynamic", ())
        self._extras = {
            normalize_name(name): _check_list(value, f"the extra {name}", path)
            for name, value in _check_table(table, "optional-dependencies", path).items()
        }

    def list_extras(
        self, names: Sequence[str], seen: tuple[str, ...] = ()
    ) -> list[ListedRequirement]:
        """Return the requirements of extras; ``seen`` are those being expanded."""
        found: list[ListedRequirement] = []
        for name in map(normalize_name, names):
            if name in seen:
                continue
            if name not in self._extras:
                raise self._unknown_error(name)
            found += self.expand(self._extras[name], (*seen, name))
        return found

    def expand(
        self, requirements: Sequence[str], seen: tuple[str, ...] = ()
    ) -> list[ListedRequirement]:
        """Return ``requirements`` with those of the project's own extras in their place.

        They are those of the last extra in ``seen``.
        """
        found: list[ListedRequirement] = []
        for text in requirements:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                requirement = None  # reported when the result is parsed
            if requirement is None or normalize_name(requirement.name) != self._project:
                found.append(ListedRequirement(text, seen[-1] if seen else ""))
                continue
            listed = self.list_extras(sorted(requirement.extras), seen)
            found += [
                replace(other, text=add_marker(other.text, requirement.marker)) for other in listed
            ]
        return found

    def _unknown_error(self, name: str) -> ResolveError:
        if self._is_dynamic:
            return ResolveError(
                f"the extras in {self._path.name} are dynamic: only building the project reveals"
                " them",
                hint=f'install the project itself: install.python_packages([".[{name}]"])',
            )
        hint = suggest_name(name, self._extras, what="its extras")
        return ResolveError(
            f"{self._path.name} has no extra {name!r}",
            hint=hint or "it has none: add it to [project.optional-dependencies]",
        )


def add_marker(text: str, outer: Marker | str | None) -> str:
    """Return the requirement ``text`` under another marker, too."""
    if not outer:
        return text
    try:
        inner = Requirement(text)
    except InvalidRequirement:
        return text
    marker = f"({inner.marker}) and ({outer})" if inner.marker else str(outer)
    inner.marker = None
    return f"{inner} ; {marker}"


def _list_groups(
    groups: Mapping[str, Any], names: Sequence[str], path: Path
) -> list[ListedRequirement]:
    known = {normalize_name(name) for name in groups}
    for name in names:
        if normalize_name(name) not in known:
            raise ResolveError(
                f"{path.name} has no dependency group {name!r}", hint=did_you_mean(name, groups)
            )
    try:
        return [
            ListedRequirement(text, group=normalize_name(name))
            for name in names
            for text in resolve_dependency_groups(groups, name)
        ]
    except ExceptionGroup as errors:
        problem = errors.exceptions[0]
        raise ResolveError(f"{path.name}: {problem}") from errors
