"""What the tests of notebooks share: environments with programs of others, and longer limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import REAL_LIMIT
from tests.notebook.environments import make

JupyterEnv = Callable[[str, Sequence[str]], Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Jupyter, browsers or environments of their own get the limit of real tests."""
    for item in items:
        if item.get_closest_marker("notebook") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(REAL_LIMIT))


@pytest.fixture(scope="session")
def jupyter_env() -> JupyterEnv:
    """``jupyter_env(name, requirements)``: a virtual environment's directory, made once.

    ``danlu[notebook]`` among the requirements is this checkout.
    """
    return make
