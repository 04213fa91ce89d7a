"""The example notebook of PyTorch, run by hand: cell after cell in JupyterLab."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import LabServer, lab
from tests.notebook.browser.page_observers import ViewRecorder
from tests.notebook.conftest import JupyterEnv
from tests.notebook.notebooks import TORCH

pytestmark = [pytest.mark.notebook, pytest.mark.needs("chromium")]

EXAMPLE = ROOT / "examples" / "notebook" / "pytorch.ipynb"
#: Seconds a cell of it may take on a machine that is busy: it imports torch, in two workers.
LIMIT = 120.0


@pytest.fixture
def torch_lab(jupyter_env: JupyterEnv, tmp_path: Path) -> Iterator[LabServer]:
    """A JupyterLab whose kernel has the packages of the example."""
    python = jupyter_env("torch", TORCH) / "bin" / "python"
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = tmp_path / "data" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    program = jupyter_env("lab", ["jupyterlab>=4"]) / "bin" / "jupyter-lab"
    with lab(program, tmp_path / "lab", kernels=[tmp_path / "data"]) as started:
        yield started


def test_example_notebook_shows_table_and_chart(
    torch_lab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    shutil.copy(EXAMPLE, torch_lab.directory)
    cells = json.loads(EXAMPLE.read_bytes())["cells"]
    code = [number for number, cell in enumerate(cells) if cell["cell_type"] == "code"]
    *before, job, after = code[:5]
    notebook = torch_lab.open(browser, EXAMPLE.name, height=1400)
    for number in before:
        notebook.run(number)
        notebook.wait_for_end(number, limit=LIMIT)
    views = ViewRecorder(notebook.page)
    notebook.run(job)
    notebook.wait_for_end(job, limit=LIMIT)
    assert views.heads()[-3:] == ["Pending", "Running", "Succeeded"]
    assert views.states("worker-1")[-2:] == ["Running", "Succeeded"]
    assert views.seen()[0]["curves"] == 0
    assert notebook.page.evaluate(f"{notebook.output(job)}.querySelector('img').naturalWidth") > 100
    notebook.photograph(album / "notebook-example.png", job, home=torch_lab.home)
    notebook.run(after)
    notebook.until(after, "accuracy 0.9", limit=LIMIT)
    assert re.search(r"accuracy 0\.9\d+", notebook.says(after))
    assert browser.complaints == []
