"""One browser, and JupyterLabs whose kernels are of the Python that runs the tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.browser.chromium import ChromiumBrowser, chromium
from tests.notebook.browser.lab_server import LabServer, lab
from tests.notebook.conftest import JupyterEnv


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromiumBrowser]:
    """A Chromium for all tests."""
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def browser(shared_browser: ChromiumBrowser) -> Iterator[ChromiumBrowser]:
    """The Chromium; pages are closed when the test is over."""
    yield shared_browser
    shared_browser.close_pages()


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of screenshots: ``DANLU_SCREENSHOTS`` (for the docs), else a temporary one."""
    return Path(os.environ.get("DANLU_SCREENSHOTS") or tmp_path_factory.mktemp("album")).resolve()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a kernelspec of this Python's ordinary kernel."""
    directory = tmp_path_factory.mktemp("kernels")
    spec = directory / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    return directory


@pytest.fixture(scope="session")
def jupyterlab(
    jupyter_env: JupyterEnv, kernels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LabServer]:
    """Start a JupyterLab with a separate home of danlu."""
    program = jupyter_env("lab", ["jupyterlab>=4"]) / "bin" / "jupyter-lab"
    directory = tmp_path_factory.mktemp("lab")
    with lab(program, directory, kernels=[kernels]) as started:
        yield started
