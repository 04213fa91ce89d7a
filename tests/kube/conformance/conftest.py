"""Every test of this suite runs on the fake, and on a real server if there is one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.resources import NAMESPACES
from tests.fakes.kubernetes import FakeKubernetes
from tests.kube.servers import ApiServer, real_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with real_server(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    if request.param == "fake":
        async with FakeKubernetes() as fake:
            yield ApiServer(ClusterConfig(server=fake.url), fake, collecting=True)
    else:
        yield request.getfixturevalue("real")


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(server.access, manager="tests") as client:
        yield client


@pytest.fixture
async def space(client: Client) -> str:
    """A namespace for one test."""
    name = f"test-{next(_numbers)}"
    await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": name}}))
    return name
