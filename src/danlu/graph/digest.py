"""Digests of vertices and graphs: canonical JSON of what an op holds, and of what it stands on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from danlu.graph.types import Graph, Op, Vertex

__all__ = [
    "OP_VERSIONS",
    "canonical",
    "digest_of",
    "graph_digest",
    "op_fields",
    "topological",
    "vertex_digest",
]

#: Raised by one when what an op *does* changes although its fields do not.
OP_VERSIONS: dict[str, int] = {}

_encoder = msgspec.json.Encoder(order="sorted")


def canonical(value: Any) -> bytes:
    """``value`` (dataclasses, tuples, strings, numbers) as JSON with sorted keys."""
    return _encoder.encode(value)


def op_fields(op: Op) -> dict[str, Any]:
    """An op as plain values with its kind and version, the part of it that its digest covers."""
    kind = type(op).__name__
    return {"kind": kind, "version": OP_VERSIONS.get(kind, 1), "op": op}


def digest_of(value: Any) -> str:
    """``sha256:…`` of the canonical JSON of ``value``."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def vertex_digest(vertex: Vertex) -> str:
    """The digest of one vertex; that of each input is computed once and kept on it."""
    return digest_of([op_fields(vertex.op), [one.digest for one in vertex.inputs]])


def graph_digest(graph: Graph) -> str:
    """The digest of a whole graph."""
    return digest_of([graph.root.digest, graph.config, graph.platform, graph.epoch])


def topological(root: Vertex) -> Iterator[Vertex]:
    """Each distinct vertex (by digest) below and including ``root``, inputs first."""
    seen: set[str] = set()
    pending: list[tuple[Vertex, bool]] = [(root, False)]
    while pending:
        vertex, expanded = pending.pop()
        if expanded:
            yield vertex
            continue
        if vertex.digest in seen:
            continue
        seen.add(vertex.digest)
        pending.append((vertex, True))
        pending.extend((one, False) for one in reversed(vertex.inputs))
