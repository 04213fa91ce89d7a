"""Every kind of job: the right pods and Services, and a status that follows the pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from danlu.kube.manager import Manager
from danlu.kube.resources import NAMESPACES, PODS, SERVICES
from danlu.training.manifest import read_job
from danlu.training.pod_template import find_main_container
from danlu.training.registry import find_framework
from danlu.training.rendering import JOB_ROLE, render_pod, replica_labels
from danlu.training.topology import ServiceTopology
from danlu.training.types import ReplicaId, ReplicaType
from tests.operator.operator_namespace import OperatorNamespace
from tests.training.manifests import SIZES

pytestmark = pytest.mark.anyio
KINDS = sorted(SIZES)
SERVED = [kind for kind in KINDS if kind != "MPIJob"]


def names(kind: str) -> list[str]:
    """The pods of the small job of a kind."""
    if kind == "MPIJob":
        return ["job-launcher", "job-worker-0", "job-worker-1"]
    return [
        f"job-{type.lower()}-{index}"
        for type, number in SIZES[kind].items()
        for index in range(number)
    ]


def _as_stored(variable: dict[str, Any]) -> dict[str, Any]:
    """Return a variable as a server stores it."""
    if "valueFrom" not in variable:
        return variable
    field = {"apiVersion": "v1", **variable["valueFrom"]["fieldRef"]}
    return {**variable, "valueFrom": {"fieldRef": field}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_has_the_pods_that_its_framework_renders(
    kind: str, site: OperatorNamespace, operator: Manager
) -> None:
    document = await site.submit(kind)
    await site.wait_for_pods(*names(kind))
    framework = find_framework(kind)
    job = read_job(document, framework)
    for replica in (
        ReplicaId(ReplicaType(type), i) for type, n in SIZES[kind].items() for i in range(n)
    ):
        expected = render_pod(job, framework, replica, ServiceTopology(job, framework))
        pod = await site.pod(expected["metadata"]["name"])
        labels = pod["metadata"]["labels"]
        assert labels == expected["metadata"]["labels"]
        assert replica_labels(job, framework, replica).keys() <= labels.keys() | {JOB_ROLE}
        assert labels["training.kubeflow.org/operator-name"] == f"{kind.lower()}-controller"
        assert pod["spec"]["restartPolicy"] == expected["spec"]["restartPolicy"]
        main = find_main_container(expected, framework.container)
        result = find_main_container(pod, framework.container).get("env", [])
        # A server does not keep a value that is empty, nor leave out a default.
        assert [{"value": "", **_as_stored(obj)} for obj in result] == [
            {"value": "", **_as_stored(variable)} for variable in main.get("env", [])
        ]
        (owner,) = pod["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "kubeflow.org/v1",
            "kind": kind,
            "name": "job",
            "uid": document["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }


@pytest.mark.parametrize("kind", SERVED)
async def test_each_replica_has_a_headless_service(
    kind: str, site: OperatorNamespace, operator: Manager
) -> None:
    document = await site.submit(kind)
    await site.wait_for_services(*names(kind))
    framework = find_framework(kind)
    await site.wait_for_pods(*names(kind))
    for service in await site.all_of(SERVICES):
        spec, labels = service["spec"], service["metadata"]["labels"]
        assert spec["clusterIP"] == "None"
        assert spec["selector"] == labels
        pod = await site.pod(service["metadata"]["name"])
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert [(port["name"], port["port"]) for port in spec["ports"]] == [
            (framework.port_name, framework.port)
        ]
        assert service["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_whose_replicas_all_end_well_succeeds(
    kind: str, site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(kind)
    await site.wait_for_pods(*names(kind))
    await site.wait_for_state("Created", kind)
    await site.run()
    status = await site.wait_for_state("Running", kind)
    assert status["startTime"]
    await site.end()
    status = await site.wait_for_state("Succeeded", kind)
    assert status["completionTime"]
    assert status["conditions"][-1]["reason"] == f"{kind}Succeeded"
    running = [condition for condition in status["conditions"] if condition["type"] == "Running"]
    assert [condition["status"] for condition in running] == ["False"]
    assert not any(replica.get("active") for replica in status["replicaStatuses"].values())
    assert await site.pods() == sorted(names(kind))
    await site.wait_for_event(f"{kind}Succeeded")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_fails_with_a_replica_that_decides(
    kind: str, site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit(kind, policy="Never")
    await site.wait_for_pods(*names(kind))
    await site.run()
    await site.wait_for_state("Running", kind)
    first = names(kind)[0]
    await site.end(first, code=3, message="no data")
    status = await site.wait_for_state("Failed", kind)
    assert status["completionTime"]
    failure = status["firstFailure"]
    assert failure["exitCode"] == 3
    assert failure["message"] == "no data"
    output = await site.wait_for_event("ExitedWithCode")
    replica = f"{failure['replica']['type'].lower()}-0"
    assert output == f"Pod: {site.space}.job-{replica} exited with code 3"
    assert await site.uid(first)


async def test_environment_names_the_services(site: OperatorNamespace, operator: Manager) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=1)
    await site.wait_for_pods("job-master-0", "job-worker-0")
    pod = await site.pod("job-worker-0")
    env = {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}
    assert (env["MASTER_ADDR"], env["RANK"], env["WORLD_SIZE"]) == ("job-master-0", "1", "2")
    assert env["MASTER_ADDR"] in await site.services()


async def test_workers_wait_for_their_master_only_if_configured(
    site: OperatorNamespace,
) -> None:
    async with site.operator_runs():
        await site.submit("PyTorchJob", "plain", Master=1, Worker=1)
        await site.wait_for_pods("plain-master-0", "plain-worker-0")
    assert "initContainers" not in (await site.pod("plain-worker-0"))["spec"]
    async with site.operator_runs(images={"alpine:3.10": "example/wait:1"}):
        await site.submit("PyTorchJob", "waiting", Master=1, Worker=1)

        async def pod_exists() -> bool:
            return "waiting-worker-0" in await site.pods()

        await site.eventually(pod_exists)
    (first,) = (await site.pod("waiting-worker-0"))["spec"]["initContainers"]
    assert first["image"] == "example/wait:1"


async def test_only_enabled_kinds_are_reconciled(site: OperatorNamespace) -> None:
    async with site.operator_runs(kinds=("pytorchjob",)):
        await site.submit("JAXJob", "other", Worker=1)
        await site.submit("PyTorchJob", Worker=1)
        await site.wait_for_pods("job-worker-0")
    assert await site.state("JAXJob", "other") == ""


async def test_one_event_names_all_created_pods(site: OperatorNamespace, operator: Manager) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    text = await site.wait_for_event("SuccessfulCreatePod")
    assert text == "Created pods: job-master-0, job-worker-0, job-worker-1"
    assert len(await site.all_of(PODS)) == 3


async def test_the_settings_of_images_and_names_are_applied(site: OperatorNamespace) -> None:
    images = {"kubeflow/kubectl-delivery:latest": "example/kubectl:1", "example/train:1": "no"}
    async with site.operator_runs(images=images, cluster_domain="tf.training.org"):
        await site.submit("MPIJob", "mpi", Launcher=1, Worker=1)
        await site.submit("TFJob", "tf", PS=1, Worker=1)
        names = ["mpi-launcher", "mpi-worker-0", "tf-ps-0", "tf-worker-0"]
        await site.wait_for_pods(*names)
    launcher = (await site.pod("mpi-launcher"))["spec"]
    assert [container["image"] for container in launcher["initContainers"]] == ["example/kubectl:1"]
    # Only what a framework names itself is another's to replace.
    assert [container["image"] for container in launcher["containers"]] == ["example/train:1"]
    (container,) = (await site.pod("tf-worker-0"))["spec"]["containers"]
    (config,) = [
        variable["value"] for variable in container["env"] if variable["name"] == "TF_CONFIG"
    ]
    assert f"tf-ps-0.{site.space}.svc.tf.training.org:2222" in config


async def test_an_operator_of_all_namespaces_runs_jobs_in_each(
    fake_site: OperatorNamespace,
) -> None:
    site = fake_site
    other = NAMESPACES.to_manifest({"metadata": {"name": "elsewhere"}})
    await site.client.create(NAMESPACES, other)
    elsewhere = replace(site, space="elsewhere")
    async with site.operator_runs(namespace=""):
        for namespace in (site, elsewhere):
            await namespace.submit("PyTorchJob", Worker=1)
        for namespace in (site, elsewhere):
            await namespace.wait_for_pods("job-worker-0")
    await elsewhere.submit("PyTorchJob", "left", Worker=1)
    async with site.operator_runs():
        await site.submit("PyTorchJob", "more", Worker=1)
        await site.wait_for_pods("job-worker-0", "more-worker-0")
        assert await elsewhere.pods() == ["job-worker-0"]
