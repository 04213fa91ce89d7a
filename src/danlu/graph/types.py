"""The build graph: vertices that carry ops, and the graph of a whole build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from danlu.errors import Span
from danlu.graph.digest import digest_of, op_fields
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import Op, Platform


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
