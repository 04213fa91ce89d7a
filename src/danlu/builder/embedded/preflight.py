"""What a build does before the builder is loaded: check user ids, and start downloading wheels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def list_unsolved(graph: Graph, store: Store, *, fresh: bool = False) -> tuple[Vertex, ...]:
    """Return the vertices that no record answers for, without what is below recorded ones."""
    with store.reading():
        pending = iterate_pending(graph.root, store, fresh=fresh)
        return tuple(vertex for vertex, is_cached in pending if not is_cached)


def require_subordinate_ids(unsolved: Sequence[Vertex]) -> None:
    """Check that this account has the user ids that vertices of a graph need.

    Raises :class:`MachineError`, with the line to add to ``/etc/subuid``, if it has one id only.
    """
    if not userns.has_single_id():
        return
    for vertex in unsolved:
        try:
            if reason := vertex.op.extra_ids_reason():
                userns.require_ids(reason)
        except MachineError as error:
            error.span = vertex.spans[0] if vertex.spans else None
            raise


def find_foreign_step(graph: Graph, unsolved: Sequence[Vertex]) -> Vertex | None:
    """Return a vertex that executes programs of another processor's image, if any.

    Systems of this machine are in the graph too, as tools: they are inputs of foreign vertices.
    """
    own = {vertex.digest for vertex in _list_image_vertices(graph.root)}
    steps = (vertex for vertex in unsolved if vertex.op.runs_programs)
    return next((vertex for vertex in steps if vertex.digest in own), None)


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


def preload_http_client(unsolved: Sequence[Vertex], request: SolveRequest, paths: Paths) -> None:
    """Start loading the HTTP client if an archive or file must be downloaded.

    Loading it takes as long as the rest of a build that adds a small package.
    """
    if request.offline:
        return
    ops = (vertex.op for vertex in unsolved)
    downloaded = (op for op in ops if isinstance(op, CondaPackage | HttpFile | UnpackArchive))
    if any(not is_fetched(op.sha256, paths.cache / "http") for op in downloaded):
        preload_client()


@contextmanager
def start_wheel_prefetch(
    unsolved: Sequence[Vertex],
    request: SolveRequest,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
) -> Iterator[WheelPrefetch | None]:
    """Start downloading the wheels that ``store`` lacks; stop at the end.

    The result is for :func:`danlu.builder.embedded.build.build` of the same graph and request. It
    is None if nothing is missing, or if the missing wheels are not all from an index and for one
    interpreter: uv then needs files that only the builder prepares.
    """
    # Those that the solver will ask for in one batch, in its order.
    wheels = [
        vertex.op
        for vertex in unsolved
        if isinstance(vertex.op, Wheel)
        and not vertex.inputs
        and request.find_request(vertex) is request
    ]
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


def _can_prefetch(wheels: list[Wheel]) -> bool:
    from_index = all(wheel.source.kind == "index" for wheel in wheels)
    return bool(wheels) and from_index and len({wheel.scheme for wheel in wheels}) == 1
