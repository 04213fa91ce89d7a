"""The embedded builder's interface: a graph in, an image in the store out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from danlu.assemble.assemble import assemble_system
from danlu.builder.embedded.context import (
    LAYER_FORMAT,
    OpContext,
    SolveRequest,
    StepRunner,
    TransferReport,
    VertexReport,
    VertexResult,
    definition_key,
    extend_environment,
)
from danlu.builder.embedded.solver import Solver
from danlu.errors import MachineError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import (
    CondaPackage,
    ForeignAptInstall,
    ForeignBootstrap,
    HttpFile,
    Merge,
    UnpackArchive,
    Wheel,
    parse_platform,
)
from danlu.graph.processor_level import (
    LEVEL_ARCHITECTURE,
    LEVEL_LABEL,
    choose_level,
    to_variant,
)
from danlu.graph.progress import Message, Progress
from danlu.graph.types import Graph, Vertex, digest_of
from danlu.oci.image import make_image
from danlu.sandbox import userns
from danlu.sandbox.emulation import require_emulation
from danlu.sources import downloads
from danlu.sources.http import is_fetched, preload_client
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_install import WheelPrefetch, start_prefetch
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.util.disk_full import translate_disk_full
from danlu.util.worker_pool import WorkerPool

if TYPE_CHECKING:
    from danlu.environment.lock import FunctionLock
    from danlu.environment.types import Environment
    from danlu.oci.digest import DiffId
    from danlu.sandbox.types import Mount
    from danlu.store import Store, StoredImage
    from danlu.util.config import Configuration
    from danlu.util.paths import Paths

#: Makes what runs the commands of one vertex; the argument takes the bytes transferred for it.
MakeSandbox = Callable[[Callable[[int, int], None]], StepRunner]


def find_image(graph: Graph, request: SolveRequest, store: Store) -> StoredImage | None:
    """Return the image that an earlier build made of the same graph, if nothing of it is gone."""
    record = None if request.fresh else store.record(_image_key(graph, request))
    return store.image(record["config"]) if record else None


def _image_key(graph: Graph, request: SolveRequest) -> str:
    # Names of vertices are in the image's history, but not in the digest of the graph.
    names = [vertex.name for vertex in graph.walk()]
    return digest_of(["image", LAYER_FORMAT, graph.digest, names, request.metadata])


def list_unsolved(graph: Graph, store: Store, *, fresh: bool = False) -> tuple[Vertex, ...]:
    """Return the vertices that no record answers for, without what is below recorded ones.

    With ``fresh`` there are no records. Ops that read the stack below are among them: their records
    are found when that is solved.
    """
    unsolved: list[Vertex] = []
    seen: set[str] = set()
    pending = [graph.root]
    with store.reading():
        while pending:
            vertex = pending.pop()
            if vertex.digest in seen:
                continue
            seen.add(vertex.digest)
            key = definition_key(vertex)
            is_cached = key is not None and not fresh and store.record(key) is not None
            if not is_cached:
                unsolved.append(vertex)
            if not is_cached or isinstance(vertex.op, Merge):
                pending.extend(reversed(vertex.inputs))
    return tuple(unsolved)


def commit_image(
    graph: Graph,
    request: SolveRequest,
    result: VertexResult,
    reports: tuple[VertexReport, ...],
    store: Store,
) -> StoredImage:
    """Put the image of a graph that :func:`solve_graph` has solved in the store, and return it."""
    made_by = find_layer_creators(graph, reports)
    layers = [(layer.diff_id, made_by.get(layer.diff_id, "")) for layer in result.stack]
    data = make_image_config(graph, layers, result.inherited)
    diff_ids = [layer.diff_id for layer in result.stack]
    image = store.put_image(data, diff_ids, names=request.names, metadata=dict(request.metadata))
    store.put_record(_image_key(graph, request), {"config": image.digest}, layers=diff_ids)
    return image


async def solve_graph(
    graph: Graph,
    request: SolveRequest,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    unsolved: Sequence[Vertex] | None = None,
    prefetched: WheelPrefetch | None = None,
    make_sandbox: MakeSandbox | None = None,
) -> tuple[VertexResult, tuple[VertexReport, ...]]:
    """Solve ``graph`` without making an image; return its layers and a report for each vertex.

    The caller holds a lease, and the process must be root of its namespaces
    (:func:`danlu.sandbox.userns.enter`). Raises what the first failing vertex raises; vertices that
    were finished stay cached.

    ``unsolved`` and ``prefetched`` are the results of :func:`list_unsolved` and
    :func:`prefetch_wheels` for the same build if these were called before. Commands run in
    containers on this machine, or in what ``make_sandbox`` returns.
    """
    if unsolved is None:
        unsolved = list_unsolved(graph, store, fresh=request.fresh)
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

            return Sandbox(
                work, name=config.runtime, seccomp=config.seccomp, trusted=request.trusted
            )

        def context(
            vertex: Vertex,
            inputs: tuple[VertexResult, ...],
            log: Callable[[str], None],
            transfer: TransferReport,
        ) -> OpContext:
            own = request.find_request(vertex)
            return OpContext(
                request=own,
                store=store,
                paths=paths,
                config=config,
                sandbox=local_sandbox if make_sandbox is None else partial(make_sandbox, transfer),
                inputs=inputs,
                log=log,
                transfer=transfer,
                run_sync=run_sync,
                warn=lambda text: progress(Message(f"warning: {text}", time.monotonic() - began)),
                indexes=indexes[id(own)],
                prefetched=prefetched if own is request else None,
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
                result = await solver.solve(graph, unsolved)
        return result, tuple(solver.reports)


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
def prefetch_wheels(
    unsolved: Sequence[Vertex],
    request: SolveRequest,
    *,
    store: Store,
    paths: Paths,
    config: Configuration,
) -> Iterator[WheelPrefetch | None]:
    """Install the wheels that ``store`` lacks, while the code that makes layers of them is loaded.

    Yields None if nothing is missing, or if the missing wheels are not all from an index and for
    one interpreter: uv then needs files that only the executor prepares.
    """
    # Those that the solver will ask for in one batch, in its order.
    wheels = [
        vertex.op
        for vertex in unsolved
        if isinstance(vertex.op, Wheel)
        and not vertex.inputs
        and request.find_request(vertex) is request
    ]
    are_from_index = all(
        wheel.source.kind == "index" and not split_variant_label(wheel.file)[1] for wheel in wheels
    )
    if not wheels or not are_from_index or len({wheel.scheme for wheel in wheels}) > 1:
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


async def run_in_system(
    environment: Environment,
    lock: FunctionLock,
    arguments: Sequence[str],
    mounts: Sequence[Mount],
    variables: Mapping[str, str],
    *,
    tools: FunctionLock | None,
    request: SolveRequest,
    store: Store,
    paths: Paths,
    config: Configuration,
    progress: Progress,
    on_line: Callable[[str], None],
) -> int:
    """Run a program in the base and system packages of a lock, and return its exit code.

    Source distributions are built there. The layers are built if needed; ``tools`` is as in
    :func:`danlu.assemble.assemble.assemble`.
    """
    # Most locks have wheels for everything.
    from danlu.sandbox.sandbox import Sandbox
    from danlu.sandbox.types import ProcessSpec, RootFilesystem
    from danlu.sources.pypi.sdist_build import BUILDER_UID

    platform = parse_platform(lock.platform)
    require_emulation(platform, "building a source distribution")
    system, _ = await solve_graph(
        assemble_system(environment, lock, platform, tools),
        request.with_sources(environment),
        store=store,
        paths=paths,
        config=config,
        progress=progress,
    )
    with store.staging() as work:
        upper = work / "upper"
        upper.mkdir()
        root = RootFilesystem(tuple(layer.tree for layer in system.stack), upper)
        process = ProcessSpec(tuple(arguments), variables, uid=BUILDER_UID, gid=BUILDER_UID)
        sandbox = Sandbox(work, name=config.runtime, seccomp=config.seccomp)
        return await sandbox.run(process, root, mounts=mounts, on_line=on_line)


async def run_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a blocking function in a worker thread; cancelling waits for its end."""
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))


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
    labels = dict([*inherited.labels, *own.labels])
    # What the base's programs need, the image needs, too.
    level = choose_level(
        *(dict(each).get(LEVEL_LABEL, "") for each in (inherited.labels, own.labels))
    )
    labels.pop(LEVEL_LABEL, None)
    if graph.platform.architecture != LEVEL_ARCHITECTURE:
        level = ""
    elif level:
        labels[LEVEL_LABEL] = level
    image = make_image(
        layers,
        architecture=graph.platform.architecture,
        os=graph.platform.os,
        variant=graph.platform.variant or to_variant(level),
        created=graph.epoch,
        environment=sorted(variables.items()),
        entrypoint=own.entrypoint or inherited.entrypoint,
        # A new entrypoint makes the base's arguments meaningless (Dockerfile reference, CMD).
        command=own.command or (() if own.entrypoint else inherited.command),
        working_directory=own.working_directory or inherited.working_directory,
        user=own.user or inherited.user,
        exposed_ports=sorted({*own.exposed_ports, *inherited.exposed_ports}),
        labels=labels,
    )
    return image.config
