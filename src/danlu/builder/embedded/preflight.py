"""What a build does before the builder is loaded: check user ids, and start downloading wheels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from danlu.builder.embedded.cache_keys import iterate_pending
from danlu.builder.types import SolveRequest
from danlu.errors import MachineError
from danlu.graph.ops import (
    CondaPackage,
    ForeignAptInstall,
    ForeignBootstrap,
    HttpFile,
    UnpackArchive,
    Wheel,
)
from danlu.graph.types import Graph, Vertex
from danlu.sandbox import userns
from danlu.sources import downloads
from danlu.sources.http import is_fetched, preload_client
from danlu.sources.pypi.indexes import read_index_settings
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_install import WheelPrefetch, start_prefetch
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths


def require_subordinate_ids(graph: Graph, store: Store, *, fresh: bool = False) -> None:
    """Check that this account has the user ids that unsolved vertices of a graph need.

    Raises :class:`MachineError`, with the line to add to ``/etc/subuid``, if it has one id only.
    """
    if not userns.has_single_id():
        return
    for vertex, is_cached in iterate_pending(graph.root, store, fresh=fresh):
        reason = "" if is_cached else vertex.op.extra_ids_reason()
        try:
            if reason:
                userns.require_ids(reason)
        except MachineError as error:
            error.span = vertex.spans[0] if vertex.spans else None
            raise


def find_foreign_step(graph: Graph, store: Store, *, fresh: bool = False) -> Vertex | None:
    """Return an unsolved vertex that executes programs of another processor's image, if any.

    Systems of this machine are in the graph too, as tools: they are inputs of foreign vertices.
    """
    own = {vertex.digest for vertex in _list_image_vertices(graph.root)}
    for vertex, is_cached in iterate_pending(graph.root, store, fresh=fresh):
        if vertex.op.runs_programs and not is_cached and vertex.digest in own:
            return vertex
    return None


def _list_image_vertices(root: Vertex) -> Iterator[Vertex]:
    """Yield the vertices that end up in the image, without those of tools."""
    yield root
    inputs = root.inputs
    if isinstance(root.op, ForeignBootstrap):
        inputs = ()
    elif isinstance(root.op, ForeignAptInstall):
        inputs = inputs[:1]
    for below in inputs:
        yield from _list_image_vertices(below)


def preload_http_client(graph: Graph, request: SolveRequest, store: Store, paths: Paths) -> None:
    """Start loading the HTTP client if an archive or file of ``graph`` must be downloaded.

    Loading it takes as long as the rest of a build that adds a small package.
    """
    downloaded = (CondaPackage, HttpFile, UnpackArchive)
    if request.offline or not any(isinstance(vertex.op, downloaded) for vertex in graph.walk()):
        return
    with store.reading():
        for vertex, is_cached in iterate_pending(graph.root, store, fresh=request.fresh):
            op = vertex.op
            if is_cached or not isinstance(op, downloaded):
                continue
            if not is_fetched(op.sha256, paths.cache / "http"):
                preload_client()
                return


@contextmanager
def start_wheel_prefetch(
    graph: Graph, request: SolveRequest, *, store: Store, paths: Paths, config: Configuration
) -> Iterator[WheelPrefetch | None]:
    """Start downloading the wheels of ``graph`` that ``store`` lacks; stop at the end.

    The result is for :func:`danlu.builder.embedded.build.build` with the same arguments. It is None
    if nothing is missing, or if the missing wheels are not all from an index and for one
    interpreter: uv then needs files that only the builder prepares.
    """
    wheels = _find_missing_wheels(graph, request, store)
    if not _can_prefetch(wheels):
        yield None
        return
    indexes = read_index_settings(
        request.pip_index, request.python_packages, request.project, mirrors=config.mirrors
    )
    uv = Uv(paths.cache / "uv", request.project, indexes, offline=request.offline)
    with (
        downloads.prevent_pruning(paths.cache),
        store.staging() as workspace,
        start_prefetch(uv, wheels, workspace) as prefetch,
    ):
        yield prefetch


def _find_missing_wheels(graph: Graph, request: SolveRequest, store: Store) -> list[Wheel]:
    """Return the wheels that the solver will ask for in one batch, in its order."""
    if not any(isinstance(vertex.op, Wheel) for vertex in graph.walk()):
        return []
    with store.reading():
        return [
            vertex.op
            for vertex, is_cached in iterate_pending(graph.root, store, fresh=request.fresh)
            if isinstance(vertex.op, Wheel)
            and not vertex.inputs
            and not is_cached
            and request.find_request(vertex) is request
        ]


def _can_prefetch(wheels: list[Wheel]) -> bool:
    from_index = all(wheel.source.kind == "index" for wheel in wheels)
    return bool(wheels) and from_index and len({wheel.scheme for wheel in wheels}) == 1
