"""Cells that run on a cluster: the published fake with danlu's operator, whose pods really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.notebook import background_loop, cells, jobs_magic
from danlu.notebook.errors import CellFailed
from danlu.notebook.parser import parse_cell, parse_distributed
from tests.jobs.kubernetes.support import JobNamespace, kubeconfig, open_site_in_threads
from tests.notebook.cell_context import FakeCellContext
from tests.notebook.interrupts import until

ON = "--framework pytorch --on kubernetes --image team/env:1"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobNamespace]:
    with open_site_in_threads(tmp_path / "pods", reports=True) as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        yield site


@pytest.fixture
def context(
    site: JobNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCellContext]:
    directory = tmp_path / "notebook"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    yield FakeCellContext(directory)
    until(lambda: not background_loop.has_pending_cleanup(), limit=60)


def run(context: FakeCellContext, options: str, code: str) -> None:
    cells.run_cell(parse_distributed(f"{ON} {options}", code), context)


def test_cell_on_a_cluster_receives_modules_and_returns_values(context: FakeCellContext) -> None:
    (context.directory / "beside8.py").write_text("def twice(x):\n    return 2 * x\n")
    context.names["x"] = [1, 2]
    code = "import beside8\nprint('there')\ny = beside8.twice(x)\n"
    run(context, "--worker 2 --send x --return y", code)
    assert context.names["y"] == [1, 2, 1, 2]
    limit, *lines = context.last_view.lines
    assert limit.startswith("danlu │ return values are limited to 700 KiB in total")
    assert sorted(lines) == ["worker-0 │ there", "worker-1 │ there"]
    ((state, _),) = context.last_view.ends
    assert state == "Succeeded"


def test_cell_with_on_directive_runs_on_the_cluster(context: FakeCellContext) -> None:
    text = "%framework=pytorch\n%worker=1\n%on=kubernetes\n%image=team/env:1\n\nprint('ciao')\n"
    cell = parse_cell(text)
    assert cell is not None
    cells.run_cell(cell, context)
    assert context.last_view.lines == ["worker-0 │ ciao"]


def test_exception_on_a_cluster_has_the_cells_line(context: FakeCellContext) -> None:
    with pytest.raises(CellFailed) as error:
        run(context, "--return y", "y = 1\nraise LookupError('no way')\n")
    assert error.value.line == 3
    assert isinstance(error.value.__cause__, LookupError)


def test_detached_cell_on_a_cluster_can_be_attached(context: FakeCellContext) -> None:
    run(context, "--name left --detach --return y", "y = 3\n")
    ((state, words),) = context.last_view.ends
    assert state == "Submitted"
    assert "%jobs attach left --on kubernetes" in words
    jobs_magic.run_jobs_magic("attach left --on kubernetes", context, lambda data: None)
    assert context.names["y"] == 3
    output: list[dict[str, str]] = []
    jobs_magic.run_jobs_magic("list --on kubernetes", context, output.append)
    assert "left" in output[0]["text/plain"]


def test_cell_on_a_cluster_without_an_image_is_an_error(context: FakeCellContext) -> None:
    with pytest.raises(UsageError, match="an image is required to run on kubernetes"):
        cells.run_cell(parse_distributed("--framework pytorch --on kubernetes", "pass\n"), context)
