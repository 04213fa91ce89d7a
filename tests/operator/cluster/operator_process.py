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
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB
from tests.kube.objects import eventually
from tests.ports import free_port

__all__ = ["install", "run_operator"]


async def install(client: Client) -> None:
    """Install the CRDs of all kinds once."""
    for document in custom_resource_definitions((*BUILT_IN_FRAMEWORKS, TRAIN_JOB)):
        try:
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, document)
        except AlreadyExists:
            return

    async def crds_are_ready() -> bool:
        result = (await client.list(CUSTOM_RESOURCE_DEFINITIONS)).items
        return all(map(_is_ready, result))

    await eventually(crds_are_ready)


def _is_ready(document: Manifest) -> bool:
    conditions = document.get("status", {}).get("conditions") or ()
    return any(
        condition["type"] == "Established" and condition["status"] == "True"
        for condition in conditions
    )


@asynccontextmanager
async def run_operator(kubeconfig: Path, log: Path, *flags: str) -> AsyncIterator[None]:
    """``danlu operator run``, ready within the context and ended by SIGTERM after it."""
    port = free_port()
    program = Path(sys.executable).with_name("danlu")
    command = [str(program), "operator", "run", f"--kubeconfig={kubeconfig}", *flags]
    command += ["--metrics-bind-address=", f"--health-probe-bind-address=127.0.0.1:{port}"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    try:
        await eventually(is_ready, seconds=30)
        yield
    finally:
        process.terminate()
        code = await anyio.to_thread.run_sync(lambda: process.wait(60))
    assert code == 0, log.read_text()
