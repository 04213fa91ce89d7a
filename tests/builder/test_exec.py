"""Resources that a step needs are checked before any step runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from danlu.builder.embedded.context import OpContext, SolveRequest, VertexResult
from danlu.builder.embedded.solver import Solver
from danlu.errors import Span, UsageError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import Exec, Platform
from danlu.graph.types import Graph, Vertex
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths


def test_step_without_an_ssh_agent_fails_with_its_line(
    tmp_path: Path,
) -> None:
    path = Span("build.envd", 7, 5)
    step = Vertex(Exec(("true",), (), "/", epoch=1, ssh=True), spans=(path,))
    with Store.open(tmp_path / "store") as store:

        def context(
            vertex: Vertex, inputs: tuple[VertexResult, ...], *voices: Callable[..., None]
        ) -> OpContext:
            return OpContext(
                request=SolveRequest(tmp_path),
                store=store,
                paths=Paths.of({"DANLU_HOME": str(tmp_path)}),
                config=Configuration(),
                sandbox=cast(Any, None),
                inputs=inputs,
                log=voices[0],
                transfer=voices[1],
                run_sync=cast(Any, None),
            )

        solver = Solver(store, context, lambda event: None)
        with pytest.raises(UsageError, match="needs an ssh agent") as caught:
            anyio.run(solver.solve, Graph(step, ImageConfig(), Platform(), epoch=1), ())
    assert caught.value.span == path
    assert "danlu build --ssh default" in caught.value.hint
