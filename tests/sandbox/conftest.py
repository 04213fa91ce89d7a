from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.conftest import remove_tree
from tests.sandbox.forked import inside


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory to which an ordinary user finds the way too: pytest closes its own."""
    place = Path(mkdtemp(prefix="danlu-sandbox-"))
    place.chmod(0o711)
    (place / "home").mkdir()
    yield place / "home"
    remove_tree(place)


@pytest.fixture(params=["root", "ordinary"])
def forked(request: pytest.FixtureRequest, home: Path) -> Callable[[Callable[[], Any]], Any]:
    """Run a function in a namespace, once as root and once as an ordinary user."""
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    return lambda function: inside(function, home=home, ordinary=request.param == "ordinary")
