"""What a build would do with each vertex of a graph, told from the store's records only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.commands.plan import Forecast
from danlu.graph import AptInstall, Bootstrap, Graph, Merge, Unbuilt, Unresolved, Vertex, Wheel

if TYPE_CHECKING:
    from danlu.environment.lock import FunctionLock
    from danlu.store import Layer, Store

__all__ = ["forecasts"]


@dataclass
class _State:
    """What is known while the graph is walked, inputs first; a stack is None while unknown."""

    store: Store | None
    last: Mapping[str, Mapping[str, Any]]
    built: frozenset[str]
    sizes: Mapping[str, int]
    stacks: dict[str, tuple[Layer, ...] | None] = field(default_factory=dict)
    found: dict[str, Forecast] = field(default_factory=dict)


def forecasts(
    graph: Graph, root: Path, *, last: str, lock: FunctionLock | None
) -> dict[str, Forecast]:
    """A forecast for each vertex but merges, by digest.

    ``root`` is the store, which is not made where it is absent; ``last`` the key of the record of
    the project's last build.
    """
    if not root.is_dir():
        return _walk(graph, _state(None, last, lock))
    from danlu.store import Store

    with Store.open(root) as store:
        return _walk(graph, _state(store, last, lock))


def _state(store: Store | None, last: str, lock: FunctionLock | None) -> _State:
    record = (store.record(last) if store else None) or {}
    vertices = record.get("vertices", [])
    return _State(
        store=store,
        last={one["name"]: one for one in vertices},
        built=frozenset(one["digest"] for one in vertices),
        sizes={one.sha256: one.size for one in lock.packages} if lock else {},
    )


def _walk(graph: Graph, state: _State) -> dict[str, Forecast]:
    for vertex in graph.walk():
        if isinstance(vertex.op, Merge):
            state.stacks[vertex.digest] = _merged(vertex, state)
        else:
            state.found[vertex.digest] = _forecast(vertex, state)
    return state.found


def _forecast(vertex: Vertex, state: _State) -> Forecast:
    layers = _remembered(vertex, state)
    if layers is not None:
        below = state.stacks.get(vertex.inputs[0].digest) if _is_step(vertex) else ()
        state.stacks[vertex.digest] = (*(below or ()), *layers)
        size = sum(layer.size for layer in layers)
        return Forecast("cached", "nothing it is made of changed", size=size)
    state.stacks[vertex.digest] = None
    download = _download(vertex, state)
    if _is_step(vertex) and state.stacks.get(vertex.inputs[0].digest) is None:
        if vertex.digest not in state.built and _op_is_new(vertex, state):
            return Forecast("build", _reason(vertex, state), download=download)
        return Forecast("maybe", _cause(vertex, state), download=download)
    return Forecast("build", _reason(vertex, state), download=download)


def _remembered(vertex: Vertex, state: _State) -> list[Layer] | None:
    """The layers that an earlier build made of exactly this, if they are all here."""
    if state.store is None or isinstance(vertex.op, Unresolved | Unbuilt):
        return None
    from danlu.builder.embedded.keys import definition_key, stack_key

    key = definition_key(vertex)
    if key is None:
        below = state.stacks.get(vertex.inputs[0].digest) if vertex.inputs else ()
        if below is None:
            return None
        key = stack_key(vertex.op, below)
    record = state.store.record(key)
    if record is None:
        return None
    layers = [state.store.layer(diff_id) for diff_id in record.get("layers", ())]
    return [one for one in layers if one is not None] if None not in layers else None


def _merged(vertex: Vertex, state: _State) -> tuple[Layer, ...] | None:
    """The stack of a merge; None where one of its inputs' is not known."""
    from danlu.builder.embedded.stacks import merged

    stacks = [state.stacks.get(one.digest) for one in vertex.inputs]
    known = [stack for stack in stacks if stack is not None]
    return merged(known) if len(known) == len(stacks) else None


def _is_step(vertex: Vertex) -> bool:
    from danlu.builder.embedded.registry import STEPS

    return type(vertex.op).__name__ in STEPS


def _op_is_new(vertex: Vertex, state: _State) -> bool:
    return vertex.name not in state.last


def _reason(vertex: Vertex, state: _State) -> str:
    """Why a vertex is to be built, in terms of the last build and of the user's lines."""
    where = f" ({vertex.spans[0]})" if vertex.spans else ""
    if isinstance(vertex.op, Unresolved):
        return f"not locked yet{where}"
    if isinstance(vertex.op, Unbuilt):
        return f"this version does not build it{where}"
    if vertex.digest in state.built:
        return "built before, but its layers are no longer in the store"
    if not state.built:
        return f"never built here{where}"
    if vertex.name in state.last:
        return f"changed since the last build{where}"
    before = _earlier_version(vertex, state)
    return f"was {before}{where}" if before else f"new since the last build{where}"


def _earlier_version(vertex: Vertex, state: _State) -> str:
    """``1.26.0`` where the last build had the same package in another version."""
    if not isinstance(vertex.op, Wheel):
        return ""
    start = f"{vertex.op.name} "
    names = [name for name in state.last if name.startswith(start)]
    return names[0].removeprefix(start) if names else ""


def _cause(vertex: Vertex, state: _State) -> str:
    """The lowest vertices below that are to be built, which make this one uncertain."""
    seen: set[str] = set()
    causes: list[str] = []
    pending = [vertex.inputs[0]] if vertex.inputs else []
    while pending:
        one = pending.pop(0)
        if one.digest in seen:
            continue
        seen.add(one.digest)
        forecast = state.found.get(one.digest)
        if forecast is not None and forecast.state == "build":
            causes.append(one.name)
        pending.extend(one.inputs)
    names = ", ".join(causes[:3]) + (f" and {len(causes) - 3} more" if len(causes) > 3 else "")
    return f"stands on {names}" if causes else "stands on something that is built first"


def _download(vertex: Vertex, state: _State) -> int:
    if isinstance(vertex.op, AptInstall | Bootstrap):
        return sum(deb.size for deb in vertex.op.packages)
    if isinstance(vertex.op, Wheel):
        return state.sizes.get(vertex.op.sha256, 0)
    return 0
