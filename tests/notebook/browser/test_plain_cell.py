"""Basis of the browser tests: a plain cell, run and interrupted by mouse and keyboard."""

from __future__ import annotations

import pytest

from tests.notebook.browser.chromium import ChromiumBrowser
from tests.notebook.browser.lab_server import LabServer, write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.needs("chromium")]

SLOW = "import time\nprint('begun')\ntime.sleep(60)"


def test_cells_run_and_can_be_interrupted(jupyterlab: LabServer, browser: ChromiumBrowser) -> None:
    write_notebook(jupyterlab.directory / "ordinary.ipynb", "print(6 * 7)", SLOW)
    notebook = jupyterlab.open(browser, "ordinary.ipynb")
    notebook.run(0)
    notebook.until(0, "42")
    notebook.run(1)
    notebook.until(1, "begun")
    notebook.interrupt()
    notebook.wait_for_end(1)
    assert "KeyboardInterrupt" in notebook.says(1)
    assert browser.complaints == []
