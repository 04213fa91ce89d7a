"""Cache keys: under what a vertex's result is remembered.

What does not depend on what lies below is keyed by its definition, so nothing below need be there
to find it. What runs in a stack is keyed by the op and the *content* of that stack, so that a
changed line that changed no byte runs nothing again. Neither holds times, users or paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from danlu.builder.embedded.registry import STEPS
from danlu.graph import CopyImage, Merge, Op, Vertex
from danlu.graph.digest import digest_of, op_fields
from danlu.store import Layer, Store

__all__ = ["FORMAT", "definition_key", "needed", "stack_key"]

#: Raised when layers of the same definition come out differently than before.
FORMAT = 2


def definition_key(vertex: Vertex) -> str | None:
    """The key of a vertex that its definition alone decides, else None."""
    if type(vertex.op).__name__ in STEPS or isinstance(vertex.op, CopyImage):
        return None
    return digest_of(["vertex", FORMAT, vertex.digest])


def stack_key(op: Op, stack: Sequence[Layer]) -> str:
    """The key of an op that sees the content of ``stack``."""
    return digest_of(["stack", FORMAT, op_fields(op), [layer.diff_id for layer in stack]])


def needed(root: Vertex, store: Store, *, fresh: bool) -> Iterator[tuple[Vertex, bool]]:
    """Vertices in order, but nothing below one whose definition a record answers for.

    Each with whether one does; with ``fresh`` none does.
    """
    seen: set[str] = set()
    pending = [root]
    while pending:
        vertex = pending.pop()
        if vertex.digest in seen:
            continue
        seen.add(vertex.digest)
        key = definition_key(vertex)
        known = key is not None and not fresh and store.record(key) is not None
        yield vertex, known
        if not known or isinstance(vertex.op, Merge):
            pending.extend(reversed(vertex.inputs))
