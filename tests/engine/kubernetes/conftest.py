from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.settings import PodSettings
from danlu.kube.client import Client
from tests.fakes.pod_streams import PodStreamsServer, serve_pod_streams


@pytest.fixture
async def server() -> AsyncIterator[PodStreamsServer]:
    """An API server whose pods are this machine."""
    async with serve_pod_streams() as server:
        yield server


@pytest.fixture
async def pod(server: PodStreamsServer) -> AsyncIterator[EnvironmentPod]:
    """A pod whose programs run on this machine."""
    async with Client(server.access) as client:
        yield EnvironmentPod(client, PodSettings("digits-0", "", "team", "image"))
