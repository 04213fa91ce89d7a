"""A build of the same graph is answered by the record of its image."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from danlu.builder.embedded.build import commit_image, find_image, solve_graph
from danlu.builder.embedded.context import SolveRequest
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import FileEntry, Files, Platform
from danlu.graph.types import Graph, Vertex
from tests.builder.wheels import WheelBuilder

ROOT = Vertex(Files((FileEntry("/a", content="x"),), epoch=1), name="write /a")
GRAPH = Graph(ROOT, ImageConfig(), Platform(), epoch=1)


@pytest.fixture
def request_built(builder: WheelBuilder) -> SolveRequest:
    """The request of a build of ``GRAPH`` that has ended."""
    request = SolveRequest(builder.project, metadata={"file": "build.py"})

    async def work() -> None:
        result, reports = await solve_graph(
            GRAPH,
            request,
            store=builder.store,
            paths=builder.paths,
            config=builder.config,
            progress=lambda event: None,
        )
        commit_image(GRAPH, request, result, reports, builder.store)

    anyio.run(work)
    return request


def test_the_same_graph_has_its_image(builder: WheelBuilder, request_built: SolveRequest) -> None:
    found = find_image(GRAPH, request_built, builder.store)
    assert found is not None
    assert found.digest == builder.store.images()[0].digest


def test_other_contents_names_or_metadata_have_none(
    builder: WheelBuilder, request_built: SolveRequest
) -> None:
    other = Files((FileEntry("/a", content="y"),), epoch=1)
    for graph in (
        replace(GRAPH, root=replace(ROOT, op=other)),
        replace(GRAPH, root=replace(ROOT, name="part of the image's history")),
        replace(GRAPH, config=ImageConfig(user="1000")),
        replace(GRAPH, epoch=2),
    ):
        assert find_image(graph, request_built, builder.store) is None
    assert find_image(GRAPH, SolveRequest(builder.project), builder.store) is None


def test_no_image_without_cache(builder: WheelBuilder, request_built: SolveRequest) -> None:
    fresh = SolveRequest(builder.project, fresh=True, metadata=request_built.metadata)
    assert find_image(GRAPH, fresh, builder.store) is None


def test_a_removed_layer_takes_the_record_with_it(
    builder: WheelBuilder, request_built: SolveRequest
) -> None:
    builder.store.remove_image(builder.store.images()[0].digest)
    builder.store.collect(0)
    assert find_image(GRAPH, request_built, builder.store) is None
