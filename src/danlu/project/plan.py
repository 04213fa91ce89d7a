"""Plan a build: its graph under the current lock, without using the network or writing files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from danlu.assemble.assemble import Target, assemble, assemble_targets
from danlu.environment.lock import LockedSetting
from danlu.environment.types import Environment
from danlu.errors import LockError, OutsideError
from danlu.graph.ops import Merge, Platform, Unresolved
from danlu.graph.types import Graph, Vertex
from danlu.project.build_request import choose_platform, last_build_key
from danlu.project.download_sizes import describe_downloads, find_downloads
from danlu.project.plan_status import VertexForecast, forecast_vertices
from danlu.resolve.lockfile import find_stale_section
from danlu.sandbox.emulation import host_platform, is_foreign
from danlu.util.urls import mask_credentials, mask_values

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.environment.lock import FunctionLock
    from danlu.environment.types import ProjectDigests
    from danlu.project.project import Project

LockState = Literal["fits", "missing", "stale"]


class PlannedVertex(msgspec.Struct, frozen=True):
    """A vertex of the graph; ``lines`` are places in the build file, ``inputs`` are digests.

    ``source`` is the function whose result it is part of, if that is only copied from.
    """

    digest: str
    name: str
    branch: str
    kind: str
    inputs: tuple[str, ...]
    lines: tuple[str, ...]
    describes: tuple[str, ...] = ()
    forecast: VertexForecast | None = None
    source: str = ""

    @property
    def needs_lock(self) -> bool:
        """Whether the lock does not contain it yet."""
        return self.kind == "Unresolved"


class PlannedSource(msgspec.Struct, frozen=True):
    """A function whose result is copied from: by the functions ``copied_by``, at ``lines``."""

    name: str
    copied_by: tuple[str, ...]
    lines: tuple[str, ...]
    is_locked: bool


class PlanReport(msgspec.Struct, frozen=True):
    """What would be built. ``stale`` is what changed since it was locked, empty for nothing.

    ``locked_platforms`` are all those of the lock, ``lock_command`` updates it for this one.
    ``package_settings`` are those of pip and uv that restricted the locked packages. ``sources``
    are the functions that are built because their results are copied from. ``downloads`` says in
    lines how much a build would download.
    """

    file: str
    function: str
    platform: str
    digest: str
    lock: LockState
    stale: str
    vertices: tuple[PlannedVertex, ...]
    at_start: tuple[str, ...] = ()
    locked_platforms: tuple[str, ...] = ()
    lock_command: str = "danlu lock"
    package_settings: tuple[LockedSetting, ...] = ()
    sources: tuple[PlannedSource, ...] = ()
    downloads: tuple[str, ...] = ()


def plan_build(project: Project, *, settings: Settings, platform: str = "") -> PlanReport:
    """Return the project's graph under its lock, with what a build would do and download.

    ``platform`` is that of the image (``linux/arm64``), this machine's if empty. Raises
    :class:`~danlu.errors.UsageError` if it, the build file or the lock is invalid.
    """
    environment = _evaluate_offline(project)
    inputs, target = project.inputs(environment), choose_platform(platform)
    targets = _list_targets(project, environment, inputs, target)
    stale_parts = {item.name: _find_stale_part(item, target) for item in targets}

    def make_graph(item: Target, platform: Platform, sources: Mapping[str, Vertex]) -> Graph:
        return _assemble_graph(item, platform, sources, stale=stale_parts[item.name])

    assembled = assemble_targets(targets, target, make_graph)
    graph, section = assembled.graph, targets[-1].lock
    stale = {
        item.name: stale_parts[item.name] or _find_stale_tools(item, target) for item in targets
    }
    # That the function itself is not locked is another state than an outdated lock.
    stale |= {item.name: "everything" for item in targets[:-1] if item.lock is None}
    owners = {
        digest: name
        for name, digests in assembled.vertices.items()
        for digest in digests
        if name != project.target
    }
    planned = PlanReport(
        file=project.file,
        function=project.target,
        platform=str(target),
        digest=graph.digest,
        lock=_combine_states(targets, stale),
        stale=_describe_stale(stale, project.target),
        vertices=tuple(_plan_vertex(vertex, owners) for vertex in graph.walk()),
        sources=_plan_sources(targets),
        at_start=environment.start_functions,
        locked_platforms=tuple(map(str, project.lock.list_platforms(project.target))),
        lock_command=f"danlu lock --platform {target}" if is_foreign(target) else "danlu lock",
        package_settings=section.package_settings if section else (),
    )
    return _add_forecasts(planned, graph, settings, section, last=last_build_key(project, target))


def _list_targets(
    project: Project, environment: Environment, inputs: ProjectDigests, platform: Platform
) -> list[Target]:
    """Return the functions that the project's copies from, and the project's at the end."""

    def find_target(name: str, environment: Environment, digests: ProjectDigests) -> Target:
        tools = project.lock.find(name, host_platform()) if is_foreign(platform) else None
        return Target(name, environment, project.lock.find(name, platform), digests, tools)

    sources = [
        find_target(name, source, inputs.sources[name])
        for name, source in environment.sources.items()
    ]
    return [*sources, find_target(project.target, environment, inputs)]


def _find_stale_part(target: Target, platform: Platform) -> str:
    """Return what changed since a target was locked, empty for nothing or if it is not locked."""
    if target.lock is None:
        return ""
    return find_stale_section(target.environment, target.lock, platform, target.digests)


def _find_stale_tools(target: Target, platform: Platform) -> str:
    """Return what is stale in the lock of the native programs that a foreign build uses."""
    if target.lock is None or not is_foreign(platform):
        return ""
    host, tools = host_platform(), target.tools
    stale = (
        find_stale_section(target.environment, tools, host, target.digests)
        if tools
        else "everything"
    )
    return f"{stale} for {host}" if stale else ""


def _combine_states(targets: Sequence[Target], stale: Mapping[str, str]) -> LockState:
    if targets[-1].lock is None:
        return "missing"
    return "stale" if any(stale.values()) else "fits"


def _describe_stale(stale: Mapping[str, str], main: str) -> str:
    parts = [part if name == main else f"{name}: {part}" for name, part in stale.items() if part]
    return ", ".join(parts)


def _plan_sources(targets: Sequence[Target]) -> tuple[PlannedSource, ...]:
    """Return the functions that are copied from, with the places where that is done."""
    copies: dict[str, dict[str, list[str]]] = {target.name: {} for target in targets}
    for target in targets:
        for step in target.environment.steps:
            if source := step.source_target():
                copies[source].setdefault(target.name, []).append(str(step.span))
    return tuple(
        PlannedSource(
            target.name,
            tuple(copies[target.name]),
            tuple(line for lines in copies[target.name].values() for line in lines),
            is_locked=target.lock is not None,
        )
        for target in targets[:-1]
    )


def _evaluate_offline(project: Project) -> Environment:
    """Evaluate the build file; included repositories must be locked and cached."""
    try:
        return project.environment(offline=True)
    except OutsideError as error:
        raise LockError(
            f"an included repository is not locked or not cached yet: {error.message}",
            hint="run `danlu lock`, or `danlu plan --lock`: without it nothing uses the network",
            span=error.span,
            details=error.details,
        ) from error


def _assemble_graph(
    target: Target, platform: Platform, sources: Mapping[str, Vertex], *, stale: str
) -> Graph:
    """Return the graph of a target; what is out of date in the lock is unresolved in it."""
    environment, section, inputs = target.environment, target.lock, target.digests
    tools = target.tools
    unlocked = assemble(environment, None, inputs, platform=platform, sources=sources)
    if section is None or stale in ("platform", "base", "python"):
        return unlocked  # everything else depends on these
    unresolved: tuple[str, ...] = ("Python packages",) if stale == "Python packages" else ()
    if stale == "system packages":
        unresolved = ("system packages", "Python packages")
        section = replace(section, system=None)
    if not unresolved:
        return assemble(
            environment, section, inputs, platform=platform, tools=tools, sources=sources
        )
    leaves = tuple(
        dataclasses.replace(vertex, inputs=())
        for vertex in unlocked.walk()
        if isinstance(vertex.op, Unresolved) and vertex.op.kind in unresolved
    )
    section = replace(section, packages=())
    graph = assemble(environment, section, inputs, platform=platform, tools=tools, sources=sources)
    return dataclasses.replace(graph, root=_add_leaves(graph.root, leaves))


def _add_leaves(root: Vertex, leaves: tuple[Vertex, ...]) -> Vertex:
    """Add ``leaves`` to the merge that is the input of the first step."""
    if isinstance(root.op, Merge) and root.branch == "environment":
        return dataclasses.replace(root, inputs=(*root.inputs, *leaves))
    if not root.inputs:
        return Vertex(Merge(), (root, *leaves), name="environment", branch="environment")
    return dataclasses.replace(root, inputs=(_add_leaves(root.inputs[0], leaves), *root.inputs[1:]))


def _plan_vertex(vertex: Vertex, owners: Mapping[str, str]) -> PlannedVertex:
    return PlannedVertex(
        digest=vertex.digest,
        name=mask_credentials(vertex.name),
        branch=vertex.branch,
        kind=type(vertex.op).__name__,
        inputs=tuple(below.digest for below in vertex.inputs),
        lines=tuple(str(span) for span in vertex.spans),
        describes=_describe_op(vertex),
        source=owners.get(vertex.digest, ""),
    )


def _describe_op(vertex: Vertex) -> tuple[str, ...]:
    if isinstance(vertex.op, Unresolved):
        return mask_values(vertex.op.describes)
    return ()


def _add_forecasts(
    planned: PlanReport,
    graph: Graph,
    settings: Settings,
    section: FunctionLock | None,
    *,
    last: str,
) -> PlanReport:
    """Return the plan with a forecast for each vertex, compared with the build ``last``."""
    forecasts = forecast_vertices(graph, settings.paths, last=last, lock=section)
    pending = [vertex.op for vertex in graph.walk() if _is_pending(forecasts.get(vertex.digest))]
    downloads = find_downloads(pending, section, settings.paths)
    vertices = (
        replace(vertex, forecast=forecasts.get(vertex.digest)) for vertex in planned.vertices
    )
    lines = tuple(describe_downloads(downloads, section, settings.config))
    return replace(planned, vertices=tuple(vertices), downloads=lines)


def _is_pending(forecast: VertexForecast | None) -> bool:
    return forecast is not None and forecast.state != "cached"
