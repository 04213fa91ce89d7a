"""A cluster with the kinds of jobs, and an operator that reconciles them in this process.

Every claim of the suite is made of the published fake, and of a real server where there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from danlu.kube.client import Client
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.manager import Manager
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from tests.fakes.kubernetes import FakeKubernetes, VirtualClock
from tests.kube.objects import eventually
from tests.kube.servers import Server, real_server
from tests.operator.permissions import USER
from tests.operator.site import Site

_numbers = itertools.count(1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server, one for the whole session."""
    with real_server(tmp_path_factory.mktemp("operator")) as server:
        yield server


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> VirtualClock:
    """The clock of the fake and of its operators."""
    return VirtualClock()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    if request.param == "fake":
        held = request.getfixturevalue("clock")
        async with FakeKubernetes(now=held.now) as fake:
            yield Server(ClusterConfig(server=fake.url), fake, collecting=True)
    else:
        yield request.getfixturevalue("real_site")


@pytest.fixture
async def operator_access(server: Server) -> ClusterConfig:
    """As whom operators ask: one who may do, on a real server, what their manifests say."""
    if server.fake is not None:
        return server.access
    return replace(server.access, credentials=StaticCredentials(token=USER))


@pytest.fixture
async def site(
    server: Server, operator_access: ClusterConfig, clock: VirtualClock
) -> AsyncIterator[Site]:
    """A namespace of this test alone, on a server that has all kinds."""
    async with _site(server, operator_access, clock) as site:
        yield site


@pytest.fixture
async def fake_site(clock: VirtualClock) -> AsyncIterator[Site]:
    """The same on the fake only, which injects faults and counts requests."""
    async with FakeKubernetes(now=clock.now) as fake:
        access = ClusterConfig(server=fake.url)
        async with _site(Server(access, fake, collecting=True), access, clock) as site:
            yield site


@pytest.fixture
async def fake_site_in_time() -> AsyncIterator[Site]:
    """The same in real time, for operators that are processes of their own."""
    async with _fake_in_time() as site:
        yield site


@pytest.fixture(params=["fake", "real"])
async def site_in_time(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """Either, in real time."""
    if request.param == "fake":
        async with _fake_in_time() as site:
            yield site
    else:
        server = request.getfixturevalue("real_site")
        async with _site(server, server.access, REAL_CLOCK) as site:
            yield site


@asynccontextmanager
async def _fake_in_time() -> AsyncIterator[Site]:
    async with FakeKubernetes() as fake:
        server = Server(ClusterConfig(server=fake.url), fake, collecting=True)
        async with _site(server, server.access, REAL_CLOCK) as site:
            yield site


@asynccontextmanager
async def _site(server: Server, operator: ClusterConfig, clock: Clock) -> AsyncIterator[Site]:
    async with Client(server.access, manager="tests") as client:
        await _defined(client)
        space = f"test-{next(_numbers)}"
        await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": space}}))
        yield Site(
            access=server.access,
            operator=operator,
            client=client,
            space=space,
            clock=clock if server.fake is not None else REAL_CLOCK,
            fake=server.fake,
        )


@pytest.fixture
async def operator(site: Site) -> AsyncIterator[Manager]:
    """An operator of all kinds."""
    async with site.operator_runs() as manager:
        yield manager


async def _defined(client: Client) -> None:
    """Have the definitions of all kinds."""
    there = {crd["metadata"]["name"] for crd in (await client.list(_CRDS)).items}
    for document in custom_resource_definitions(BUILT_IN_FRAMEWORKS):
        if document["metadata"]["name"] not in there:
            await client.create(_CRDS, document)
    await eventually(lambda: _established(client))


async def _established(client: Client) -> bool:
    found = (await client.list(_CRDS)).items
    return all(
        any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in (document.get("status") or {}).get("conditions") or ()
        )
        for document in found
    )


_CRDS = CUSTOM_RESOURCE_DEFINITIONS
