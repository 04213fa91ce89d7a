"""The kernel danlu as one of several in a SoS notebook, in JupyterLab with SoS's extension."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.notebook.kernelspec import environment_base
from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import KERNEL, LabServer, lab, write_sos_notebook
from tests.notebook.conftest import JupyterEnv

pytestmark = [pytest.mark.notebook, pytest.mark.needs("chromium")]

SOS_LAB = ("danlu[notebook]", "jupyterlab>=4", "jupyterlab-sos", "sos-notebook", "sos-python")
KERNELS = {"SoS": "sos", "Danlu": "danlu", "Python3": "python3"}
JOB = """\
%framework=pytorch
%worker=2
%name=mixed
%return=losses
losses = [0.5, 0.25]
print("melted", flush=True)
"""
TAKEN = """\
%get losses --from Danlu
print("least of", len(losses), "is", min(losses))
"""


@pytest.fixture
def sos_lab(jupyter_env: JupyterEnv, tmp_path: Path) -> Iterator[LabServer]:
    """Start a JupyterLab with SoS's kernel and danlu's."""
    env = jupyter_env("sos-lab", SOS_LAB)
    prefix = tmp_path / "prefix"
    for program in (["sos_notebook.install"], ["danlu", "kernel", "install"]):
        command = [str(env / "bin/python"), "-m", *program, "--prefix", str(prefix)]
        subprocess.run(command, check=True, capture_output=True)
    with lab(
        env / "bin/jupyter-lab", tmp_path / "lab", kernels=[environment_base(prefix)]
    ) as started:
        yield started


def test_sos_notebook_runs_cells_of_both_kernels(
    sos_lab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    ready = (("SoS", "print('ready')"), ("Danlu", "steps = 2"), ("Python3", "known = 1"))
    cells = (*ready, ("Danlu", JOB), ("Python3", TAKEN))
    write_sos_notebook(sos_lab.directory / "mixed.ipynb", KERNELS, *cells)
    notebook = sos_lab.open(browser, "mixed.ipynb")
    # The extension sends a cell's kernel to SoS only after SoS's kernel was busy once.
    notebook.run(0)
    notebook.until(0, "ready", limit=60)
    notebook.page.wait(f"{KERNEL}.hasOwnProperty('orig_execute')")
    # SoS may miss what a kernel puts out before it hears it: the first cell of each has no output.
    for first in (1, 2):
        notebook.run(first)
        notebook.wait_for_end(first, limit=60)
    notebook.run(3)
    notebook.until(3, "mixed succeeded in", limit=60)
    assert "worker-1 │ melted" in notebook.says(3)
    notebook.run(4)
    notebook.until(4, "least of 2 is 0.25", limit=60)
    notebook.photograph(album / "notebook-sos.png", 3, home=sos_lab.home)
    assert browser.complaints == []
