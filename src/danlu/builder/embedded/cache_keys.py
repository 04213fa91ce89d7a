"""Cache keys: under which the result of a vertex is recorded in the store.

A vertex that does not read the stack below is keyed by its definition, so it is found without
solving anything below it. One that does is keyed by its op and the *content* of that stack: a
changed line that changes no byte runs nothing again. Neither key has times, users or paths.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.builder.embedded.context import VertexResult
from danlu.graph.digest import digest_of, op_fields
from danlu.graph.ops import Merge, Op
from danlu.graph.types import Graph, Vertex
from danlu.store import Store

#: Raised by one if layers of the same definition get different bytes than before.
LAYER_FORMAT = 3


def definition_key(vertex: Vertex) -> str | None:
    """Return the key of a vertex that its definition alone decides, else None."""
    if vertex.op.reads_inputs:
        return None
    return digest_of(["vertex", LAYER_FORMAT, vertex.digest])


def stack_key(op: Op, inputs: Sequence[VertexResult]) -> str:
    """Return the key of an op that reads the stack of its first input.

    Programs run with the variables of the base image, which are part of the key, too.
    """
    stack = inputs[0].stack if inputs else ()
    key: list[object] = [op_fields(op), [layer.diff_id for layer in stack]]
    variables = inputs[0].inherited.environment if inputs else ()
    return digest_of(["stack", LAYER_FORMAT, *key, *([variables] if variables else [])])


def list_unsolved(graph: Graph, store: Store, *, fresh: bool = False) -> tuple[Vertex, ...]:
    """Return the vertices that no record answers for, without what is below recorded ones.

    With ``fresh`` there are no records. Ops that read the stack below are among them: their records
    are found when that is solved.
    """
    unsolved: list[Vertex] = []
    seen: set[str] = set()
    pending = [graph.root]
    with store.reading():
        while pending:
            vertex = pending.pop()
            if vertex.digest in seen:
                continue
            seen.add(vertex.digest)
            key = definition_key(vertex)
            is_cached = key is not None and not fresh and store.record(key) is not None
            if not is_cached:
                unsolved.append(vertex)
            if not is_cached or isinstance(vertex.op, Merge):
                pending.extend(reversed(vertex.inputs))
    return tuple(unsolved)
