"""The operator as a separate process, next to a cluster with a node."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from danlu.kube.client import Client
from danlu.kube.errors import AlreadyExists
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.kube.types import Manifest
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from tests.kube.objects import eventually
from tests.kube.servers import free_port

__all__ = ["install", "operating"]


async def install(client: Client) -> None:
    """Have the definitions of all kinds, once."""
    for document in custom_resource_definitions(BUILT_IN_FRAMEWORKS):
        try:
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, document)
        except AlreadyExists:
            return

    async def established() -> bool:
        found = (await client.list(CUSTOM_RESOURCE_DEFINITIONS)).items
        return all(map(_established, found))

    await eventually(established)


def _established(document: Manifest) -> bool:
    conditions = document.get("status", {}).get("conditions") or ()
    return any(
        condition["type"] == "Established" and condition["status"] == "True"
        for condition in conditions
    )


@asynccontextmanager
async def operating(kubeconfig: Path, log: Path, *flags: str) -> AsyncIterator[None]:
    """``danlu operator run``, ready within the context and ended by SIGTERM after it."""
    port = free_port()
    program = Path(sys.executable).with_name("danlu")
    command = [str(program), "operator", "run", f"--kubeconfig={kubeconfig}", *flags]
    command += ["--metrics-bind-address=", f"--health-probe-bind-address=127.0.0.1:{port}"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    try:
        await eventually(ready, seconds=30)
        yield
    finally:
        process.terminate()
        code = await anyio.to_thread.run_sync(lambda: process.wait(60))
    assert code == 0, log.read_text()
