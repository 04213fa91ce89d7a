"""From a cell to the manifest of its job: ciao's documented cells and danlu's own options.

The magic lines of ``golden/*.cell`` are ciao's own (its README, its demo of 2018 and of 2019, its
two example notebooks, its tests); the code below them replaces the long examples there.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.notebook.cell_code import parse_code
from danlu.notebook.cells import RETURNS_LABEL, build_sweep_options, build_train_options
from danlu.notebook.parser import parse_cell
from danlu.notebook.types import Cell, CellOptions, ReplicaOptions
from danlu.submission.options import ReplicaResources, TrainOptions
from danlu.submission.plan import format_documents, list_documents, plan_job
from danlu.util.config import Configuration
from danlu.util.paths import Paths

GOLDEN = Path(__file__).parent / "golden"
CELLS = sorted(path.stem for path in GOLDEN.glob("*.cell"))
COMMAND = ("python", "$(DANLU_FILES)/run.py")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    result = tmp_path / "files"
    (result / "cell").mkdir(parents=True)
    return result


def build_options(order: CellOptions, files: Path) -> TrainOptions:
    return build_train_options(
        order, directory=files.parent, command=COMMAND, python="/opt/bin/python", files=files
    )


def cell_of(name: str) -> Cell:
    cell = parse_cell((GOLDEN / f"{name}.cell").read_text(encoding="utf-8"))
    assert cell is not None
    return cell


@pytest.mark.parametrize("name", CELLS)
def test_cell_becomes_the_expected_manifest(name: str, files: Path, settings: Settings) -> None:
    cell = cell_of(name)
    parse_code(cell.code)
    (files / "cell" / "cell.py").write_text(cell.code, encoding="utf-8")
    order = build_options(cell.options, files)
    order = msgspec.structs.replace(order, name=order.name or name)
    manifest = format_documents(list_documents(plan_job(order, settings=settings)))
    assert manifest == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CELLS)
def test_code_keeps_its_line_numbers(name: str) -> None:
    before = (GOLDEN / f"{name}.cell").read_text(encoding="utf-8").split("\n")
    after = cell_of(name).code.split("\n")
    assert [line for line in before if not line.startswith("%")] == [
        line for line, old in zip(after, before, strict=True) if not old.startswith("%")
    ]
    assert not any(line for line, old in zip(after, before, strict=True) if old.startswith("%"))


def test_every_cell_option_is_passed_on(files: Path) -> None:
    order = CellOptions(
        framework="tensorflow",
        replicas={
            "ps": ReplicaOptions(1, "500m", "1Gi"),
            "worker": ReplicaOptions(2, gpu=0),
            "chief": ReplicaOptions(1),
        },
        cpu="2",
        memory="4Gi",
        gpu=1,
        clean_pod_policy="Running",
        image="a/b:1",
        env="build.envd",
        name="mnist",
        environment={"A": "1"},
        volumes=("/a:/b",),
        returns=("x", "y"),
        restart="Never",
        backoff_limit=3,
        deadline=90.0,
    )
    assert build_options(order, files) == TrainOptions(
        directory=files.parent,
        command=COMMAND,
        framework="tensorflow",
        replicas={"ps": 1, "worker": 2, "chief": 1},
        resources={"ps": ReplicaResources("500m", "1Gi"), "worker": ReplicaResources(gpu=0)},
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
        clean_pod_policy="Running",
        environment={"A": "1"},
        volumes=("/a:/b",),
        labels={RETURNS_LABEL: "x,y"},
        files=files,
        value="leader",
        tied=True,
    )


@pytest.mark.parametrize(
    ("order", "value"),
    [
        (CellOptions(framework="jax"), "none"),
        (CellOptions(framework="jax", returns=("x",)), "leader"),
        (CellOptions(framework="jax", returns=("x",), every=True), "all"),
    ],
)
def test_values_are_requested_from_the_right_replicas(
    order: CellOptions, value: str, files: Path
) -> None:
    assert build_options(order, files).value == value


def test_detached_job_does_not_stop_with_the_kernel(files: Path) -> None:
    assert build_options(CellOptions(framework="jax"), files).tied
    assert not build_options(CellOptions(framework="jax", detach=True), files).tied


def test_framework_is_detected_from_imports(files: Path) -> None:
    (files / "cell" / "cell.py").write_text("\nimport xgboost\n")
    assert build_options(CellOptions(), files).framework == "xgboost"
    assert build_options(CellOptions(framework="jax"), files).framework == "jax"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os\n", "cannot detect a training framework in the cell"),
        (
            "import jax, torch\n",
            "cannot detect the training framework: the cell imports jax and torch",
        ),
    ],
)
def test_cell_without_a_known_framework_is_an_error(code: str, message: str, files: Path) -> None:
    (files / "cell" / "cell.py").write_text(code)
    with pytest.raises(UsageError) as caught:
        build_options(CellOptions(), files)
    assert caught.value.message == message
    assert "%framework=" in caught.value.hint


def test_sweep_options_are_built() -> None:
    order = build_sweep_options(
        CellOptions(sweep=("lr=0.1,0.01", "depth=2:4"), metric="acc", goal="max", parallel=2)
    )
    assert order is not None
    assert [axis.name for axis in order.axes] == ["lr", "depth"]
    assert [axis.values() for axis in order.axes] == [("0.1", "0.01"), ("2", "3", "4")]
    assert (order.measure.metric, order.measure.goal, order.parallel) == ("acc", "max", 2)
    assert order.trials is None
    assert build_sweep_options(CellOptions()) is None


def test_study_accepts_a_continuous_range() -> None:
    order = build_sweep_options(CellOptions(sweep=("lr=0.1:0.5",), trials=20))
    assert order is not None
    assert order.trials == 20


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (("lr=1,2", "lr=3"), "duplicate parameter lr"),
        (("a=1:200", "b=1:200"), "too many points: 40000"),
    ],
)
def test_invalid_sweep_is_an_error(sweep: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_sweep_options(CellOptions(sweep=sweep))
