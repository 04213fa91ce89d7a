"""Fixtures of the notebook tests: environments with programs of others, longer limits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import count
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


#: Below what Linux gives to those who ask for any port (ip_local_port_range), and for each worker.
_PORTS, _EACH = 20_000, 2_000


@pytest.fixture(scope="session", autouse=True)
def ports_of_our_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let kernels that tests start use ports that no other process gets.

    jupyter_client looks for free ones and lets go of them until the kernel, a second later, binds
    them; another worker's kernel may have them by then (jupyter/jupyter_client#487).
    """
    if not any(item.get_closest_marker("notebook") for item in request.session.items):
        yield
        return
    from jupyter_client.connect import LocalPortCache

    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    numbers = count(_PORTS + worker * _EACH)

    def find_free_port(cache: LocalPortCache, ip: str) -> int:
        return next(number for number in numbers if _is_free(ip, number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPortCache, "find_available_port", find_free_port)
        yield


def _is_free(ip: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((ip, port))
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def jupyter_env() -> JupyterEnv:
    """``jupyter_env(name, requirements)``: the directory of a virtual environment, created once.

    ``danlu[notebook]`` among the requirements is this checkout.
    """
    return make
