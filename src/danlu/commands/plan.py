"""``danlu plan``: the build graph of a project, with no network and nothing written."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from danlu.environment.types import Environment
from danlu.graph import Graph, Merge, Platform, Unbuilt, Unresolved, Vertex

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.environment.inputs import Inputs
    from danlu.environment.lock import FunctionLock

__all__ = ["Forecast", "LockState", "Plan", "PlannedVertex", "plan"]

LockState = Literal["fits", "missing", "stale"]


class Forecast(msgspec.Struct, frozen=True):
    """What a build would do with a vertex, and why.

    ``state`` is ``cached``, ``build``, or ``maybe``: it runs on something that is built first, and
    only if that comes out different. ``size`` is what its layers hold, ``download`` what may have
    to be fetched, both in bytes, 0 where unknown.
    """

    state: Literal["cached", "build", "maybe"]
    why: str
    size: int = 0
    download: int = 0


class PlannedVertex(msgspec.Struct, frozen=True):
    """One vertex of the graph; ``lines`` are places in the build file, ``inputs`` digests."""

    digest: str
    name: str
    branch: str
    kind: str
    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    describes: tuple[str, ...] = ()
    forecast: Forecast | None = None

    @property
    def unresolved(self) -> bool:
        """Whether no lock has pinned it yet."""
        return self.kind == "Unresolved"


class Plan(msgspec.Struct, frozen=True):
    """What would be built. ``stale`` names what no longer fits the lock, where something does."""

    file: str
    function: str
    platform: str
    digest: str
    lock: LockState
    stale: str
    vertices: tuple[PlannedVertex, ...]
    at_start: tuple[str, ...] = ()


def plan(project: Project, *, settings: Settings, platform: str = "", why: bool = False) -> Plan:
    """The graph of the project under its lock; with ``why`` also what a build would do.

    Raises :class:`~danlu.errors.UsageError` of several kinds where the build file or the lock is
    wrong.
    """
    from danlu.commands.build import parse_platform
    from danlu.environment.needs import fits

    environment = project.environment(offline=True)
    inputs, target = project.inputs(environment), parse_platform(platform)
    section = project.lock.functions.get(project.function)
    stale = fits(environment, section, target, inputs) if section else ""
    graph = _graph(environment, section, inputs, target, stale=stale)
    planned = Plan(
        file=project.file,
        function=project.function,
        platform=str(target),
        digest=graph.digest,
        lock="missing" if section is None else "stale" if stale else "fits",
        stale=stale,
        vertices=tuple(_planned(one) for one in graph.walk()),
        at_start=_at_start(environment),
    )
    return _with_forecasts(planned, graph, project, settings, section) if why else planned


def _graph(
    environment: Environment,
    section: FunctionLock | None,
    inputs: Inputs,
    platform: Platform,
    *,
    stale: str,
) -> Graph:
    """The graph, where what no longer fits the lock is as unresolved as without a lock."""
    from danlu.assemble import assemble

    nothing = assemble(environment, None, inputs, platform=platform)
    if section is None or stale in ("platform", "base", "python"):
        return nothing  # all else stands on these
    open_again: tuple[str, ...] = ("Python packages",) if stale == "Python packages" else ()
    if stale == "system packages":
        open_again = ("system packages", "Python packages")
        section = replace(section, system=None)
    if not open_again:
        return assemble(environment, section, inputs, platform=platform)
    leaves = tuple(
        dataclasses.replace(one, inputs=())
        for one in nothing.walk()
        if isinstance(one.op, Unresolved) and one.op.kind in open_again
    )
    graph = assemble(environment, replace(section, packages=()), inputs, platform=platform)
    return dataclasses.replace(graph, root=_with_leaves(graph.root, leaves))


def _with_leaves(root: Vertex, leaves: tuple[Vertex, ...]) -> Vertex:
    """``root`` with ``leaves`` in the merge that all steps stand on."""
    if isinstance(root.op, Merge) and root.branch == "environment":
        return dataclasses.replace(root, inputs=(*root.inputs, *leaves))
    if not root.inputs:
        return Vertex(Merge(), (root, *leaves), name="environment", branch="environment")
    return dataclasses.replace(
        root, inputs=(_with_leaves(root.inputs[0], leaves), *root.inputs[1:])
    )


def _planned(vertex: Vertex) -> PlannedVertex:
    return PlannedVertex(
        digest=vertex.digest,
        name=vertex.name,
        branch=vertex.branch,
        kind=type(vertex.op).__name__,
        inputs=tuple(one.digest for one in vertex.inputs),
        lines=tuple(str(span) for span in vertex.spans),
        describes=_describes(vertex),
    )


def _describes(vertex: Vertex) -> tuple[str, ...]:
    if isinstance(vertex.op, Unresolved):
        return vertex.op.describes
    if isinstance(vertex.op, Unbuilt):
        return tuple(f"{name}={value}" for name, value in vertex.op.arguments)
    return ()


def _at_start(environment: Environment) -> tuple[str, ...]:
    return tuple(sorted({one.function for one in environment.other if one.at_start}))


def _with_forecasts(
    planned: Plan,
    graph: Graph,
    project: Project,
    settings: Settings,
    section: FunctionLock | None,
) -> Plan:
    from danlu.commands.forecast import forecasts

    last = f"last-build:{project.directory}:{project.function}"
    found: dict[str, Any] = forecasts(graph, settings.paths.store, last=last, lock=section)
    vertices = (replace(one, forecast=found.get(one.digest)) for one in planned.vertices)
    return replace(planned, vertices=tuple(vertices))
