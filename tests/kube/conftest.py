"""A fake API server, a client of it, and a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from tests.fakes.kubernetes import FakeKubernetes, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fake() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as fake:
        yield fake


@pytest.fixture
async def kube(fake: FakeKubernetes) -> AsyncIterator[Client]:
    async with Client(ClusterConfig(server=fake.url), manager="tests") as client:
        yield client


@pytest.fixture
async def virtual_time_client(fake: FakeKubernetes, clock: VirtualClock) -> AsyncIterator[Client]:
    """A client whose pauses end only when the clock is moved."""
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:
        yield client
