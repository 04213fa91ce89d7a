"""The embedded builder's interface: a graph in, an image in the store out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from danlu.builder.embedded.context import (
    OpContext,
    StepRunner,
    TransferReport,
    VertexResult,
    extend_environment,
)
from danlu.builder.embedded.solver import Solver
from danlu.builder.types import SolveRequest, SolveResult, VertexReport
from danlu.graph.image_config import ImageConfig
from danlu.graph.progress import Message, Progress
from danlu.graph.types import Graph, Vertex
from danlu.oci.image import make_image
from danlu.sources import downloads
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from danlu.util.disk_full import translate_disk_full
from danlu.util.worker_pool import WorkerPool

if TYPE_CHECKING:
    from danlu.oci.digest import DiffId
    from danlu.sources.pypi.uv_install import WheelPrefetch
    from danlu.store import Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

#: Makes what runs the commands of one vertex; the argument takes the bytes transferred for it.
MakeSandbox = Callable[[Callable[[int, int], None]], StepRunner]


async def build(
    graph: Graph,
    request: SolveRequest,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    prefetched: WheelPrefetch | None = None,
    make_sandbox: MakeSandbox | None = None,
) -> SolveResult:
    """Build ``graph`` and put the image in ``store``; the caller holds a lease.

    ``prefetched`` comes from :func:`danlu.builder.embedded.preflight.start_wheel_prefetch` for the
    same build; ``make_sandbox`` is as in :func:`solve`. The process must be root of its namespaces
    (:func:`danlu.sandbox.userns.enter`). Raises what the first failing vertex raises; vertices that
    were finished stay cached.
    """
    result, reports = await solve(
        graph,
        request,
        store=store,
        paths=paths,
        config=config,
        progress=progress,
        prefetched=prefetched,
        make_sandbox=make_sandbox,
    )
    made_by = find_layer_creators(graph, reports)
    layers = [(layer.diff_id, made_by.get(layer.diff_id, "")) for layer in result.stack]
    data = make_image_config(graph, layers, result.inherited)
    image = store.put_image(
        data,
        [layer.diff_id for layer in result.stack],
        names=request.names,
        metadata=dict(request.metadata),
    )
    return SolveResult(image, result.stack, reports)


async def solve(
    graph: Graph,
    request: SolveRequest,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    prefetched: WheelPrefetch | None = None,
    make_sandbox: MakeSandbox | None = None,
) -> tuple[VertexResult, tuple[VertexReport, ...]]:
    """Solve ``graph`` without making an image; return its layers and a report for each vertex.

    Commands run in containers on this machine, or in what ``make_sandbox`` returns.
    """
    indexes: dict[int, IndexSettings] = {}
    for own in (request, *request.requests.values()):
        if id(own) not in indexes:
            indexes[id(own)] = read_index_settings(
                own.pip_index, own.python_packages, own.project, mirrors=config.mirrors
            )
    began = time.monotonic()
    with downloads.prevent_pruning(paths.cache), store.staging() as work:

        @cache
        def local_sandbox() -> StepRunner:
            from danlu.sandbox.sandbox import Sandbox

            return Sandbox(work, name=config.runtime, seccomp=config.seccomp)

        def context(
            vertex: Vertex,
            inputs: tuple[VertexResult, ...],
            log: Callable[[str], None],
            transfer: TransferReport,
        ) -> OpContext:
            own = request.find_request(vertex)
            return OpContext(
                store=store,
                paths=paths,
                config=config,
                sandbox=local_sandbox if make_sandbox is None else partial(make_sandbox, transfer),
                project=request.project,
                below=inputs[0].stack if inputs else (),
                inputs=inputs,
                log=log,
                transfer=transfer,
                run_sync=run_sync,
                warn=lambda text: progress(Message(f"warning: {text}", time.monotonic() - began)),
                offline=request.offline,
                debug=request.debug,
                apt_source=own.apt_source,
                indexes=indexes[id(own)],
                conda_channels=own.conda_channels,
                secrets=request.secrets,
                ssh=request.ssh,
                prefetched=prefetched if own is request else None,
                addresses=request.addresses,
                mirrors=own.mirrors,
                workers=workers,
            )

        solver = Solver(
            store,
            context,
            progress,
            fresh=request.fresh,
            group_by=lambda vertex: id(request.find_request(vertex)),
        )
        async with WorkerPool() as workers:
            with translate_disk_full(f"the store ({store.root})"):
                result = await solver.solve(graph)
        return result, tuple(solver.reports)


async def run_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function in a worker thread; cancelling waits for its end."""
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))


def find_layer_creators(graph: Graph, reports: Sequence[VertexReport]) -> dict[DiffId, str]:
    """Return the name of the vertex that made each layer, for the image's history.

    The store knows who made a layer first, but that may have been another project's build: with its
    names, the same lock could give two images.
    """
    layers = {report.digest: report.layers for report in reports}
    made: dict[DiffId, str] = {}
    for vertex in graph.walk():
        for diff_id in layers.get(vertex.digest, ()):
            made.setdefault(diff_id, vertex.name)
    return made


def make_image_config(
    graph: Graph, layers: Sequence[tuple[DiffId, str]], inherited: ImageConfig
) -> bytes:
    """Return the image's configuration: the graph's over the base's (OCI image spec, config.md).

    ``layers`` are diff IDs with the name of what made them, lowest first.
    """
    own = graph.config
    variables = extend_environment(inherited, own.environment, own.path)
    image = make_image(
        layers,
        architecture=graph.platform.architecture,
        os=graph.platform.os,
        variant=graph.platform.variant,
        created=graph.epoch,
        environment=sorted(variables.items()),
        entrypoint=own.entrypoint or inherited.entrypoint,
        # A new entrypoint makes the base's arguments meaningless (Dockerfile reference, CMD).
        command=own.command or (() if own.entrypoint else inherited.command),
        working_directory=own.working_directory or inherited.working_directory,
        user=own.user or inherited.user,
        exposed_ports=sorted({*own.exposed_ports, *inherited.exposed_ports}),
        labels=dict([*inherited.labels, *own.labels]),
    )
    return image.config
