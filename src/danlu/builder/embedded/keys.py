"""Cache keys: under what a vertex's result is remembered.

What does not depend on what lies below is keyed by its definition, so nothing below need be there
to find it. What runs in a stack is keyed by the op and the *content* of that stack, so that a
changed line that changed no byte runs nothing again. Neither holds times, users or paths.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.builder.embedded.registry import STEPS
from danlu.graph import CopyImage, Op, Vertex
from danlu.graph.digest import digest_of, op_fields
from danlu.store import Layer

__all__ = ["FORMAT", "definition_key", "stack_key"]

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
