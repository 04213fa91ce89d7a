from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.local import container_engine
from tests.jobs.containers.engine_rig import EngineRig, within
from tests.sandbox.conftest import home
from tests.sandbox.forked import inside

__all__ = ["contained", "home"]

Contained = Callable[..., Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["root", "ordinary"])
def contained(request: pytest.FixtureRequest, home: Path) -> Contained:
    """Run a coroutine function with a rig in a process of its own, as root and as anybody."""
    ordinary = request.param == "ordinary"
    if not ordinary and os.geteuid() != 0:
        pytest.skip("needs root")

    def run(act: Callable[[EngineRig], Awaitable[Any]], **fields: Any) -> Any:
        return inside(
            lambda: within(home, act, **fields),
            home=home,
            ordinary=ordinary,
            enter=container_engine.enter_namespaces,
        )

    return run
