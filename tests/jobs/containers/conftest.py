from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.local import container_engine
from tests.jobs.containers.engine_rig import EngineRig, run_within
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import run_inside

__all__ = ["home", "run_with_rig"]

Contained = Callable[..., Any]


@pytest.fixture(params=["root", "ordinary"])
def run_with_rig(request: pytest.FixtureRequest, home: Path) -> Contained:
    """Run a coroutine function with a rig in a separate process, as root and as ordinary user."""
    ordinary = request.param == "ordinary"
    if not ordinary and os.geteuid() != 0:
        pytest.skip("needs root")

    def run(act: Callable[[EngineRig], Awaitable[Any]], **fields: Any) -> Any:
        return run_inside(
            lambda: run_within(home, act, **fields),
            home=home,
            ordinary=ordinary,
            enter=container_engine.enter_namespaces,
        )

    return run
