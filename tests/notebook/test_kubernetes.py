"""Cells that run on a cluster: the published fake with danlu's operator, whose pods really run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.notebook import background, cells, jobscommand
from danlu.notebook.failure import CellFailed
from danlu.notebook.grammar import read_cell, read_options
from tests.jobs.kubernetes.support import Site, kubeconfig, site_in_threads
from tests.notebook.desks import TestDesk
from tests.notebook.interrupts import until

ON = "--framework pytorch --on kubernetes --image team/env:1"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_in_threads(tmp_path / "pods", reports=True) as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        yield site


@pytest.fixture
def desk(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDesk]:
    place = tmp_path / "notebook"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    yield TestDesk(place)
    until(lambda: not background.is_ending(), limit=15)


def run(desk: TestDesk, options: str, code: str) -> None:
    cells.run(read_options(f"{ON} {options}", code), desk)


def test_a_cell_gets_variables_and_modules_there_and_gives_values_back(desk: TestDesk) -> None:
    (desk.directory / "beside8.py").write_text("def twice(x):\n    return 2 * x\n")
    desk.names["x"] = [1, 2]
    code = "import beside8\nprint('there')\ny = beside8.twice(x)\n"
    run(desk, "--worker 2 --send x --return y", code)
    assert desk.names["y"] == [1, 2, 1, 2]
    assert sorted(desk.seen.lines) == ["worker-0 │ there", "worker-1 │ there"]
    ((state, _),) = desk.seen.ends
    assert state == "Succeeded"


def test_a_cell_in_ciaos_words_names_the_place(desk: TestDesk) -> None:
    text = "%framework=pytorch\n%worker=1\n%on=kubernetes\n%image=team/env:1\n\nprint('ciao')\n"
    cell = read_cell(text)
    assert cell is not None
    cells.run(cell, desk)
    assert desk.seen.lines == ["worker-0 │ ciao"]


def test_what_a_cell_raised_there_is_told_with_its_line(desk: TestDesk) -> None:
    with pytest.raises(CellFailed) as raised:
        run(desk, "--return y", "y = 1\nraise LookupError('no way')\n")
    assert raised.value.line == 3
    assert isinstance(raised.value.__cause__, LookupError)


def test_a_cell_that_was_left_is_found_by_its_place(desk: TestDesk) -> None:
    run(desk, "--name left --detach --return y", "y = 3\n")
    ((state, words),) = desk.seen.ends
    assert state == "Submitted"
    assert "%jobs attach left --on kubernetes" in words
    jobscommand.run("attach left --on kubernetes", desk, lambda data: None)
    assert desk.names["y"] == 3
    shown: list[dict[str, str]] = []
    jobscommand.run("list --on kubernetes", desk, shown.append)
    assert "left" in shown[0]["text/plain"]


def test_a_cell_without_an_image_is_told_to_name_one(desk: TestDesk) -> None:
    with pytest.raises(UsageError, match="in which image"):
        cells.run(read_options("--framework pytorch --on kubernetes", "pass\n"), desk)
