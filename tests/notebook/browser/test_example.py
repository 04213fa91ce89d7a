"""Notebooks that train with PyTorch, run by hand: cell after cell in JupyterLab."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import LabServer, lab, write_notebook
from tests.notebook.browser.page_observers import ViewRecorder
from tests.notebook.conftest import JupyterEnv
from tests.notebook.notebooks import TORCH

pytestmark = [pytest.mark.notebook, pytest.mark.needs("chromium")]

EXAMPLE = ROOT / "examples" / "notebook" / "pytorch.ipynb"
#: Seconds a cell of it may take on a machine that is busy: it imports torch, in two workers.
LIMIT = 120.0

PREPARE = """\
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, x_test, y, y_test = train_test_split(images, labels, random_state=7)"""
TRAIN = """\
%%distributed --framework pytorch --worker 2 --name digits --send x,y --return network,losses
import danlu
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size, epochs = dist.get_rank(), dist.get_world_size(), 30
images, labels = torch.from_numpy(x)[rank::size], torch.from_numpy(y)[rank::size]
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

losses = []
for epoch in range(1, epochs + 1):
    for batch, targets in zip(images.split(8), labels.split(8)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
    danlu.report(percentage=100 * epoch / epochs, loss=losses[-1])
    print(f"epoch {epoch}: loss {losses[-1]:.3f}", flush=True)

dist.destroy_process_group()"""
EVALUATE = """\
import torch

answers = network(torch.from_numpy(x_test)).argmax(dim=1).numpy()
print(f"accuracy {(answers == y_test).mean():.3f}")"""


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


def test_training_cell_is_shown_while_it_runs(
    torch_lab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    cells = (PREPARE, "%load_ext danlu.notebook", TRAIN, EVALUATE)
    write_notebook(torch_lab.directory / "digits.ipynb", *cells)
    notebook = torch_lab.open(browser, "digits.ipynb", height=1400)
    for number in (0, 1):
        notebook.run(number)
        notebook.wait_for_end(number, limit=LIMIT)
    notebook.run(2)
    notebook.until(2, "epoch 20:", limit=LIMIT)
    notebook.photograph(album / "notebook-running.png", 2, home=torch_lab.home)
    notebook.wait_for_end(2, limit=LIMIT)
    notebook.until(2, "digits succeeded in")
    notebook.run(3)
    notebook.until(3, "accuracy 0.9", limit=LIMIT)
