"""The solver: every vertex as soon as its inputs are there, nothing a record answers for.

It knows of keys, records and order, and nothing of how an op is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import to_thread

from danlu.builder.embedded.collisions import refuse_collisions
from danlu.builder.embedded.context import Context, Made, Result
from danlu.builder.embedded.keys import definition_key, needed, stack_key
from danlu.builder.embedded.registry import BATCHED, EXCLUSIVE, STEPS, Executors
from danlu.builder.embedded.stacks import merged
from danlu.builder.types import VertexReport
from danlu.errors import DanluError, NotBuiltYet, UsageError
from danlu.graph import (
    Finished,
    Graph,
    ImageConfig,
    Log,
    Merge,
    Progress,
    Started,
    Transfer,
    Unbuilt,
    Unresolved,
    Vertex,
)
from danlu.store import Layer, Store

__all__ = ["Solver"]

#: Makes the context of one vertex from its inputs and its two voices.
MakeContext = Callable[
    [tuple[Result, ...], Callable[[str], None], Callable[[int, int], None]], Context
]


@dataclass
class _Job:
    """One vertex under way: set ``done`` and then ``result``, or never where the build fails."""

    vertex: Vertex
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Result | None = None


class Solver:
    """One build of one graph."""

    def __init__(
        self,
        store: Store,
        make_context: MakeContext,
        progress: Progress,
        *,
        executors: Executors,
        fresh: bool = False,
    ) -> None:
        self._store = store
        self._executors = executors
        self._make_context = make_context
        self._progress = progress
        self._fresh = fresh
        self._jobs: dict[str, _Job] = {}
        self._began = time.monotonic()
        self.reports: list[VertexReport] = []

    async def solve(self, graph: Graph) -> Result:
        """The result of the graph's root.

        Raises :class:`NotBuiltYet` for what this version only plans, and whatever the first vertex
        that fails raises; all others are cancelled then.
        """
        refuse_unbuildable(graph)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await self._start_batch(graph)
                job = self._start(graph.root)
                await job.done.wait()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from failures
        assert job.result is not None
        return job.result

    def _start(self, vertex: Vertex) -> _Job:
        job = self._jobs.get(vertex.digest)
        if job is None:
            job = self._jobs[vertex.digest] = _Job(vertex)
            self._group.start_soon(self._work, job)
        return job

    async def _work(self, job: _Job) -> None:
        job.result = await self._result_of(job.vertex)
        job.done.set()

    async def _result_of(self, vertex: Vertex) -> Result:
        key = definition_key(vertex)
        if key is not None and not isinstance(vertex.op, Merge):
            known = self._remembered(vertex, key)
            if known is not None:
                return known
        inputs = await self._inputs(vertex)
        if isinstance(vertex.op, Merge):
            await to_thread.run_sync(refuse_collisions, _exclusive(vertex, inputs))
            return _merged(inputs)
        below = inputs[0].stack if inputs else ()
        if key is None:
            key = stack_key(vertex.op, below)
            known = self._remembered(vertex, key, below, inputs)
            if known is not None:
                return known
        return await self._execute(vertex, key, inputs)

    async def _inputs(self, vertex: Vertex) -> tuple[Result, ...]:
        jobs = [self._start(one) for one in vertex.inputs]
        results = []
        for job in jobs:
            await job.done.wait()
            assert job.result is not None
            results.append(job.result)
        return tuple(results)

    def _remembered(
        self,
        vertex: Vertex,
        key: str,
        below: tuple[Layer, ...] = (),
        inputs: tuple[Result, ...] = (),
    ) -> Result | None:
        record = None if self._fresh else self._store.record(key)
        if record is None:
            return None
        layers = [self._store.layer(diff_id) for diff_id in record["layers"]]
        artifacts = {name: Path(path) for name, path in record.get("artifacts", {}).items()}
        if None in layers or not all(path.exists() for path in artifacts.values()):
            return None
        found = tuple(layer for layer in layers if layer is not None)
        self._report(vertex, cached=True, seconds=0.0, layers=found)
        inherited = _config_from(record) or (inputs[0].inherited if inputs else ImageConfig())
        return _result(found, below, inherited, artifacts)

    async def _execute(self, vertex: Vertex, key: str, inputs: tuple[Result, ...]) -> Result:
        name = vertex.name
        began = time.monotonic()
        self._progress(Started(vertex.digest, name, vertex.branch, self._now()))
        context = self._make_context(inputs, self._logger(vertex), self._meter(vertex))
        try:
            result = await self._do(vertex, context)
        except DanluError as error:
            if error.span is None and vertex.spans:
                error.span = vertex.spans[0]
            self._report_failure(vertex, time.monotonic() - began, error)
            raise
        self._remember(key, result)
        self._report(vertex, cached=False, seconds=time.monotonic() - began, layers=result.layers)
        return result

    async def _do(self, vertex: Vertex, context: Context) -> Result:
        made = await self._executors.one(vertex.op)(vertex.op, context)
        if not isinstance(made, Made):
            made = Made(tuple(made))
        below = context.below if type(vertex.op).__name__ in STEPS else ()
        inherited = made.inherited
        if inherited is None:
            inherited = context.inputs[0].inherited if context.inputs else ImageConfig()
        return _result(made.layers, below, inherited, made.artifacts)

    async def _start_batch(self, graph: Graph) -> None:
        """Start what is cheaper together as one piece of work: wheels, one call to uv for all."""
        wanted = []
        with self._store.reading():
            for vertex, _ in needed(graph.root, self._store, fresh=self._fresh):
                if type(vertex.op).__name__ not in BATCHED or vertex.inputs:
                    continue
                key = definition_key(vertex)
                assert key is not None
                known = self._remembered(vertex, key)
                if known is None:
                    wanted.append(vertex)
                    continue
                job = self._jobs[vertex.digest] = _Job(vertex, result=known)
                job.done.set()
        if wanted:
            jobs = [_Job(vertex) for vertex in wanted]
            self._jobs.update({job.vertex.digest: job for job in jobs})
            self._group.start_soon(self._work_batch, jobs)

    async def _work_batch(self, jobs: list[_Job]) -> None:
        began = time.monotonic()
        for job in jobs:
            vertex = job.vertex
            self._progress(Started(vertex.digest, vertex.name, vertex.branch, self._now()))
        context = self._make_context((), self._logger(jobs[0].vertex), self._meter(jobs[0].vertex))
        execute = self._executors.batch([job.vertex for job in jobs])
        try:
            made = await execute([job.vertex.op for job in jobs], context)
        except DanluError as error:
            for job in jobs:
                self._report_failure(job.vertex, time.monotonic() - began, error)
            raise
        for job, layers in zip(jobs, made, strict=True):
            job.result = _result(tuple(layers), (), ImageConfig(), {})
            key = definition_key(job.vertex)
            assert key is not None
            self._remember(key, job.result)
            self._report(
                job.vertex, cached=False, seconds=time.monotonic() - began, layers=tuple(layers)
            )
            job.done.set()

    def _remember(self, key: str, result: Result) -> None:
        record: dict[str, Any] = {"layers": [layer.diff_id for layer in result.layers]}
        if result.artifacts:
            record["artifacts"] = {name: str(path) for name, path in result.artifacts.items()}
        if result.inherited != ImageConfig() and result.stack == result.layers:
            record["inherited"] = msgspec.to_builtins(result.inherited)
        self._store.put_record(key, record, layers=[layer.diff_id for layer in result.layers])

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _logger(self, vertex: Vertex) -> Callable[[str], None]:
        return lambda line: self._progress(Log(vertex.digest, vertex.name, line, self._now()))

    def _meter(self, vertex: Vertex) -> Callable[[int, int], None]:
        def moved(current: int, total: int) -> None:
            self._progress(Transfer(vertex.digest, vertex.name, current, total, self._now()))

        return moved

    def _report(
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
        event = Finished(
            vertex.digest, vertex.name, vertex.branch, self._now(), seconds, cached, size
        )
        self._progress(event)

    def _report_failure(self, vertex: Vertex, seconds: float, error: DanluError) -> None:
        event = Finished(
            vertex.digest,
            vertex.name,
            vertex.branch,
            self._now(),
            seconds,
            cached=False,
            error=error.message,
        )
        self._progress(event)


def refuse_unbuildable(graph: Graph) -> None:
    """Raise for a vertex that can be shown but not built."""
    for vertex in graph.walk():
        if isinstance(vertex.op, Unbuilt):
            raise NotBuiltYet(vertex.op.function, span=vertex.spans[0] if vertex.spans else None)
        if isinstance(vertex.op, Unresolved):
            what = ", ".join(vertex.op.describes)
            raise UsageError(f"{vertex.op.kind} not locked: {what}", hint="run `danlu lock`")


def first_failure(failures: BaseExceptionGroup) -> BaseException:
    """The failure to tell the user of: ours before others', others' before cancellation."""
    flat: list[BaseException] = []

    def gather(group: BaseExceptionGroup) -> None:
        for one in group.exceptions:
            if isinstance(one, BaseExceptionGroup):
                gather(one)
            else:
                flat.append(one)

    gather(failures)
    ours = [one for one in flat if isinstance(one, DanluError)]
    return ours[0] if ours else flat[0]


def _exclusive(vertex: Vertex, inputs: tuple[Result, ...]) -> list[Layer]:
    """The layers that come together in ``vertex`` and may not disagree about a path."""
    pairs = zip(vertex.inputs, inputs, strict=True)
    exclusive = [result for one, result in pairs if type(one.op).__name__ in EXCLUSIVE]
    return [layer for result in exclusive for layer in result.layers]


def _merged(inputs: tuple[Result, ...]) -> Result:
    inherited = inputs[0].inherited if inputs else ImageConfig()
    return Result(layers=(), stack=merged(one.stack for one in inputs), inherited=inherited)


def _result(
    layers: tuple[Layer, ...],
    below: tuple[Layer, ...],
    inherited: ImageConfig,
    artifacts: Mapping[str, Path],
) -> Result:
    return Result(layers=layers, stack=(*below, *layers), artifacts=artifacts, inherited=inherited)


def _config_from(record: Mapping[str, Any]) -> ImageConfig | None:
    value = record.get("inherited")
    return msgspec.convert(value, ImageConfig) if value is not None else None
