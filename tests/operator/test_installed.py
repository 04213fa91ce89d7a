"""What the manifests install, run with its service account and arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danlu.commands.operator import OperatorDeployment, list_manifests
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.errors import ApiError, Forbidden
from danlu.kube.resources import CONFIG_MAPS, PODS, SECRETS, Resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.types import OperatorSettings
from danlu.training.manifest import read_manifest_file
from danlu.training.names import REPORTS_ANNOTATION
from tests.conftest import ROOT
from tests.kube.objects import eventually
from tests.kube.servers import Server, free_port, real_server
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.cluster.operators import operating

pytestmark = [pytest.mark.anyio, pytest.mark.real]
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Namespace": "namespaces",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with real_server(tmp_path_factory.mktemp("installed")) as server:
        yield server


def kind_of(document: Manifest) -> Resource[Manifest]:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = document["kind"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return Resource(group, version, plural, kind, Manifest, kind not in _PLURALS)


async def token(client: Client) -> str:
    """A token of the operator's service account, as a pod has one."""
    accounts = Resource("", "v1", "serviceaccounts", "TokenRequest", Manifest)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = await client.create(
        accounts, request, namespace="danlu-system", name="danlu-operator", subresource="token"
    )
    return str(made["status"]["token"])


def example(name: str) -> Manifest:
    read = read_manifest_file((ROOT / "examples" / "operator" / name).read_text(), name)
    job: Manifest = json.loads(json.dumps(dict(read.job), default=dict))
    job["metadata"] |= {"namespace": "default", "annotations": {REPORTS_ANNOTATION: "progress"}}
    return job


async def test_the_operator_runs_jobs_with_the_rights_it_is_given(
    server: Server, tmp_path: Path
) -> None:
    settings = OperatorSettings(
        metrics_address="",
        health_address="",
        reports_address=f"127.0.0.1:{free_port()}",
        reports_url="https://127.0.0.1:1",
    )
    async with Client(server.access) as client:
        arguments = await installed(client, settings)
        access = replace(server.access, credentials=StaticCredentials(token=await token(client)))
        config = kubeconfig(
            access, tmp_path / "config", namespace="danlu-system", token=await token(client)
        )
        async with operating(config, tmp_path / "log", *arguments):
            for name in ("pytorchjob-elastic.yaml", "mpijob.yaml", "tfjob.yaml"):
                await submitted(client, example(name))
            await eventually(lambda: are_there(client, pods=9))
        await check_own(client, access)
    said = (tmp_path / "log").read_text()
    assert "orbidden" not in said, said[-3000:]


async def installed(client: Client, settings: OperatorSettings) -> list[str]:
    """Apply the manifests; gives the arguments of the Deployment."""
    documents: list[Any] = [*list_manifests(settings, OperatorDeployment(image="example/danlu:1"))]
    for document in documents:
        await client.apply(kind_of(document), document, manager="kubectl")
    container = documents[-1]["spec"]["template"]["spec"]["containers"][0]
    found: list[str] = container["args"]
    return [obj for obj in found if "address=" not in obj or "reports" in obj]


async def submitted(client: Client, job: Manifest) -> None:
    async def taken() -> bool:
        try:
            await client.create(kind_of(job), job)
        except ApiError:
            # The definition is not served yet.
            return False
        return True

    await eventually(taken)


async def are_there(client: Client, *, pods: int) -> bool:
    return len((await client.list(PODS, ListOptions("default"))).items) == pods


async def check_own(client: Client, access: ClusterConfig) -> None:
    """What it may do besides jobs, and what it may not."""
    lease = Resource("coordination.k8s.io", "v1", "leases", "Lease", Manifest)
    held = await client.get(lease, "danlu-operator", namespace="danlu-system")
    # Given back when it ended.
    assert held["spec"]["holderIdentity"] == ""
    async with Client(access) as operator:
        for name, space in (("tensorflow-digits-reports", "default"), ("other", "danlu-system")):
            with pytest.raises(Forbidden):
                await operator.get(SECRETS, name, namespace=space)
        with pytest.raises(Forbidden):
            await operator.list(CONFIG_MAPS)
