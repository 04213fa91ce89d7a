"""A cluster with the kinds of jobs, and an operator that reconciles them in this process.

Every claim of the suite is made of the published fake, and of a real server where there is one.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from danlu.kube.client import Client
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.manager import Manager
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB, choose_version
from tests.fakes.kubernetes import FakeKubernetes, VirtualClock
from tests.kube.objects import eventually
from tests.kube.servers import ApiServer, real_server
from tests.operator.operator_namespace import OperatorNamespace
from tests.operator.permissions import USER

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, one per session."""
    with real_server(tmp_path_factory.mktemp("operator")) as server:
        yield server


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> VirtualClock:
    """The clock of the fake and of its operators."""
    return VirtualClock()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    if request.param == "fake":
        held = request.getfixturevalue("clock")
        async with FakeKubernetes(now=held.now) as fake:
            yield ApiServer(ClusterConfig(server=fake.url), fake, collecting=True)
    else:
        yield request.getfixturevalue("real_site")


@pytest.fixture
async def operator_access(server: ApiServer) -> ClusterConfig:
    """The operators' access: on a real server, with the permissions of their manifests."""
    if server.fake is not None:
        return server.access
    return replace(server.access, credentials=StaticCredentials(token=USER))


@pytest.fixture
async def site(
    server: ApiServer,
    operator_access: ClusterConfig,
    clock: VirtualClock,
    versions: Mapping[str, str],
) -> AsyncIterator[OperatorNamespace]:
    """A namespace for one test, on a server with all kinds."""
    async with _open_site(server, operator_access, clock, versions) as site:
        yield site


@pytest.fixture(scope="module")
def versions() -> Mapping[str, str]:
    """The versions of kinds on the server if they are not the default."""
    return {}


@pytest.fixture
async def fake_site(clock: VirtualClock) -> AsyncIterator[OperatorNamespace]:
    """The same on the fake only, which injects faults and counts requests."""
    async with FakeKubernetes(now=clock.now) as fake:
        access = ClusterConfig(server=fake.url)
        async with _open_site(ApiServer(access, fake, collecting=True), access, clock) as site:
            yield site


@pytest.fixture
async def fake_site_in_time() -> AsyncIterator[OperatorNamespace]:
    """The same in real time, for operators that are processes of their own."""
    async with _fake_in_time() as site:
        yield site


@pytest.fixture(params=["fake", "real"])
async def site_in_time(request: pytest.FixtureRequest) -> AsyncIterator[OperatorNamespace]:
    """Either, in real time."""
    if request.param == "fake":
        async with _fake_in_time() as site:
            yield site
    else:
        server = request.getfixturevalue("real_site")
        async with _open_site(server, server.access, REAL_CLOCK) as site:
            yield site


@asynccontextmanager
async def _fake_in_time() -> AsyncIterator[OperatorNamespace]:
    async with FakeKubernetes() as fake:
        server = ApiServer(ClusterConfig(server=fake.url), fake, collecting=True)
        async with _open_site(server, server.access, REAL_CLOCK) as site:
            yield site


@asynccontextmanager
async def _open_site(
    server: ApiServer, operator: ClusterConfig, clock: Clock, versions: Mapping[str, str] = {}
) -> AsyncIterator[OperatorNamespace]:
    async with Client(server.access, manager="tests") as client:
        await _create_crds(client, versions)
        space = f"test-{next(_numbers)}"
        await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": space}}))
        yield OperatorNamespace(
            access=server.access,
            operator=operator,
            client=client,
            space=space,
            clock=clock if server.fake is not None else REAL_CLOCK,
            fake=server.fake,
            versions=versions,
        )


@pytest.fixture
async def operator(site: OperatorNamespace) -> AsyncIterator[Manager]:
    """An operator of all kinds."""
    async with site.operator_runs() as manager:
        yield manager


async def _create_crds(client: Client, versions: Mapping[str, str]) -> None:
    """Create the CRDs of all kinds."""
    existing = {crd["metadata"]["name"] for crd in (await client.list(_CRDS)).items}
    known = (*BUILT_IN_FRAMEWORKS, TRAIN_JOB)
    frameworks = [choose_version(each, versions.get(each.kind, "")) for each in known]
    for document in custom_resource_definitions(frameworks):
        if document["metadata"]["name"] not in existing:
            await client.create(_CRDS, document)
    await eventually(lambda: _crds_are_ready(client))


async def _crds_are_ready(client: Client) -> bool:
    result = (await client.list(_CRDS)).items
    return all(
        any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in (document.get("status") or {}).get("conditions") or ()
        )
        for document in result
    )


_CRDS = CUSTOM_RESOURCE_DEFINITIONS
