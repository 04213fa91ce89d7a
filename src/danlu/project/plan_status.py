"""Forecast what a build would do with each vertex, from the records of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from danlu.builder.embedded.context import (
    VertexResult,
    definition_key,
    make_cached_result,
    merge_results,
    stack_key,
)
from danlu.environment.package_names import requirement_name
from danlu.graph.ops import Merge, Unresolved, Wheel
from danlu.graph.types import Graph, Vertex
from danlu.project.download_sizes import find_download, lock_sizes
from danlu.store import Store
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.environment.lock import FunctionLock

#: How many packages that stay are named.
_MAX_KEPT = 5


class VertexForecast(msgspec.Struct, frozen=True):
    """What a build would do with a vertex, and why.

    ``maybe`` means that an input will be built, and the vertex only if the result differs.
    ``size`` is that of its layers and ``download`` what may have to be downloaded, both in bytes
    and 0 if unknown.
    """

    state: Literal["cached", "build", "maybe"]
    why: str
    size: int = 0
    download: int = 0


@dataclass
class _ForecastState:
    """What is known while the graph is walked, inputs first; unknown results are None."""

    store: Store | None
    paths: Paths
    last_build: Mapping[str, Mapping[str, Any]]
    last_digests: frozenset[str]
    sizes: Mapping[str, int]
    versions: Mapping[str, str]
    results: dict[str, VertexResult | None] = field(default_factory=dict)
    forecasts: dict[str, VertexForecast] = field(default_factory=dict)


def forecast_vertices(
    graph: Graph, paths: Paths, *, last: str, lock: FunctionLock | None
) -> dict[str, VertexForecast]:
    """Return a forecast for each vertex except merges, by digest.

    The store need not exist; ``last`` is the key of the record of the project's last build.
    """
    if not paths.store.is_dir():
        return _walk_graph(graph, _load_state(None, paths, last, lock))
    with Store.open(paths.store) as store:
        return _walk_graph(graph, _load_state(store, paths, last, lock))


def _load_state(
    store: Store | None, paths: Paths, last: str, lock: FunctionLock | None
) -> _ForecastState:
    record = (store.record(last) if store else None) or {}
    vertices = record.get("vertices", [])
    return _ForecastState(
        store=store,
        paths=paths,
        last_build={vertex["name"]: vertex for vertex in vertices},
        last_digests=frozenset(vertex["digest"] for vertex in vertices),
        sizes=lock_sizes(lock),
        versions={package.name: package.version for package in lock.packages} if lock else {},
    )


def _walk_graph(graph: Graph, state: _ForecastState) -> dict[str, VertexForecast]:
    for vertex in graph.walk():
        if isinstance(vertex.op, Merge):
            inputs = _find_inputs(vertex, state)
            state.results[vertex.digest] = None if inputs is None else merge_results(inputs)
        else:
            state.forecasts[vertex.digest] = _forecast_vertex(vertex, state)
    return state.forecasts


def _forecast_vertex(vertex: Vertex, state: _ForecastState) -> VertexForecast:
    result = state.results[vertex.digest] = _find_cached_result(vertex, state)
    if result is not None:
        size = sum(layer.size for layer in result.layers)
        return VertexForecast("cached", "no input changed", size=size)
    found = find_download(vertex.op, state.sizes, state.paths)
    download = found.size if found else 0
    reads = vertex.op.reads_inputs and vertex.inputs
    if reads and state.results.get(vertex.inputs[0].digest) is None:
        if vertex.digest not in state.last_digests and _op_is_new(vertex, state):
            return VertexForecast("build", _explain_build(vertex, state), download=download)
        return VertexForecast("maybe", _explain_uncertainty(vertex, state), download=download)
    return VertexForecast("build", _explain_build(vertex, state), download=download)


def _find_cached_result(vertex: Vertex, state: _ForecastState) -> VertexResult | None:
    """Return what an earlier build made of the vertex, if the store has all its layers."""
    if state.store is None or isinstance(vertex.op, Unresolved):
        return None
    inputs = _find_inputs(vertex, state)
    key = definition_key(vertex)
    if key is None and inputs is not None:
        key = stack_key(vertex.op, inputs)
    record = state.store.record(key) if key is not None else None
    if record is None:
        return None
    found = [state.store.layer(diff_id) for diff_id in record.get("layers", ())]
    layers = tuple(layer for layer in found if layer is not None)
    if len(layers) < len(found):
        return None
    return make_cached_result(vertex.op, record, layers, inputs or ())


def _find_inputs(vertex: Vertex, state: _ForecastState) -> tuple[VertexResult, ...] | None:
    """Return the results of the inputs, or None if one of them is unknown."""
    results = [state.results.get(below.digest) for below in vertex.inputs]
    known = tuple(result for result in results if result is not None)
    return known if len(known) == len(results) else None


def _op_is_new(vertex: Vertex, state: _ForecastState) -> bool:
    return vertex.name not in state.last_build


def _explain_build(vertex: Vertex, state: _ForecastState) -> str:
    """Return why a vertex has to be built, compared with the last build."""
    where = f" ({vertex.spans[0]})" if vertex.spans else ""
    if isinstance(vertex.op, Unresolved):
        return _explain_missing_lock(vertex.op, where, state)
    if vertex.digest in state.last_digests:
        return "built before, but its layers were removed from the store"
    if not state.last_digests:
        return f"never built on this machine{where}"
    if vertex.name in state.last_build:
        return f"changed since the last build{where}"
    before = _earlier_version(vertex, state)
    return f"was {before}{where}" if before else f"new since the last build{where}"


def _explain_missing_lock(op: Unresolved, where: str, state: _ForecastState) -> str:
    """Return what is not locked yet, and which of the locked packages stay."""
    locked = state.versions if op.kind == "Python packages" else {}
    new = [text for text in op.describes if not _has_locked_version(text, locked)]
    if not locked or not new:
        return f"not locked yet{where}"
    changed = {requirement_name(text) for text in new}
    kept = [f"{name} {version}" for name, version in locked.items() if name not in changed]
    reason = f"{', '.join(new)} {'is' if len(new) == 1 else 'are'} not locked yet{where}"
    if not kept:
        return reason
    more = f" and {len(kept) - _MAX_KEPT} more" if len(kept) > _MAX_KEPT else ""
    verb = "keeps its version" if len(kept) == 1 else "keep their versions"
    return f"{reason}; {', '.join(kept[:_MAX_KEPT])}{more} {verb} if possible"


def _has_locked_version(text: str, locked: Mapping[str, str]) -> bool:
    """Return whether a locked version satisfies a requirement; options and files have none."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return True
    version = locked.get(requirement_name(text))
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _earlier_version(vertex: Vertex, state: _ForecastState) -> str:
    """Return the version of the same package in the last build, or an empty string."""
    if not isinstance(vertex.op, Wheel):
        return ""
    start = f"{vertex.op.name} "
    names = [name for name in state.last_build if name.startswith(start)]
    return names[0].removeprefix(start) if names else ""


def _explain_uncertainty(vertex: Vertex, state: _ForecastState) -> str:
    """Name the lowest inputs that will be built: their results decide about this vertex."""
    seen: set[str] = set()
    causes: list[str] = []
    pending = [vertex.inputs[0]] if vertex.inputs else []
    while pending:
        candidate = pending.pop(0)
        if candidate.digest in seen:
            continue
        seen.add(candidate.digest)
        forecast = state.forecasts.get(candidate.digest)
        if forecast is not None and forecast.state == "build":
            causes.append(candidate.name)
        pending.extend(candidate.inputs)
    names = ", ".join(causes[:3]) + (f" and {len(causes) - 3} more" if len(causes) > 3 else "")
    return f"depends on {names}" if causes else "depends on a vertex that will be built"
