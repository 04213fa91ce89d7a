"""One browser, and JupyterLabs whose kernels are of the Python that runs the tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebook.browser.chromium import Browser, chromium
from tests.notebook.browser.lab import Lab, lab
from tests.notebook.conftest import JupyterEnv


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium for all tests."""
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    """The Chromium; pages are closed when the test is over."""
    yield opened
    opened.close_pages()


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: ``DANLU_SCREENSHOTS`` (the docs' are in ``docs/images``), else nowhere."""
    return Path(os.environ.get("DANLU_SCREENSHOTS") or tmp_path_factory.mktemp("album")).resolve()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a kernelspec of this Python's ordinary kernel."""
    place = tmp_path_factory.mktemp("kernels")
    spec = place / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    return place


@pytest.fixture(scope="session")
def jupyterlab(
    jupyter_env: JupyterEnv, kernels: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Start a JupyterLab with a separate home of danlu."""
    program = jupyter_env("lab", ["jupyterlab>=4"]) / "bin" / "jupyter-lab"
    place = tmp_path_factory.mktemp("lab")
    with lab(program, place, kernels=[kernels]) as started:
        yield started
