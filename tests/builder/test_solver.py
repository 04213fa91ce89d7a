"""The solver, with executors that create a layer from a word instead of running a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from danlu.builder.embedded.build import list_unsolved
from danlu.builder.embedded.context import (
    OpContext,
    OpOutput,
    SolveRequest,
    TransferReport,
    VertexResult,
)
from danlu.builder.embedded.solver import Solver
from danlu.errors import OutsideError, ResolveError, Span, StepFailed, UsageError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import (
    AptInstall,
    CopyImage,
    Exec,
    FileEntry,
    Files,
    ImageSource,
    InstallScheme,
    Merge,
    Op,
    Platform,
    Unresolved,
    Wheel,
    WheelSource,
)
from danlu.graph.progress import Event, Finished, Started
from danlu.graph.types import Graph, Vertex
from danlu.oci.tar import write_layer
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/opt/venv/bin/python")


class RecordingExecutors:
    """Executors that record their ops; a layer has a file named after its word, and ``shared``."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.batches: list[int] = []
        self.shared: dict[str, str] = {}
        self.fails: dict[str, Exception] = {}
        self.waits: dict[str, anyio.Event] = {}
        self.started: dict[str, anyio.Event] = {}

    def __call__(self, op: Op) -> RecordingExecutors:
        return self

    async def execute_all(
        self, ops: Sequence[Any], context: OpContext, transfers: Sequence[TransferReport]
    ) -> list[list[Layer]]:
        self.batches.append(len(ops))
        return [await self._make_layer(op.name, context) for op in ops]

    async def execute(self, op: Any, context: OpContext) -> list[Layer] | OpOutput:
        word = word_of(op)
        if word in self.started:
            self.started[word].set()
        if word in self.waits:
            await self.waits[word].wait()
        if word in self.fails:
            raise self.fails[word]
        layers = await self._make_layer(word, context)
        if isinstance(op, ImageSource):
            variables = (("FROM", op.digest),)
            config = ImageConfig(user="from-image", environment=variables)
            return OpOutput(tuple(layers), inherited=config)
        return layers

    async def _make_layer(self, word: str, context: OpContext) -> list[Layer]:
        self.done.append(word)
        if word.startswith("nothing"):
            return []
        with context.store.staging() as staged:
            (staged / word).write_text(word)
            if word in self.shared:
                (staged / "shared").write_text(self.shared[word])
            for path in staged.iterdir():
                os.utime(path, (0, 0))  # equal words give equal layers, also a second later
            summary = write_layer(staged, None)
            return [context.store.commit_layer(staged, summary, created_by=word)]


def word_of(op: Any) -> str:
    if isinstance(op, Files):
        return op.entries[0].path.lstrip("/")
    if isinstance(op, Exec):
        return op.args[0]
    return str(getattr(op, "reference", "") or getattr(op, "name", "") or type(op).__name__)


def leaf(word: str) -> Vertex:
    return Vertex(Files((FileEntry(f"/{word}"),), epoch=1), name=word)


def step(word: str, below: Vertex, epoch: int = 1) -> Vertex:
    return Vertex(Exec((word,), (), "/", epoch=epoch), (below,), name=word)


def wheel(word: str) -> Vertex:
    return Vertex(Wheel(word, "1", f"{word}.whl", "00", WheelSource("index"), SCHEME), name=word)


def merge(*inputs: Vertex) -> Vertex:
    return Vertex(Merge(), inputs, name="merge")


