"""Apply ``[tool.uv.sources]`` to the requirements of projects, as uv does.

A source replaces the version of a requirement by a location, or names the index that the package
must come from. uv looks at the sources of every package that is itself a directory of the project,
so what such packages require is listed here, too, as far as it has a source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import normalize_name, requirement_name
from danlu.errors import ResolveError
from danlu.resolve.python.pylock import marker_environment
from danlu.resolve.python.pyproject import (
    ListedRequirement,
    add_marker,
    read_project_requirements,
)
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import DirectReference, classify_file, parse_reference
from danlu.sources.pypi.uv_project import UvProject, UvSource, find_uv_project, locate
from danlu.util.safe_paths import ProjectTree


class PlacedRequirement(msgspec.Struct, frozen=True):
    """A requirement of a project, and its source if it has one.

    ``reference`` is a location; a directory may be ``editable``. ``index`` is the name of the index
    that the package must come from. Paths in ``text`` are relative to ``base``.
    """

    text: str
    base: Path
    reference: DirectReference | None = None
    editable: bool = False
    index: str = ""


class ProjectReader:
    """Lists the requirements of projects for one target.

    ``virtual`` are the packages found so far that are not installed (``package = false``): only
    their dependencies are.
    """

    def __init__(self, project: Path, target: PlatformTarget) -> None:
        self.virtual: set[str] = set()
        self._project = project
        self._environment = {**marker_environment(target), "extra": ""}
        self._seen: set[tuple[Path, tuple[str, ...], str]] = set()

    def list_requirements(
        self, project: UvProject, *, groups: Sequence[str] = (), extras: Sequence[str] = ()
    ) -> Iterator[PlacedRequirement]:
        """Yield the dependencies of a project, those of its extras, and of its groups."""
        for listed in read_project_requirements(project, groups=groups, extras=extras):
            yield from self._list_placed(listed, project, "")

    def list_with_sources(self, reference: DirectReference) -> Iterator[PlacedRequirement]:
        """Yield what a package in a directory requires from a source.

        The rest is in the package's metadata. Raises :class:`ResolveError` if there are sources but
        only building the package reveals its dependencies.
        """
        assert reference.path is not None
        directory = reference.path / reference.subdirectory
        extras = tuple(sorted(_split_extras(reference.extras)))
        key = (directory, extras, reference.marker)
        project = find_uv_project(directory, self._project)
        if key in self._seen or project is None or not project.sources:
            return
        self._seen.add(key)
        if "project" not in project.document:
            return
        for listed in read_project_requirements(project, extras=extras):
            yield from self._list_placed(listed, project, reference.marker, only_sourced=True)

    def _list_placed(
        self,
        listed: ListedRequirement,
        project: UvProject,
        outer: str,
        *,
        only_sourced: bool = False,
    ) -> Iterator[PlacedRequirement]:
        text = add_marker(listed.text, outer)
        plain = PlacedRequirement(text, project.directory)
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield plain  # reported when it is parsed
            return
        chosen = self._choose_source(listed, requirement, project)
        if chosen is None:
            if not only_sourced:
                yield plain
        elif self._marker_applies(requirement.marker):
            yield from self._apply_source(requirement, *chosen, text)

    def _choose_source(
        self, listed: ListedRequirement, requirement: Requirement, project: UvProject
    ) -> tuple[UvSource, UvProject] | None:
        """Return the source of a requirement for the target; None if it comes from the indexes."""
        if requirement.url:
            return None
        for source, owner in project.sources.get(normalize_name(requirement.name), ()):
            if source.extra and normalize_name(source.extra) != listed.extra:
                continue
            if source.group and normalize_name(source.group) != listed.group:
                continue
            try:
                applies = not source.marker or self._marker_applies(Marker(source.marker))
            except InvalidMarker as error:
                raise ResolveError(
                    f"{owner.place}: invalid marker {source.marker!r} in the source of"
                    f" {requirement.name}"
                ) from error
            if applies:
                return source, owner
        return None

    def _marker_applies(self, marker: Marker | None) -> bool:
        return marker is None or marker.evaluate(self._environment)

    def _apply_source(
        self, requirement: Requirement, source: UvSource, owner: UvProject, text: str
    ) -> Iterator[PlacedRequirement]:
        if source.kind == "index":
            _check_index(requirement.name, source.index, owner)
            yield PlacedRequirement(text, owner.directory, index=source.index)
        elif source.kind in ("path", "workspace"):
            yield from self._place_local(requirement, source, owner)
        else:
            reference = _to_reference(requirement, source)
            shown = f"{requirement.name} @ {source.git or source.url}"
            yield PlacedRequirement(shown, owner.directory, reference)

    def _place_local(
        self, requirement: Requirement, source: UvSource, owner: UvProject
    ) -> Iterator[PlacedRequirement]:
        path = _locate_source(requirement.name, source, owner)
        with ProjectTree(self._project) as tree:
            tree.real_path(path)  # raises if it is outside
        place = os.path.relpath(path, self._project)
        if not path.exists():
            raise ResolveError(
                f"{owner.place}: the source of {requirement.name} not found: {place}"
            )
        kind = "directory" if path.is_dir() else classify_file(path.name)
        marker = str(requirement.marker or "")
        extras = _join_extras(requirement)
        reference = DirectReference(
            requirement.name,
            extras,
            kind,
            place,
            path,
            marker=marker,
            subdirectory="" if kind == "directory" else source.subdirectory,
        )
        below = find_uv_project(path, self._project) if kind == "directory" else None
        is_package = below is None or below.is_package
        if source.package is not None:
            is_package = source.package
        if is_package or below is None:
            editable = source.kind == "workspace" if source.editable is None else source.editable
            editable = editable and kind == "directory"
            shown = f"{requirement.name}{extras} @ {place}"
            yield PlacedRequirement(shown, owner.directory, reference, editable)
            return
        self.virtual.add(normalize_name(requirement.name))
        key = (path, tuple(sorted(requirement.extras)), marker)
        if key not in self._seen:
            self._seen.add(key)
            for listed in read_project_requirements(below, extras=sorted(requirement.extras)):
                yield from self._list_placed(listed, below, marker)


def find_other_source(tree: Path, reference: DirectReference, known: frozenset[str]) -> str:
    """Return a dependency of a fetched source tree that its own ``[tool.uv.sources]`` names.

    Those in ``known`` are left out: they have a location or an index already. ``tree`` may contain
    anything.
    """
    project = find_uv_project(tree / reference.subdirectory, tree)
    if project is None:
        return ""
    try:
        listed = read_project_requirements(project, extras=_split_extras(reference.extras))
        names = {requirement_name(required.text) for required in listed}
    except ResolveError:  # dynamic: any of them may be among the dependencies
        names = set(project.sources)
    return min((names & project.sources.keys()) - known, default="")


def _check_index(name: str, index: str, owner: UvProject) -> None:
    if not any(known.name == index for known, _ in owner.indexes):
        raise ResolveError(
            f"{owner.place}: the source of {name} is the index {index!r}, which is not in"
            " [[tool.uv.index]]"
        )


def _locate_source(name: str, source: UvSource, owner: UvProject) -> Path:
    if source.kind == "path":
        return locate(owner.directory, source.path)
    member = owner.members.get(normalize_name(name))
    if member is None:
        raise ResolveError(
            f"{owner.place}: {name} has `workspace = true`, but the workspace has no such member",
            hint="the pyproject.toml of the workspace's root must be in the project, too",
        )
    return member.directory


def _to_reference(requirement: Requirement, source: UvSource) -> DirectReference:
    marker, extras = str(requirement.marker or ""), _join_extras(requirement)
    if source.kind == "git":
        return DirectReference(
            requirement.name,
            extras,
            "git",
            source.git.removeprefix("git+"),
            marker=marker,
            reference=source.rev or source.tag or source.branch,
            subdirectory=source.subdirectory,
        )
    reference = parse_reference(source.url, Path("/"))
    if reference is None or reference.kind in ("git", "vcs", "directory"):
        raise ResolveError(f"the source of {requirement.name} is not the URL of a file")
    return msgspec.structs.replace(
        reference,
        name=requirement.name,
        extras=extras,
        marker=marker,
        subdirectory=source.subdirectory or reference.subdirectory,
    )


def _join_extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _split_extras(text: str) -> list[str]:
    return [name.strip() for name in text.strip("[]").split(",") if name.strip()]
