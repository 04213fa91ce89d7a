"""The graph of a build function together with those of the functions that it copies from. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from danlu.assemble.assemble import assemble
from danlu.environment.lock import FunctionLock
from danlu.environment.types import Environment, ProjectDigests
from danlu.graph.ops import CopyImage, Platform
from danlu.graph.types import Graph, Vertex

#: Makes the graph of a target for a platform from the results of its sources.
MakeGraph = Callable[["Target", Platform, Mapping[str, Vertex]], Graph]


class Target(msgspec.Struct, frozen=True):
    """A function with its arguments (``name``), and what its graph is made of.

    ``tools`` is as in :func:`danlu.assemble.assemble.assemble`.
    """

    name: str
    environment: Environment
    lock: FunctionLock | None
    digests: ProjectDigests
    tools: FunctionLock | None = None


class TargetGraph(msgspec.Struct, frozen=True):
    """The graph of the last target, with those of the others in it.

    ``vertices`` are the digests of each target's own vertices: those that are not in its sources.
    A vertex of several targets belongs to the one that is built, else to the first.
    """

    graph: Graph
    vertices: Mapping[str, frozenset[str]]


def assemble_targets(
    targets: Sequence[Target],
    platform: Platform,
    make_graph: MakeGraph | None = None,
) -> TargetGraph:
    """Return the graph of the last of ``targets``; the others come after their own sources.

    The vertices that only others have get the target's name in front of theirs. ``make_graph``
    replaces :func:`~danlu.assemble.assemble.assemble`.
    """
    make_graph = make_graph or _assemble_target
    graphs = _assemble_in_order(targets, platform, make_graph, {})
    main = targets[-1].name
    if len(targets) == 1:
        return TargetGraph(graphs[main], {main: frozenset(v.digest for v in graphs[main].walk())})
    vertices: dict[str, frozenset[str]] = {}
    taken: set[str] = set()
    for target in (targets[-1], *targets[:-1]):
        roots = {graphs[name].root.digest for name in _list_sources(target)}
        own = {vertex.digest for vertex in _walk_own(graphs[target.name].root, roots)}
        vertices[target.name] = frozenset(own - taken)
        taken |= own
    # Names are not part of a digest, so the same graphs are made with other names.
    labels = {
        digest: name for name, digests in vertices.items() if name != main for digest in digests
    }
    return TargetGraph(_assemble_in_order(targets, platform, make_graph, labels)[main], vertices)


def _assemble_target(target: Target, platform: Platform, sources: Mapping[str, Vertex]) -> Graph:
    return assemble(
        target.environment,
        target.lock,
        target.digests,
        platform=platform,
        tools=target.tools,
        sources=sources,
    )


def _assemble_in_order(
    targets: Sequence[Target],
    platform: Platform,
    make_graph: MakeGraph,
    labels: Mapping[str, str],
) -> dict[str, Graph]:
    """Return the graph of each target; ``labels`` go in front of the names of vertices."""
    graphs: dict[str, Graph] = {}
    roots: dict[str, Vertex] = {}
    for target in targets:
        graphs[target.name] = make_graph(target, platform, roots)
        roots[target.name] = _label_vertex(graphs[target.name].root, labels, {})
    return graphs


def _list_sources(target: Target) -> set[str]:
    return {step.source_target() for step in target.environment.steps} - {""}


def _walk_own(root: Vertex, sources: set[str]) -> Iterator[Vertex]:
    """Yield the vertices of a graph without those below the results that it copies from."""
    seen: set[str] = set()
    pending = [root]
    while pending:
        vertex = pending.pop()
        if vertex.digest in seen:
            continue
        seen.add(vertex.digest)
        yield vertex
        is_copy = isinstance(vertex.op, CopyImage)
        pending += (item for item in vertex.inputs if not is_copy or item.digest not in sources)


def _label_vertex(vertex: Vertex, labels: Mapping[str, str], done: dict[str, Vertex]) -> Vertex:
    if vertex.digest not in done:
        inputs = tuple(_label_vertex(below, labels, done) for below in vertex.inputs)
        label = labels.get(vertex.digest, "")
        name = vertex.name
        if label and not name.startswith(f"{label}: "):
            name = f"{label}: {name}"
        done[vertex.digest] = dataclasses.replace(vertex, inputs=inputs, name=name)
    return done[vertex.digest]
