"""What a step needs of whoever builds, asked for before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from danlu.builder.embedded.context import Context, Result
from danlu.builder.embedded.registry import Modules
from danlu.builder.embedded.solver import Solver
from danlu.errors import Span, UsageError
from danlu.graph import Exec, Graph, ImageConfig, Platform, Vertex
from danlu.store import Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths


def test_a_step_that_needs_an_agent_is_refused_by_its_line_where_none_was_given(
    tmp_path: Path,
) -> None:
    place = Span("build.envd", 7, 5)
    step = Vertex(Exec(("true",), (), "/", epoch=1, ssh=True), spans=(place,))
    with Store.open(tmp_path / "store") as store:

        def context(inputs: tuple[Result, ...], *voices: Callable[..., None]) -> Context:
            return Context(
                store=store,
                paths=Paths.of({"DANLU_HOME": str(tmp_path)}),
                config=Configuration(),
                sandbox=cast(Any, None),
                project=tmp_path,
                below=(),
                inputs=inputs,
                log=voices[0],
                transfer=voices[1],
                run_sync=cast(Any, None),
            )

        solver = Solver(store, context, lambda event: None, executors=Modules())
        with pytest.raises(UsageError, match="needs an ssh agent") as caught:
            anyio.run(solver.solve, Graph(step, ImageConfig(), Platform(), epoch=1))
    assert caught.value.span == place
    assert "danlu build --ssh default" in caught.value.hint
