"""What every builder is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import Span

if TYPE_CHECKING:
    from danlu.environment.types import AptSource, PipIndex
    from danlu.oci.digest import DiffId
    from danlu.store import Layer, StoredImage

__all__ = ["Built", "Request", "VertexReport"]


class Request(msgspec.Struct, frozen=True):
    """How a graph is to be built.

    ``names`` are references the image gets; ``secrets`` maps ids to files of this machine, ``ssh``
    is the socket of an agent; ``metadata`` is kept with the image; ``fresh`` runs every step again
    (``--no-cache``); ``debug`` gives a shell where a step fails. ``apt_source``, ``pip_index`` and
    the files ``requirements`` are where the user says packages come from.
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
    requirements: tuple[Path, ...] = ()


class VertexReport(msgspec.Struct, frozen=True):
    """How one vertex went: seconds it took, whether a record answered for it, what it added."""

    name: str
    digest: str
    cached: bool
    seconds: float
    size: int
    spans: tuple[Span, ...]
    layers: tuple[DiffId, ...] = ()


class Built(msgspec.Struct, frozen=True):
    """A finished build: the image in the store, its layers, and how each vertex went."""

    image: StoredImage
    layers: tuple[Layer, ...]
    vertices: tuple[VertexReport, ...]
