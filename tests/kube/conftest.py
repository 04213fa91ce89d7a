"""A fake server, a client of it and a clock that is held, for all tests of the package."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from danlu.kube.access import Access
from danlu.kube.client import Client
from danlu.testing.kubernetes import FakeKubernetes, VirtualClock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fake() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as fake:
        yield fake


@pytest.fixture
async def kube(fake: FakeKubernetes) -> AsyncIterator[Client]:
    async with Client(Access(server=fake.url), manager="tests") as client:
        yield client
