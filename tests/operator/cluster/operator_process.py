"""The operator as a separate process, next to a cluster with a node."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio

from danlu.kube.client import Client
from danlu.kube.errors import AlreadyExists
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.kube.types import Manifest
from danlu.operator.crds import custom_resource_definitions
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB, choose_version
from tests.kube.objects import eventually
from tests.ports import free_port

__all__ = ["install", "run_operator"]


async def install(client: Client, versions: Mapping[str, str] = {}) -> None:
    """Install the CRDs of all kinds, in place of those of other versions."""
    known = (*BUILT_IN_FRAMEWORKS, TRAIN_JOB)
    frameworks = [choose_version(each, versions.get(each.kind, "")) for each in known]
    for document in custom_resource_definitions(frameworks):
        name = document["metadata"]["name"]
        try:
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, document)
        except AlreadyExists:
            existing = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
            if _list_versions(existing) == _list_versions(document):
                continue
            await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)
            await eventually(partial(_is_gone, client, name))
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, document)

    async def crds_are_ready() -> bool:
        result = (await client.list(CUSTOM_RESOURCE_DEFINITIONS)).items
        return all(map(_is_ready, result))

    await eventually(crds_are_ready)


async def _is_gone(client: Client, name: str) -> bool:
    found = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
    return all(each["metadata"]["name"] != name for each in found.items)


def _list_versions(document: Manifest) -> list[str]:
    return [version["name"] for version in document["spec"]["versions"]]


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
