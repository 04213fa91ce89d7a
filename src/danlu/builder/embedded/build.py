"""The embedded builder as the rest of danlu sees it: a graph in, an image of the store out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from danlu.builder.embedded.context import Context, Result
from danlu.builder.embedded.registry import Modules
from danlu.builder.embedded.solver import Solver
from danlu.builder.types import Built, Request, VertexReport
from danlu.graph import Graph, ImageConfig, Progress
from danlu.oci.image import make_image
from danlu.sandbox.types import SYSTEM_PATH
from danlu.sources import downloads
from danlu.sources.pypi.indexes import indexes_of
from danlu.util.space import told

if TYPE_CHECKING:
    from danlu.oci.digest import DiffId
    from danlu.sandbox.sandbox import Sandbox
    from danlu.sources.pypi.ahead import Ahead
    from danlu.store import Store
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

__all__ = ["build", "image_config", "solve"]


async def build(
    graph: Graph,
    request: Request,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    ahead: Ahead | None = None,
) -> Built:
    """Build ``graph`` and put the image in ``store``; the caller holds a lease.

    ``ahead`` is what :func:`danlu.builder.embedded.ahead.begun` gave for the same build. The
    process must be root of its namespaces (:func:`danlu.sandbox.userns.enter`). Raises what
    the first failing vertex raises; what was finished before stays for the next time.
    """
    result, reports = await solve(
        graph,
        request,
        store=store,
        paths=paths,
        config=config,
        progress=progress,
        ahead=ahead,
    )
    made_by = makers(graph, reports)
    layers = [(layer.diff_id, made_by.get(layer.diff_id, "")) for layer in result.stack]
    data = image_config(graph, layers, result.inherited)
    image = store.put_image(
        data,
        [layer.diff_id for layer in result.stack],
        names=request.names,
        metadata=dict(request.metadata),
    )
    return Built(image, result.stack, reports)


async def solve(
    graph: Graph,
    request: Request,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    ahead: Ahead | None = None,
) -> tuple[Result, tuple[VertexReport, ...]]:
    """The layers of ``graph``, without making an image of them, and how each vertex went."""
    indexes = indexes_of(request.pip_index, request.requirements)
    with downloads.in_use(paths.cache), store.staging() as work:

        @cache
        def sandbox() -> Sandbox:
            from danlu.sandbox.sandbox import Sandbox

            return Sandbox(work, name=config.runtime)

        def context(
            inputs: tuple[Result, ...],
            log: Callable[[str], None],
            transfer: Callable[[int, int], None],
        ) -> Context:
            return Context(
                store=store,
                paths=paths,
                config=config,
                sandbox=sandbox,
                project=request.project,
                below=inputs[0].stack if inputs else (),
                inputs=inputs,
                log=log,
                transfer=transfer,
                run_sync=run_sync,
                offline=request.offline,
                debug=request.debug,
                apt_source=request.apt_source,
                indexes=indexes,
                secrets=request.secrets,
                ssh=request.ssh,
                ahead=ahead,
            )

        solver = Solver(store, context, progress, executors=Modules(), fresh=request.fresh)
        with told(f"the store ({store.root})"):
            result = await solver.solve(graph)
        return result, tuple(solver.reports)


async def run_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function in a worker thread; cancelling waits for its end."""
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))


def makers(graph: Graph, reports: Sequence[VertexReport]) -> dict[DiffId, str]:
    """How each layer came to be, in the graph's words.

    Not in those of the store: there another project's build may have made the same layer, and
    then one lock would give two images.
    """
    layers = {report.digest: report.layers for report in reports}
    made: dict[DiffId, str] = {}
    for vertex in graph.walk():
        for diff_id in layers.get(vertex.digest, ()):
            made.setdefault(diff_id, vertex.name)
    return made


def image_config(
    graph: Graph, layers: Sequence[tuple[DiffId, str]], inherited: ImageConfig
) -> bytes:
    """The image's configuration: the graph's over the base's (OCI image spec, config.md).

    ``layers`` are diff ids and how they came to be, lowest first.
    """
    own = graph.config
    variables = dict(inherited.environment)
    path = variables.get("PATH", SYSTEM_PATH)
    variables.update(own.environment)
    variables["PATH"] = ":".join((*own.path, variables.get("PATH", path)))
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
