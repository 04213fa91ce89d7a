"""The build graph: vertices that carry ops, the graph of a whole build, and digests of both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from danlu.errors import Span
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import Op, Platform

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """Return ``value`` (structs, dataclasses, tuples, texts, numbers) as JSON with sorted keys."""
    return _encoder.encode(value)


def digest_of(value: Any) -> str:
    """Return ``sha256:…`` of the canonical JSON of ``value``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def op_fields(op: Op) -> dict[str, Any]:
    """Return an op with its name and version: the part of it that its digest covers."""
    return {"kind": op.op_name(), "version": op.op_version, "op": op}


@dataclass(frozen=True)
class Vertex:
    """An op with its inputs, a name that people read and lines of the build file.

    ``branch`` groups vertices in progress output (``base``, ``system``, ``python``, ``steps``).
    Name, branch and spans are not part of the digest: vertices with equal ops and inputs have the
    same one.
    """

    op: Op
    inputs: tuple[Vertex, ...] = ()
    name: str = field(default="", compare=False)
    branch: str = field(default="", compare=False)
    spans: tuple[Span, ...] = field(default=(), compare=False)

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` of the op and the digests of the inputs."""
        return digest_of([op_fields(self.op), [vertex.digest for vertex in self.inputs]])


@dataclass(frozen=True)
class Graph:
    """A whole build: the vertex whose stack is the image, and the image's configuration.

    ``config`` overrides the configuration of the base image, if there is one. ``epoch`` is
    the image's creation time in seconds (UTC).
    """

    root: Vertex
    config: ImageConfig
    platform: Platform
    epoch: int

    def walk(self) -> Iterator[Vertex]:
        """Yield every distinct vertex (by digest) once, inputs before those that use them."""
        seen: set[str] = set()
        pending: list[tuple[Vertex, bool]] = [(self.root, False)]
        while pending:
            vertex, is_expanded = pending.pop()
            if is_expanded:
                yield vertex
                continue
            if vertex.digest in seen:
                continue
            seen.add(vertex.digest)
            pending.append((vertex, True))
            pending.extend((parent, False) for parent in reversed(vertex.inputs))

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` of the root, the configuration, the platform and the epoch."""
        return digest_of([self.root.digest, self.config, self.platform, self.epoch])
