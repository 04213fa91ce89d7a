"""What of a build begins before the builder is loaded: the wheels that it will ask for first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from danlu.builder.embedded.keys import needed
from danlu.graph import Graph, Wheel
from danlu.sources import downloads

if TYPE_CHECKING:
    from danlu.builder.types import Request
    from danlu.sources.pypi.ahead import Ahead
    from danlu.store import Store
    from danlu.util.paths import Paths

__all__ = ["begun"]


@contextmanager
def begun(graph: Graph, request: Request, *, store: Store, paths: Paths) -> Iterator[Ahead | None]:
    """Begin with the wheels of ``graph`` that ``store`` lacks; killed at the end if still at it.

    For :func:`danlu.builder.embedded.build.build`, with the same arguments. None where nothing is
    missing, and where wheels are missing that are not all an index's, for one interpreter.
    """
    wheels = _missing(graph, request, store)
    if not _simple(wheels):
        yield None
        return
    from danlu.sources.pypi import ahead
    from danlu.sources.pypi.indexes import indexes_of
    from danlu.sources.pypi.uv import Uv

    indexes = indexes_of(request.pip_index, request.requirements)
    uv = Uv(paths.cache / "uv", request.project, indexes, offline=request.offline)
    with (
        downloads.in_use(paths.cache),
        store.staging() as workspace,
        ahead.begun(uv, wheels, workspace) as under_way,
    ):
        yield under_way


def _missing(graph: Graph, request: Request, store: Store) -> list[Wheel]:
    """The wheels that the solver will ask for together, in its order."""
    with store.reading():
        return [
            vertex.op
            for vertex, known in needed(graph.root, store, fresh=request.fresh)
            if isinstance(vertex.op, Wheel) and not vertex.inputs and not known
        ]


def _simple(wheels: list[Wheel]) -> bool:
    from_index = all(one.source.kind == "index" for one in wheels)
    return bool(wheels) and from_index and len({one.scheme for one in wheels}) == 1