class SolverBench:
    """A store, the executors, and solving as a plain call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store.open(root / "store")
        self.words = RecordingExecutors()
        self.events: list[Event] = []

    def solver(
        self, *, fresh: bool = False, group_by: Callable[[Vertex], object] = lambda vertex: None
    ) -> Solver:
        return Solver(
            self.store,
            self._make_context,
            self.events.append,
            executors=self.words,
            fresh=fresh,
            group_by=group_by,
        )

    def solve(self, root: Vertex, *, fresh: bool = False) -> VertexResult:
        graph = Graph(root, ImageConfig(), Platform(), epoch=0)
        unsolved = list_unsolved(graph, self.store, fresh=fresh)
        return anyio.run(self.solver(fresh=fresh).solve, graph, unsolved)

    def solve_and_list(self, root: Vertex, *, fresh: bool = False) -> list[str]:
        self.words.done.clear()
        self.solve(root, fresh=fresh)
        return sorted(self.words.done)

    def _make_context(
        self,
        vertex: Vertex,
        inputs: tuple[VertexResult, ...],
        log: Callable[[str], None],
        transfer: TransferReport,
    ) -> OpContext:
        async def run_sync(function: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return OpContext(
            request=SolveRequest(self.root),
            store=self.store,
            paths=Paths.of({"DANLU_HOME": str(self.root)}),
            config=Configuration(),
            sandbox=cast(Any, None),
            inputs=inputs,
            log=log,
            transfer=transfer,
            run_sync=run_sync,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SolverBench]:
    result = SolverBench(tmp_path)
    yield result
    result.store.close()


def list_words(result: VertexResult) -> list[str]:
    return [layer.created_by for layer in result.stack]


def test_step_extends_its_stack(bench: SolverBench) -> None:
    result = bench.solve(step("make", merge(leaf("a"), leaf("b"))))
    assert list_words(result) == ["a", "b", "make"]


def test_second_build_runs_nothing(bench: SolverBench) -> None:
    root = step("make", merge(leaf("a"), wheel("w")))
    assert bench.solve_and_list(root) == ["a", "make", "w"]
    assert bench.solve_and_list(root) == []
    assert all(e.cached for e in bench.events[-3:] if isinstance(e, Finished))


def test_fresh_runs_everything_again(bench: SolverBench) -> None:
    root = step("make", leaf("a"))
    bench.solve_and_list(root)
    assert bench.solve_and_list(root, fresh=True) == ["a", "make"]


def test_step_is_cached_if_the_stack_below_has_equal_content(bench: SolverBench) -> None:
    bench.solve_and_list(step("make", step("same", leaf("a"), epoch=1)))
    # Another op below gives the same layer: the step above sees the same content.
    assert bench.solve_and_list(step("make", step("same", leaf("a"), epoch=2))) == ["same"]


def test_leaf_is_cached_without_the_stack_below(bench: SolverBench) -> None:
    bench.solve_and_list(merge(leaf("a"), leaf("b")))
    assert bench.solve_and_list(merge(leaf("other"), leaf("b"))) == ["other"]


def test_missing_wheels_are_executed_in_one_batch(bench: SolverBench) -> None:
    bench.solve(merge(wheel("a"), wheel("b"), wheel("c")))
    bench.solve(merge(wheel("a"), wheel("b"), wheel("c"), wheel("d")))
    assert bench.words.batches == [3, 1]


def test_wheels_from_different_package_sources_are_not_in_one_batch(bench: SolverBench) -> None:
    root = merge(wheel("a"), wheel("b"), wheel("c"))
    solver = bench.solver(group_by=lambda vertex: word_of(vertex.op) == "b")
    graph = Graph(root, ImageConfig(), Platform(), epoch=0)
    anyio.run(solver.solve, graph, list_unsolved(graph, bench.store))
    assert sorted(bench.words.batches) == [1, 2]


def test_wheels_of_different_builds_may_not_disagree_about_a_path(bench: SolverBench) -> None:
    bench.words.shared = {"a": "1", "b": "2", "c": "1"}
    for word in "abc":
        bench.solve(merge(wheel(word)))
    assert bench.solve_and_list(merge(wheel("a"), wheel("c"))) == []
    with pytest.raises(ResolveError, match="a and b both contain /shared"):
        bench.solve(step("make", merge(wheel("a"), wheel("b"))))
    assert bench.words.done == [], "the step was run on top of the refused layer"


def test_other_layers_may_replace_lower_files(bench: SolverBench) -> None:
    bench.words.shared = {"a": "1", "b": "2"}
    assert list_words(bench.solve(merge(leaf("a"), leaf("b")))) == ["a", "b"]
    assert list_words(bench.solve(merge(leaf("a"), wheel("b")))) == ["a", "b"]


def test_merge_omits_shared_layers(bench: SolverBench) -> None:
    base = leaf("base")
    result = bench.solve(merge(step("one", base), step("two", base)))
    assert list_words(result) == ["base", "one", "two"]


def test_a_step_that_changed_nothing_adds_no_layer(bench: SolverBench) -> None:
    root = step("nothing", leaf("a"))
    assert list_words(bench.solve(root)) == ["a"]
    assert bench.solve_and_list(root) == []


def test_the_base_images_configuration_is_kept_also_from_a_record(bench: SolverBench) -> None:
    root = step("make", Vertex(ImageSource("debian", "sha256:0", Platform()), name="debian"))
    assert bench.solve(root).inherited.user == "from-image"
    assert bench.solve(root).inherited.user == "from-image"


def test_a_step_runs_again_if_only_the_variables_of_the_base_image_changed(
    bench: SolverBench,
) -> None:
    for digest in ("sha256:0", "sha256:1"):
        image = Vertex(ImageSource("debian", digest, Platform()), name="debian")
        assert "make" in bench.solve_and_list(step("make", image))


def test_a_leaf_that_reads_a_stack_leaves_it_out_also_from_a_record(bench: SolverBench) -> None:
    tools = Vertex(ImageSource("tools", "sha256:0", Platform()), name="tools")
    copied = Vertex(CopyImage("/bin/tool", "/usr/bin/", 0, 0, 1), (tools,), name="copy")
    for _ in range(2):
        assert list_words(bench.solve(merge(leaf("a"), copied))) == ["a", "CopyImage"]


def test_branches_overlap_in_time(bench: SolverBench) -> None:
    async def solve_both() -> None:
        # Each waits until the other has started: in sequence this would never end.
        bench.words.started = {"a": anyio.Event(), "b": anyio.Event()}
        bench.words.waits = {"a": bench.words.started["b"], "b": bench.words.started["a"]}
        with anyio.fail_after(60):
            graph = Graph(merge(leaf("a"), leaf("b")), ImageConfig(), Platform(), epoch=0)
            await bench.solver().solve(graph, ())

    anyio.run(solve_both)


def test_shared_vertex_is_executed_once(bench: SolverBench) -> None:
    shared = leaf("shared")
    assert bench.solve_and_list(merge(step("x", shared), step("y", shared))) == ["shared", "x", "y"]


def test_failure_has_the_line_and_cancels_other_vertices(bench: SolverBench) -> None:
    bench.words.fails["bad"] = StepFailed("it ended with 3", code=3)
    bad = Vertex(
        Exec(("bad",), (), "/", 1), (leaf("a"),), name="bad", spans=(Span("build.envd", 9),)
    )

    async def run() -> None:
        bench.words.waits["slow"] = anyio.Event()
        graph = Graph(merge(bad, leaf("slow")), ImageConfig(), Platform(), epoch=0)
        with anyio.fail_after(60):
            await bench.solver().solve(graph, ())

    with pytest.raises(StepFailed) as caught:
        anyio.run(run)
    assert caught.value.span == Span("build.envd", 9)
    failed = [e for e in bench.events if isinstance(e, Finished) and e.error]
    assert [e.name for e in failed] == ["bad"]


def test_vertices_finished_before_a_failure_are_cached(bench: SolverBench) -> None:
    bench.words.fails["bad"] = OutsideError("no network")
    root = step("bad", step("good", leaf("a")))
    with pytest.raises(OutsideError):
        bench.solve(root)
    bench.words.fails.clear()
    assert bench.solve_and_list(root) == ["bad"]


def test_an_unresolved_source_is_refused_before_anything_runs(bench: SolverBench) -> None:
    with pytest.raises(UsageError, match="not locked"):
        bench.solve(merge(leaf("a"), Vertex(Unresolved("base", ("debian12",)))))
    assert bench.words.done == []


def test_every_start_has_an_end(bench: SolverBench) -> None:
    bench.solve(step("make", merge(leaf("a"), wheel("w"))))
    started = [event.vertex for event in bench.events if isinstance(event, Started)]
    finished = [event.vertex for event in bench.events if isinstance(event, Finished)]
    assert sorted(started) == sorted(finished)


def test_a_step_without_python_is_an_apt_step_too(bench: SolverBench) -> None:
    root = Vertex(AptInstall((), ("git",), epoch=1), (leaf("base"),), name="apt")
    assert list_words(bench.solve(root)) == ["base", "AptInstall"]
