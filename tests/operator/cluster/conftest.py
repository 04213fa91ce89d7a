"""A complete cluster on this machine: API server, scheduler, controllers, a node, a registry."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from tests import programs
from tests.kube.servers import TOKEN, real_server
from tests.oci.registries import debian_registry
from tests.operator.cluster.forwarding import forwarding
from tests.operator.cluster.node import (
    NAME,
    ClusterNode,
    find_free_number,
    node,
    service_range,
)
from tests.operator.cluster.programs import find, list_missing_programs
from tests.operator.cluster.service_dns import ServiceTable, has_storage, names_of


@dataclass(frozen=True)
class RunningCluster:
    """A cluster with one node; ``registry`` is the host that its images are pulled from.

    ``services`` has the Services whose names its pods resolve.
    """

    access: ClusterConfig
    kubeconfig: Path
    node: ClusterNode
    registry: str
    services: ServiceTable


@pytest.fixture(scope="session")
def cluster() -> Iterator[RunningCluster]:
    """The cluster, one per session."""
    if reason := list_missing_programs() or programs.lacking("docker-registry"):
        pytest.skip(reason)
    # A short path: the address of a socket has 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="danlu-", dir="/var/tmp"))
    try:
        with _run_cluster(directory) as result:
            yield result
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _run_cluster(directory: Path) -> Iterator[RunningCluster]:
    with ExitStack() as stack:
        number = find_free_number()
        options = [f"--service-cluster-ip-range={service_range(number)}"]
        server = stack.enter_context(real_server(directory, accounts=True, options=options))
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(_render_kubeconfig(server.access, directory))
        stack.enter_context(_run_scheduler(directory, kubeconfig))
        registry = stack.enter_context(debian_registry())
        machine = stack.enter_context(node(directory / "n", kubeconfig, number=number))
        _await_node(server.access)
        services = stack.enter_context(names_of(server.access, machine))
        reached = urlsplit(server.access.server)
        to = (reached.hostname or "", reached.port or 0)
        stack.enter_context(forwarding(machine.server, 443, to=lambda: to))
        yield RunningCluster(server.access, kubeconfig, machine, registry, services)


def _await_node(access: ClusterConfig) -> None:
    """Wait until the node is registered, and add what the kubelet does not report."""
    limit = time.monotonic() + 60
    while not has_storage(access, NAME):
        assert time.monotonic() < limit, "the kubelet has not registered its node"
        time.sleep(0.1)


def _render_kubeconfig(access: ClusterConfig, directory: Path) -> str:
    (directory / "ca.crt").write_bytes(access.ca)
    return f"""\
apiVersion: v1
kind: Config
current-context: test
clusters:
- {{name: one, cluster: {{server: "{access.server}", certificate-authority: "{directory}/ca.crt"}}}}
users: [{{name: one, user: {{token: {TOKEN}}}}}]
contexts: [{{name: test, context: {{cluster: one, user: one}}}}]
"""


@contextmanager
def _run_scheduler(directory: Path, kubeconfig: Path) -> Iterator[None]:
    command = [find("kube-scheduler"), f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
    with (directory / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--secure-port=0"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
async def client(cluster: RunningCluster) -> AsyncIterator[Client]:
    async with Client(cluster.access, manager="tests") as client:
        yield client
