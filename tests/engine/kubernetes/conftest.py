from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.settings import PodSettings
from danlu.kube.client import Client
from tests.fakes.pod_streams import serve_pod_streams


@pytest.fixture
async def pod() -> AsyncIterator[EnvironmentPod]:
    """A pod whose programs run on this machine."""
    async with serve_pod_streams() as server, Client(server.access) as client:
        yield EnvironmentPod(client, PodSettings("digits-0", "", "team", "image"))
