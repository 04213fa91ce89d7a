"""The manifests' installation, run with its service account and arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.errors import ApiError, Forbidden
from danlu.kube.resources import CONFIG_MAPS, PODS, SECRETS, Resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.installation import list_manifests
from danlu.operator.manifests import InstallOptions
from danlu.operator.types import OperatorSettings
from danlu.training.document import read_manifest_file
from danlu.training.names import REPORTS_ANNOTATION
from tests.conftest import ROOT
from tests.kube.objects import eventually
from tests.kube.servers import ApiServer, real_server
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.cluster.operator_process import run_operator
from tests.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.real]
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Namespace": "namespaces",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
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
    result = await client.create(
        accounts, request, namespace="danlu-system", name="danlu-operator", subresource="token"
    )
    return str(result["status"]["token"])


def example(name: str) -> Manifest:
    read = read_manifest_file((ROOT / "examples" / "operator" / name).read_text(), name)
    job: Manifest = json.loads(json.dumps(dict(read.job), default=dict))
    job["metadata"] |= {"namespace": "default", "annotations": {REPORTS_ANNOTATION: "progress"}}
    return job


async def test_the_operator_runs_jobs_with_the_permissions_of_its_role(
    server: ApiServer, tmp_path: Path
) -> None:
    settings = OperatorSettings(
        metrics_address="",
        health_address="",
        reports_address=f"127.0.0.1:{free_port()}",
        reports_url="https://127.0.0.1:1",
    )
    async with Client(server.access) as client:
        arguments = await install_operator(client, settings)
        access = replace(server.access, credentials=StaticCredentials(token=await token(client)))
        config = kubeconfig(
            access, tmp_path / "config", namespace="danlu-system", token=await token(client)
        )
        async with run_operator(config, tmp_path / "log", *arguments):
            for name in ("pytorchjob-elastic.yaml", "mpijob.yaml", "tfjob.yaml"):
                await submit_job(client, example(name))
            await eventually(lambda: are_there(client, pods=9))
        await check_own(client, access)
    output = (tmp_path / "log").read_text()
    assert "orbidden" not in output, output[-3000:]


async def install_operator(client: Client, settings: OperatorSettings) -> list[str]:
    """Apply the manifests; gives the arguments of the Deployment."""
    documents: list[Any] = [
        *list_manifests(InstallOptions(image="example/danlu:1", settings=settings))
    ]
    for document in documents:
        await client.create_or_patch(kind_of(document), document)
    container = documents[-1]["spec"]["template"]["spec"]["containers"][0]
    results: list[str] = container["args"]
    return [obj for obj in results if "address=" not in obj or "reports" in obj]


async def submit_job(client: Client, job: Manifest) -> None:
    async def server_accepts() -> bool:
        try:
            await client.create(kind_of(job), job)
        except ApiError:
            # The definition is not served yet.
            return False
        return True

    await eventually(server_accepts)


async def are_there(client: Client, *, pods: int) -> bool:
    return len((await client.list(PODS, ListOptions("default"))).items) == pods


async def check_own(client: Client, access: ClusterConfig) -> None:
    """Check its permissions besides jobs."""
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
