"""From a cell to the manifest of its job: ciao's documented cells, and danlu's own keys.

The magic lines of ``golden/*.cell`` are ciao's own (its README, its demo of 2018 and of 2019, its
two example notebooks, its tests); the code below them stands for the long examples there.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from danlu.commands.settings import Settings
from danlu.commands.train import TrainOrder, manifest_text, plan
from danlu.commands.trainorder import Share
from danlu.errors import UsageError
from danlu.notebook.code import check
from danlu.notebook.grammar import read_cell
from danlu.notebook.order import RETURNS, sweep_order, train_order
from danlu.notebook.types import Cell, CellOrder, Role
from danlu.util.config import Configuration
from danlu.util.paths import Paths

GOLDEN = Path(__file__).parent / "golden"
CELLS = sorted(one.stem for one in GOLDEN.glob("*.cell"))
COMMAND = ("python", "$(DANLU_FILES)/run.py")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    found = tmp_path / "files"
    (found / "cell").mkdir(parents=True)
    return found


def ordered(order: CellOrder, files: Path) -> TrainOrder:
    return train_order(
        order, directory=files.parent, command=COMMAND, python="/opt/bin/python", files=files
    )


def cell_of(name: str) -> Cell:
    cell = read_cell((GOLDEN / f"{name}.cell").read_text(encoding="utf-8"))
    assert cell is not None
    return cell


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_gives_the_right_job(name: str, files: Path, settings: Settings) -> None:
    cell = cell_of(name)
    check(cell.code)
    (files / "cell" / "cell.py").write_text(cell.code, encoding="utf-8")
    order = ordered(cell.order, files)
    order = msgspec.structs.replace(order, name=order.name or name)
    manifest = manifest_text(plan(order, settings=settings), "yaml")
    assert manifest == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CELLS)
def test_the_code_keeps_its_lines(name: str) -> None:
    before = (GOLDEN / f"{name}.cell").read_text(encoding="utf-8").split("\n")
    after = cell_of(name).code.split("\n")
    assert [one for one in before if not one.startswith("%")] == [
        one for one, old in zip(after, before, strict=True) if not old.startswith("%")
    ]
    assert not any(one for one, old in zip(after, before, strict=True) if old.startswith("%"))


def test_every_field_of_an_order_finds_its_place(files: Path) -> None:
    order = CellOrder(
        framework="tensorflow",
        roles={"ps": Role(1, "500m", "1Gi"), "worker": Role(2, gpu=0), "chief": Role(1)},
        cpu="2",
        memory="4Gi",
        gpu=1,
        clean="Running",
        image="a/b:1",
        env="build.envd",
        name="mnist",
        variables={"A": "1"},
        volumes=("/a:/b",),
        returns=("x", "y"),
        restart="Never",
        backoff_limit=3,
        deadline=90.0,
    )
    assert ordered(order, files) == TrainOrder(
        directory=files.parent,
        command=COMMAND,
        framework="tensorflow",
        replicas={"ps": 1, "worker": 2, "chief": 1},
        shares={"ps": Share("500m", "1Gi"), "worker": Share(gpu=0)},
        cpu="2",
        memory="4Gi",
        gpu=1,
        env="build.envd",
        image="a/b:1",
        python="/opt/bin/python",
        name="mnist",
        backoff_limit=3,
        restart="Never",
        deadline=90.0,
        clean="Running",
        variables={"A": "1"},
        volumes=("/a:/b",),
        labels={RETURNS: "x,y"},
        files=files,
        value="leader",
        tied=True,
    )


@pytest.mark.parametrize(
    ("order", "value"),
    [
        (CellOrder(framework="jax"), "none"),
        (CellOrder(framework="jax", returns=("x",)), "leader"),
        (CellOrder(framework="jax", returns=("x",), every=True), "all"),
    ],
)
def test_values_are_asked_of_those_who_return_them(
    order: CellOrder, value: str, files: Path
) -> None:
    assert ordered(order, files).value == value


def test_a_detached_job_is_not_tied_to_the_kernel(files: Path) -> None:
    assert ordered(CellOrder(framework="jax"), files).tied
    assert not ordered(CellOrder(framework="jax", detach=True), files).tied


def test_the_framework_may_be_what_the_code_imports(files: Path) -> None:
    (files / "cell" / "cell.py").write_text("\nimport xgboost\n")
    assert ordered(CellOrder(), files).framework == "xgboost"
    assert ordered(CellOrder(framework="jax"), files).framework == "jax"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\n", "no framework is imported by the cell"),
        ("import jax, torch\n", "the cell imports jax and torch: which of them trains?"),
    ],
)
def test_a_cell_whose_framework_nobody_knows_is_refused(
    code: str, message: str, files: Path
) -> None:
    (files / "cell" / "cell.py").write_text(code)
    with pytest.raises(UsageError) as caught:
        ordered(CellOrder(), files)
    assert caught.value.message == message
    assert "%framework=" in caught.value.hint


def test_a_cell_may_sweep() -> None:
    order = sweep_order(
        CellOrder(sweep=("lr=0.1,0.01", "depth=2:4"), metric="acc", goal="max", parallel=2)
    )
    assert order is not None
    assert [axis.name for axis in order.axes] == ["lr", "depth"]
    assert [axis.values() for axis in order.axes] == [("0.1", "0.01"), ("2", "3", "4")]
    assert (order.measure.metric, order.measure.goal, order.parallel) == ("acc", "max", 2)
    assert order.trials is None
    assert sweep_order(CellOrder()) is None


def test_a_study_may_try_points_of_a_span_without_steps() -> None:
    order = sweep_order(CellOrder(sweep=("lr=0.1:0.5",), trials=20))
    assert order is not None
    assert order.trials == 20


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (("lr=1,2", "lr=3"), "lr is swept twice"),
        (("a=1:200", "b=1:200"), "40000 points"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(sweep: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep_order(CellOrder(sweep=sweep))
