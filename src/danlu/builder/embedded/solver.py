"""Solve a build graph: execute each vertex as soon as its inputs are done, unless it is cached.

The solver knows cache keys, cache records and the order of vertices. How an op is executed is up
to the module of its name in :mod:`danlu.builder.embedded.ops`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import to_thread

from danlu.builder.embedded.collisions import reject_collisions, reject_replacements
from danlu.builder.embedded.context import (
    OpContext,
    OpOutput,
    TransferReport,
    VertexReport,
    VertexResult,
    definition_key,
    make_cached_result,
    merge_results,
    stack_key,
)
from danlu.errors import DanluError, UsageError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import Merge, Op, Unresolved
from danlu.graph.progress import Finished, Log, Progress, Started, Transfer
from danlu.graph.types import Graph, Vertex
from danlu.store import Layer, Store
from danlu.util.exception_groups import unwrap_group

#: Makes the context of a vertex from the results of its inputs, a log and a transfer callback.
MakeContext = Callable[
    [Vertex, tuple[VertexResult, ...], Callable[[str], None], TransferReport], OpContext
]


def load_executor(op: Op) -> Any:
    """Return the module that executes an op.

    It has ``async execute(op, context)``, which returns the new layers, lowest first, or an
    :class:`OpOutput` if there is more than layers. The module of a batched op also has ``async
    execute_all(ops, context, transfers)``, which returns the layers of each op and reports the
    transfer of each.
    """
    return import_module(f"danlu.builder.embedded.ops.{op.module_name()}")


@dataclass
class _VertexJob:
    """A vertex being solved. ``done`` is set after ``result``, or never if the build fails."""

    vertex: Vertex
    done: anyio.Event = field(default_factory=anyio.Event)
    result: VertexResult | None = None

    async def wait(self) -> VertexResult:
        await self.done.wait()
        assert self.result is not None
        return self.result

    def finish(self, result: VertexResult) -> None:
        self.result = result
        self.done.set()


class Solver:
    """One build of one graph. Only vertices with the same ``group_by`` are executed as a batch."""

    def __init__(
        self,
        store: Store,
        make_context: MakeContext,
        progress: Progress,
        *,
        executors: Callable[[Op], Any] = load_executor,
        fresh: bool = False,
        group_by: Callable[[Vertex], object] = lambda vertex: None,
    ) -> None:
        self._store = store
        self._executors = executors
        self._make_context = make_context
        self._progress = progress
        self._fresh = fresh
        self._group_by = group_by
        self._jobs: dict[str, _VertexJob] = {}
        self._start_time = time.monotonic()
        self.reports: list[VertexReport] = []

    async def solve(self, graph: Graph, unsolved: Iterable[Vertex]) -> VertexResult:
        """Return the result of the graph's root.

        ``unsolved`` is what :func:`~danlu.builder.embedded.build.list_unsolved` returns for the
        graph. Raises :class:`UsageError` for what is not locked, and whatever the first vertex that
        fails raises; all others are cancelled then.
        """
        _require_lock(graph)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._start_batches(unsolved)
                root = self._start_vertex(graph.root)
        except BaseExceptionGroup as failures:
            raise unwrap_group(failures) from failures
        return await root.wait()

    def _start_vertex(self, vertex: Vertex) -> _VertexJob:
        job = self._jobs.get(vertex.digest)
        if job is None:
            job = self._jobs[vertex.digest] = _VertexJob(vertex)
            self._group.start_soon(self._solve_vertex, job)
        return job

    async def _solve_vertex(self, job: _VertexJob) -> None:
        job.finish(await self._compute_result(job.vertex))

    async def _compute_result(self, vertex: Vertex) -> VertexResult:
        key = definition_key(vertex)
        if key is not None and not isinstance(vertex.op, Merge):
            cached = self._lookup_cache(vertex, key)
            if cached is not None:
                return cached
        jobs = [self._start_vertex(parent) for parent in vertex.inputs]
        inputs = tuple([await job.wait() for job in jobs])
        if isinstance(vertex.op, Merge):
            await to_thread.run_sync(reject_collisions, _list_exclusive_layers(vertex, inputs))
            await to_thread.run_sync(_reject_replacements, vertex, inputs)
            return merge_results(inputs)
        if key is None:
            # Only now is it known what the op reads: a changed line may have changed no byte.
            key = stack_key(vertex.op, inputs)
            cached = self._lookup_cache(vertex, key, inputs)
            if cached is not None:
                return cached
        return await self._execute_vertex(vertex, key, inputs)

    def _lookup_cache(
        self,
        vertex: Vertex,
        key: str,
        inputs: tuple[VertexResult, ...] = (),
    ) -> VertexResult | None:
        record = None if self._fresh else self._store.record(key)
        if record is None:
            return None
        layers = [self._store.layer(diff_id) for diff_id in record["layers"]]
        artifacts = {name: Path(path) for name, path in record.get("artifacts", {}).items()}
        existing = tuple(layer for layer in layers if layer is not None)
        # Artifacts are in the download cache, which the user may delete at any time.
        if len(existing) < len(layers) or not all(path.exists() for path in artifacts.values()):
            return None
        self._report_vertex(vertex, cached=True, seconds=0.0, layers=existing)
        return make_cached_result(vertex.op, record, existing, inputs, artifacts)

    async def _execute_vertex(
        self, vertex: Vertex, key: str, inputs: tuple[VertexResult, ...]
    ) -> VertexResult:
        started = time.monotonic()
        self._report_start(vertex)
        context = self._make_context(
            vertex, inputs, self._log_callback(vertex), self._transfer_callback(vertex)
        )
        try:
            result = await self._run_op(vertex.op, context)
        except DanluError as error:
            if error.span is None and vertex.spans:
                error.span = vertex.spans[0]
            self._report_failure(vertex, time.monotonic() - started, error)
            raise
        self._save_cache(key, result)
        seconds = time.monotonic() - started
        self._report_vertex(vertex, cached=False, seconds=seconds, layers=result.layers)
        return result

    async def _run_op(self, op: Op, context: OpContext) -> VertexResult:
        output = await self._executors(op).execute(op, context)
        if not isinstance(output, OpOutput):
            output = OpOutput(tuple(output))
        below = context.below if op.is_step else ()
        inherited = output.inherited
        if inherited is None:
            inherited = context.inputs[0].inherited if context.inputs else ImageConfig()
        return VertexResult(output.layers, (*below, *output.layers), output.artifacts, inherited)

    def _start_batches(self, unsolved: Iterable[Vertex]) -> None:
        """Start the vertices that are cheaper together: wheels, which one call to uv unpacks."""
        batches: dict[object, list[_VertexJob]] = {}
        for vertex in unsolved:
            if vertex.op.is_batched and not vertex.inputs:
                job = self._jobs[vertex.digest] = _VertexJob(vertex)
                batches.setdefault(self._group_by(vertex), []).append(job)
        for jobs in batches.values():
            self._group.start_soon(self._solve_batch, jobs)

    async def _solve_batch(self, jobs: list[_VertexJob]) -> None:
        started = time.monotonic()
        for job in jobs:
            self._report_start(job.vertex)
        first = jobs[0].vertex
        context = self._make_context(
            first, (), self._log_callback(first), self._transfer_callback(first)
        )
        try:
            outputs = await self._executors(first.op).execute_all(
                [job.vertex.op for job in jobs],
                context,
                [self._transfer_callback(job.vertex) for job in jobs],
            )
        except DanluError as error:
            for job in jobs:
                self._report_failure(job.vertex, time.monotonic() - started, error)
            raise
        for job, output in zip(jobs, outputs, strict=True):
            layers = tuple(output)
            result = VertexResult(layers, layers)
            key = definition_key(job.vertex)
            assert key is not None
            self._save_cache(key, result)
            seconds = time.monotonic() - started
            self._report_vertex(job.vertex, cached=False, seconds=seconds, layers=layers)
            job.finish(result)

    def _save_cache(self, key: str, result: VertexResult) -> None:
        record: dict[str, Any] = {"layers": [layer.diff_id for layer in result.layers]}
        if result.artifacts:
            record["artifacts"] = {name: str(path) for name, path in result.artifacts.items()}
        if result.inherited != ImageConfig() and result.stack == result.layers:
            record["inherited"] = msgspec.to_builtins(result.inherited)
        self._store.put_record(key, record, layers=[layer.diff_id for layer in result.layers])

    # -- progress ----------------------------------------------------------------------------------

    def _elapsed_seconds(self) -> float:
        return time.monotonic() - self._start_time

    def _log_callback(self, vertex: Vertex) -> Callable[[str], None]:
        return lambda line: self._progress(
            Log(vertex.digest, vertex.name, line, self._elapsed_seconds())
        )

    def _transfer_callback(self, vertex: Vertex) -> TransferReport:
        def report(current: int, total: int, unit: str = "") -> None:
            now = self._elapsed_seconds()
            self._progress(Transfer(vertex.digest, vertex.name, current, total, now, unit))

        return report

    def _report_start(self, vertex: Vertex) -> None:
        self._progress(Started(vertex.digest, vertex.name, vertex.branch, self._elapsed_seconds()))

    def _report_vertex(
        self, vertex: Vertex, *, cached: bool, seconds: float, layers: tuple[Layer, ...]
    ) -> None:
        size = sum(layer.size for layer in layers)
        self.reports.append(
            VertexReport(
                name=vertex.name,
                digest=vertex.digest,
                cached=cached,
                seconds=seconds,
                size=size,
                spans=vertex.spans,
                layers=tuple(layer.diff_id for layer in layers),
            )
        )
        self._report_end(vertex, seconds, cached=cached, size=size)

    def _report_failure(self, vertex: Vertex, seconds: float, error: DanluError) -> None:
        self._report_end(vertex, seconds, error=error.message)

    def _report_end(
        self,
        vertex: Vertex,
        seconds: float,
        *,
        cached: bool = False,
        size: int = 0,
        error: str = "",
    ) -> None:
        self._progress(
            Finished(
                vertex.digest,
                vertex.name,
                vertex.branch,
                self._elapsed_seconds(),
                seconds,
                cached,
                size,
                error,
            )
        )


def _require_lock(graph: Graph) -> None:
    """Raise if the graph contains what no lock has pinned: it can be shown, but not built."""
    for vertex in graph.walk():
        if isinstance(vertex.op, Unresolved):
            names = ", ".join(vertex.op.describes)
            raise UsageError(f"{vertex.op.kind} not locked: {names}", hint="run `danlu lock`")


def _list_exclusive_layers(vertex: Vertex, inputs: tuple[VertexResult, ...]) -> list[Layer]:
    """Return the layers that are merged in ``vertex`` and may not disagree about a path."""
    pairs = zip(vertex.inputs, inputs, strict=True)
    return [layer for parent, result in pairs if parent.op.is_exclusive for layer in result.layers]


def _reject_replacements(vertex: Vertex, inputs: tuple[VertexResult, ...]) -> None:
    """Raise, with its line, if files whose place the user chose break what they are laid over."""
    for parent, result in zip(vertex.inputs[1:], inputs[1:], strict=True):
        if parent.op.has_free_target:
            try:
                reject_replacements(result.layers, inputs[0].stack)
            except UsageError as error:
                error.span = parent.spans[0] if parent.spans else None
                raise
