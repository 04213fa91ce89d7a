"""A training job in a cell, as it looks while it runs, ends, is interrupted or writes much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import LabServer, NotebookPage, write_notebook
from tests.notebook.browser.page_observers import FrameTimer, ViewRecorder
from tests.notebook.processes import find_processes_in, until

pytestmark = [pytest.mark.notebook, pytest.mark.needs("chromium")]

LOAD = "%load_ext danlu.notebook\nsteps = 16"
TRAIN = """\
%%distributed --framework pytorch --worker 2 --name furnace --send steps --return losses
import time
import danlu

losses = []
for step in range(1, steps + 1):
    losses.append(2 / step)
    danlu.report(percentage=100 * step / steps, loss=losses[-1])
    print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    time.sleep(0.2)
"""
SLEEP = """\
%%distributed --framework pytorch --worker 2 --name sleeper
import time
print("asleep", flush=True)
time.sleep(600)
"""
LINES = 50_000
FLOOD = f"""\
%%distributed --framework pytorch --worker 2 --name flood
for number in range({LINES // 2}):
    print(f"line {{number}} " + "x" * 80)
"""
#: Both workers write 20,000 lines a second until they are interrupted.
STREAM = """\
%%distributed --framework pytorch --worker 2 --name stream
import time
number = 0
while True:
    for number in range(number, number + 2000):
        print(f"line {number} " + "x" * 80)
    time.sleep(0.1)
"""
#: Seconds that a page may draw nothing: more, and typing and scrolling are felt to hang.
FROZEN = 0.5
#: Seconds that replicas have to end on a busy machine.
GRACE = 60.0


def open_notebook(lab: LabServer, browser: ChromiumBrowser, name: str, *cells: str) -> NotebookPage:
    """A notebook whose first cell has been run."""
    write_notebook(lab.directory / f"{name}.ipynb", *cells)
    notebook = lab.open(browser, f"{name}.ipynb", height=1100)
    notebook.run(0)
    notebook.wait_for_end(0)
    return notebook


def test_job_is_shown_live_and_returns_its_value(
    jupyterlab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    notebook = open_notebook(jupyterlab, browser, "train", LOAD, TRAIN, "print(losses[-1])")
    views = ViewRecorder(notebook.page)
    notebook.run(1)
    notebook.until(1, "step 10:")
    notebook.photograph(album / "notebook-live.png", 1, home=jupyterlab.home)
    notebook.wait_for_end(1)
    notebook.until(1, "furnace succeeded in")
    assert notebook.newest(1).startswith("step 16:")
    notebook.photograph(album / "notebook-succeeded.png", 1, home=jupyterlab.home)
    assert views.heads()[-3:] == ["Pending", "Running", "Succeeded"]
    assert views.states("worker-0")[-2:] == ["Running", "Succeeded"]
    assert views.seen()[0]["curves"] == 0
    curve = f"{notebook.output(1)}.querySelector('img')"
    assert notebook.page.evaluate(f"{curve}.naturalWidth") > 100
    notebook.run(2)
    notebook.until(2, str(2 / 16))
    assert browser.complaints == []


def test_interrupted_job_stops(
    jupyterlab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    notebook = open_notebook(jupyterlab, browser, "sleep", LOAD, SLEEP)
    notebook.run(1)
    notebook.until(1, "worker-1 │ asleep")
    assert len(find_processes_in(jupyterlab.home / "jobs" / "sleeper")) >= 2
    notebook.interrupt_and_wait(1)
    notebook.until(1, "sleeper was interrupted and has stopped", limit=GRACE)
    assert "KeyboardInterrupt" in notebook.says(1)
    until(lambda: not find_processes_in(jupyterlab.home / "jobs" / "sleeper"), limit=GRACE)
    notebook.photograph(album / "notebook-interrupted.png", 1, home=jupyterlab.home)


def test_many_log_lines_do_not_freeze_the_page(
    jupyterlab: LabServer, browser: ChromiumBrowser, album: Path
) -> None:
    notebook = open_notebook(jupyterlab, browser, "flood", LOAD, FLOOD)
    frames = FrameTimer(notebook.page)
    notebook.run(1)
    notebook.until(1, "flood succeeded in")
    assert frames.longest() <= FROZEN
    assert notebook.newest(1).startswith(f"line {LINES // 2 - 1} xxx")
    assert jupyterlab.complaints() == []
    assert "IOPub" not in notebook.page.evaluate("document.body.innerText")
    notebook.photograph(album / "notebook-lines.png", 1, home=jupyterlab.home)


def test_interrupt_works_while_log_lines_stream(
    jupyterlab: LabServer, browser: ChromiumBrowser
) -> None:
    notebook = open_notebook(jupyterlab, browser, "stream", LOAD, STREAM)
    frames = FrameTimer(notebook.page)
    notebook.run(1)
    notebook.until(1, "earlier lines")
    notebook.interrupt_and_wait(1)
    notebook.until(1, "stream was interrupted and has stopped", limit=GRACE)
    assert frames.longest() <= FROZEN
    until(lambda: not find_processes_in(jupyterlab.home / "jobs" / "stream"), limit=GRACE)
    assert jupyterlab.complaints() == []
