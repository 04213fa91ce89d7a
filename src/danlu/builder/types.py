"""The request and the result of every builder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from danlu.errors import Span

if TYPE_CHECKING:
    from danlu.environment.conda import CondaChannels
    from danlu.environment.types import AptSource, PipIndex, PythonPackages
    from danlu.graph.types import Vertex
    from danlu.oci.digest import DiffId
    from danlu.store import Layer, StoredImage


class SolveRequest(msgspec.Struct, frozen=True):
    """How to build a graph.

    * ``names`` are references for the image; ``metadata`` is stored with it.
    * ``secrets`` maps ids to files of this machine, ``ssh`` is the socket of an agent.
    * ``fresh`` runs every step again (``--no-cache``); ``debug`` opens a shell if a step fails.
    * ``apt_source``, ``pip_index``, ``conda_channels`` and ``python_packages`` are the package
      sources that the user declared; ``addresses`` maps addresses without credentials to those with
      them; ``mirrors`` are those that the build file sets, by name.
    * ``requests`` are those for vertices, by digest, that belong to environments with other package
      sources: their results are only copied from.
    """

    project: Path
    names: tuple[str, ...] = ()
    offline: bool = False
    fresh: bool = False
    secrets: Mapping[str, Path] = {}
    ssh: Path | None = None
    metadata: Mapping[str, str] = {}
    debug: bool = False
    apt_source: AptSource | None = None
    pip_index: PipIndex | None = None
    conda_channels: CondaChannels | None = None
    python_packages: tuple[PythonPackages, ...] = ()
    addresses: Mapping[str, str] = {}
    mirrors: Mapping[str, str] = {}
    requests: Mapping[str, SolveRequest] = {}

    def find_request(self, vertex: Vertex) -> SolveRequest:
        """Return the request with the package sources of a vertex."""
        return self.requests.get(vertex.digest, self)

    def has_same_sources(self, other: SolveRequest) -> bool:
        """Return whether packages come from the same places."""
        fields = ("apt_source", "pip_index", "conda_channels", "python_packages", "mirrors")
        return all(getattr(self, name) == getattr(other, name) for name in fields)


class VertexReport(msgspec.Struct, frozen=True):
    """What happened to a vertex: its time in seconds, whether it was cached, and its layers."""

    name: str
    digest: str
    cached: bool
    seconds: float
    size: int
    spans: tuple[Span, ...]
    layers: tuple[DiffId, ...] = ()


class SolveResult(msgspec.Struct, frozen=True):
    """A finished build: the image in the store, its layers, and a report for each vertex."""

    image: StoredImage
    layers: tuple[Layer, ...]
    vertices: tuple[VertexReport, ...]


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
