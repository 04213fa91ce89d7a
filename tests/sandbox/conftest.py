from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.forked import inside


@pytest.fixture(params=["root", "ordinary"])
def forked(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a namespace, once as root and once as an ordinary user."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    home = tmp_path / "home"
    home.mkdir()
    return lambda function: inside(function, home=home, ordinary=request.param == "ordinary")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
