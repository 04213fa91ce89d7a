"""A cluster of one test, fake or real: an API server, danlu's kinds and operator, a kubelet."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from danlu.kube.client import Client
from danlu.kube.resources import NAMESPACES
from tests.fakes.kubernetes import VirtualClock
from tests.jobs.kubernetes.support import JobNamespace, real_site_of, site_of
from tests.kube.servers import ApiServer, real_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def real_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server, one per session."""
    with real_server(tmp_path_factory.mktemp("jobs")) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[JobNamespace]:
    """A namespace for this test, on a real server if there is one."""
    if request.param == "fake":
        async with site_of() as site:
            yield site
        return
    server: ApiServer = request.getfixturevalue("real_jobs")
    space = f"jobs-{next(_numbers)}"
    async with Client(server.access, manager="tests") as client:
        await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": space}}))
    async with real_site_of(server, space) as site:
        yield site


@pytest.fixture
def garbage_collector(site: JobNamespace, request: pytest.FixtureRequest) -> None:
    """Skip a test on a real server without a garbage collector."""
    if site.faked is None:
        server: ApiServer = request.getfixturevalue("real_jobs")
        server.require_garbage_collector()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def held_site(clock: VirtualClock) -> AsyncIterator[JobNamespace]:
    """The fake with a kubelet on the virtual ``clock``."""
    async with site_of(clock=clock) as site:
        yield site


@pytest.fixture
async def fake_site() -> AsyncIterator[JobNamespace]:
    """Only the fake API server, for injected faults."""
    async with site_of() as site:
        yield site
