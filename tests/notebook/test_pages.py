"""The commands and cells of the pages about notebooks, run in their order."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from danlu.notebook.parser import parse_cell, parse_distributed
from tests.conftest import ROOT
from tests.notebook.code_blocks import blocks_of
from tests.notebook.conftest import JupyterEnv
from tests.notebook.notebooks import TORCH, NotebookRunner, notebook_of

DOCS = ROOT / "docs"
TUTORIALS = ("tutorials/notebook.md", "tutorials/notebook.zh.md")
PAGES = (*TUTORIALS, "guides/from-ciao.md", "guides/from-kubeflow-sdk.md")

EXTENSION = "%load_ext danlu.notebook\n"


def cells_of(page: str) -> list[str]:
    """The cells of a page: its blocks of ``python``."""
    return [block.text.rstrip("\n") for block in blocks_of(DOCS / page) if block.kind == "python"]


def program_of(cell: str) -> str:
    """Return the code that replicas run, or all of an ordinary cell."""
    first, _, rest = cell.partition("\n")
    if first.startswith("%%distributed"):
        return parse_distributed(first.removeprefix("%%distributed"), rest).code
    job = parse_cell(cell)
    return job.code if job else cell.removeprefix(EXTENSION.strip())


@pytest.mark.parametrize("page", PAGES)
def test_all_cells_in_the_guides_are_valid(page: str) -> None:
    cells = cells_of(page)
    assert cells
    for cell in cells:
        ast.parse(program_of(cell))


def test_english_and_chinese_guides_have_the_same_code() -> None:
    english, chinese = (blocks_of(DOCS / page) for page in TUTORIALS)
    assert english == chinese


def test_ciao_cell_and_its_options_are_the_same_job() -> None:
    ciao, options = cells_of("guides/from-ciao.md")
    first, _, rest = options.partition("\n")
    asked = parse_distributed(first.removeprefix("%%distributed"), rest).options
    expected = parse_cell(ciao)
    assert expected
    assert asked.clean_pod_policy == expected.options.clean_pod_policy
    assert {name: replica.replicas for name, replica in asked.replicas.items()} == {
        "ps": 1,
        "worker": 2,
    }
    assert {name: replica.replicas for name, replica in expected.options.replicas.items()} == {
        "ps": 1,
        "worker": 2,
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the repository's files, so that an installation writes nothing next to the sources."""
    directory = tmp_path / "danlu"
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", directory / "src", ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, directory)
    return directory


@pytest.mark.notebook
@pytest.mark.timeout(900)  # pip unpacks JupyterLab and PyTorch
def test_notebook_guide_trains_a_model(checkout: Path, tmp_path: Path) -> None:
    """Run its commands in one shell, from an empty home, with the notebook at the stated path."""
    home = tmp_path / "home"
    (home / "digits").mkdir(parents=True)
    nbformat.write(  # type: ignore[no-untyped-call]
        notebook_of(cells_of("tutorials/notebook.md")), home / "digits" / "digits.ipynb"
    )
    commands = [block.text for block in blocks_of(DOCS / TUTORIALS[0]) if block.kind == "sh"]
    result = subprocess.run(
        ["bash", "-euc", "".join(commands)],
        cwd=checkout,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert (home / "digits" / "digits.pt").stat().st_size > 10_000
    saved = (home / "digits" / "digits.ipynb").read_text()
    assert "accuracy 0.9" in saved
    assert "image/png" in saved


@pytest.mark.notebook
def test_kubeflow_sdk_function_runs_as_function_and_cell(
    jupyter_env: JupyterEnv, tmp_path: Path
) -> None:
    python = jupyter_env("torch", TORCH) / "bin" / "python"
    where = NotebookRunner(tmp_path, python, tmp_path / "home")
    result = where.run(notebook_of(cells_of("guides/from-kubeflow-sdk.md")))
    assert all(cell.execution_count for cell in result.cells)


@pytest.mark.notebook
def test_ciao_cell_runs_unchanged(tmp_path: Path) -> None:
    where = NotebookRunner(tmp_path, Path(sys.executable), tmp_path / "home")
    result = where.run(notebook_of(cells_of("guides/from-ciao.md"), kernel="danlu"))
    assert all("byte for byte" in str(cell.outputs) for cell in result.cells)
