"""The notebooks of examples/notebook run from top to bottom, and what must not run is refused."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import ROOT, missing_for_real
from tests.notebook.conftest import JupyterEnv
from tests.notebook.notebooks import TENSORFLOW, TORCH, NotebookRunner, notebook_of, read_stdout

EXAMPLES = ROOT / "examples" / "notebook"
NAMES = ("pytorch", "sweep", "tensorflow")

NEEDS_ONE_WORKER = "%%distributed --framework pytorch --worker 1"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example's directory, as a user would copy it."""
    leave = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    return Path(shutil.copytree(EXAMPLES, tmp_path / "notebook", ignore=leave))


@pytest.fixture
def plain(tmp_path: Path) -> NotebookRunner:
    """Notebooks in the Python that runs the tests, which has no framework."""
    directory = tmp_path / "notebook"
    directory.mkdir()
    return NotebookRunner(directory, Path(sys.executable), tmp_path / "home")


def in_environment(environment: Path, directory: Path) -> NotebookRunner:
    return NotebookRunner(directory, environment / "bin" / "python", directory.parent / "home")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def cell_of(notebook: Any, id: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == id)


@pytest.mark.parametrize("name", NAMES)
def test_example_notebook_is_committed_without_outputs(name: str) -> None:
    notebook = read(EXAMPLES / f"{name}.ipynb")
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert all(re.fullmatch(r"[a-z-]+", cell.id) for cell in notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


@pytest.mark.notebook
def test_pytorch_trains_on_two_workers(jupyter_env: JupyterEnv, example: Path) -> None:
    where = in_environment(jupyter_env("torch", TORCH), example)
    result = where.run(read(example / "pytorch.ipynb"))

    text = read_stdout(cell_of(result, "accuracy"))
    assert float(text.split()[-1]) > 0.9
    kinds = [set(output.get("data", ())) for output in cell_of(result, "accuracy").outputs]
    assert any("image/png" in kind for kind in kinds)

    scores = [line.split(" ", 1) for line in read_stdout(cell_of(result, "compared")).splitlines()]
    assert [name for name, _ in scores] == ["worker-0", "worker-1"]
    assert [ast.literal_eval(score)["rank"] for _, score in scores] == [0, 1]


@pytest.mark.notebook
def test_tensorflow_trains_with_a_parameter_server(jupyter_env: JupyterEnv, example: Path) -> None:
    where = in_environment(jupyter_env("tensorflow", TENSORFLOW), example)
    result = where.run(read(example / "tensorflow.ipynb"))

    found = re.fullmatch(
        r"accuracy ([\d.]+); the workers took \[(\d+), (\d+)\] steps\n",
        read_stdout(cell_of(result, "accuracy")),
    )
    assert found
    assert float(found[1]) > 0.9
    assert min(int(found[2]), int(found[3])) >= 300


@pytest.mark.notebook
def test_sweep_finds_the_best_point(jupyter_env: JupyterEnv, example: Path) -> None:
    where = in_environment(jupyter_env("torch", TORCH), example)
    result = where.run(read(example / "sweep.ipynb"))

    found = re.search(
        r"best: rate (\S+), hidden (\d+), accuracy ([\d.]+)", read_stdout(result.cells[-1])
    )
    assert found
    assert float(found[1]) > 1e-4
    assert float(found[3]) > 0.9


@pytest.mark.notebook
def test_papermill_parameters_reach_the_job(jupyter_env: JupyterEnv, example: Path) -> None:
    environment = jupyter_env("torch", TORCH)
    where = in_environment(environment, example)
    command = ["papermill", "pytorch.ipynb", "out.ipynb", "-p", "epochs", "8", "--no-progress-bar"]
    subprocess.run(command, cwd=example, env=where.environment(), check=True, capture_output=True)

    result = read(example / "out.ipynb")
    assert result.metadata.papermill.exception is None
    assert "rank" in read_stdout(cell_of(result, "compared"))


# -- what is refused, and what fails --------------------------------------------------------------


def failure_of(where: NotebookRunner, *cells: str) -> str:
    """Return nbclient's error for a notebook, as text without colours."""
    from nbclient.exceptions import CellExecutionError

    notebook = notebook_of(["%load_ext danlu.notebook", *cells, "print('not to be reached')"])
    with pytest.raises(CellExecutionError) as error:
        where.run(notebook)
    assert not notebook.cells[-1].outputs
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error.value))


@pytest.mark.notebook
def test_failing_cell_fails_the_notebook_with_its_line(plain: NotebookRunner) -> None:
    text = failure_of(plain, f"{NEEDS_ONE_WORKER}\nx = 0\n\n\ny = 1 / x\n")
    assert "CellFailed" in text
    assert "worker-0" in text
    assert "line 5" in text
    assert "ZeroDivisionError" in text


@pytest.mark.notebook
def test_too_large_variable_fails_before_anything_starts(plain: NotebookRunner) -> None:
    text = failure_of(
        plain, "x = bytes(65 << 20)", f"{NEEDS_ONE_WORKER} --limit 64MiB --send x\nprint(len(x))"
    )
    assert re.search(r"\bx\b.* 65", text)
    assert "the limit is 64.0 MiB" in text
    assert "file" in text
    assert not list((plain.home / "jobs").glob("*"))


@pytest.mark.notebook
def test_too_large_result_is_an_error(plain: NotebookRunner) -> None:
    text = failure_of(plain, f"{NEEDS_ONE_WORKER} --limit 64MiB --return x\nx = bytes(65 << 20)")
    assert re.search(r"\bx\b.* 65", text)
    assert "the limit is 64.0 MiB" in text


BUILD = """\
def build():
    base(os="debian12")
    install.python(version="3.11")
    install.python_packages(name=["numpy==1.26.4"])
"""


@pytest.mark.notebook
@pytest.mark.skipif(bool(missing_for_real()), reason=missing_for_real() or "nothing is missing")
def test_version_conflict_with_the_jobs_environment_is_an_error(
    plain: NotebookRunner, real_home: Path
) -> None:
    import numpy as np

    where = NotebookRunner(plain.directory, plain.python, real_home)
    (where.directory / "build.envd").write_text(BUILD)
    text = failure_of(
        where,
        "import numpy as np\nx = np.arange(3)",
        f"{NEEDS_ONE_WORKER} --env build.envd --send x\nprint(x)",
    )
    assert "cannot send x between different versions" in text
    assert f"numpy: {np.__version__} in the notebook, 1.26.4 in the job's environment" in text
