"""A cluster of one test: the fake API server with danlu's kinds, its operator, and a kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.jobs.kubernetes.support import Site, site_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with site_of() as site:
        yield site
