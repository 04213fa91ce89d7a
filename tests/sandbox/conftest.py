from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.conftest import remove_tree
from tests.sandbox.namespace_process import run_inside

Inside = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory to which an ordinary user finds the way too: pytest closes its own."""
    directory = Path(mkdtemp(prefix="danlu-sandbox-"))
    directory.chmod(0o711)
    (directory / "home").mkdir()
    yield directory / "home"
    remove_tree(directory)


@pytest.fixture(params=["root", "ordinary"])
def run_in_namespace(
    request: pytest.FixtureRequest, home: Path
) -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a namespace, once as root and once as an ordinary user."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    return lambda function: run_inside(function, home=home, ordinary=request.param == "ordinary")


@pytest.fixture
def inside(home: Path) -> Inside:
    """Run a function in a mount namespace; an ordinary account gets a user namespace too."""

    def run(function: Callable[[], Any]) -> Any:
        try:
            return run_inside(function, home=home, ordinary=False)
        except AssertionError as error:
            if os.geteuid() != 0 and "MachineError" in str(error):
                pytest.skip("needs user namespaces")
            raise

    return run
