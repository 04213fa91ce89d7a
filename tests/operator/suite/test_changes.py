"""Jobs that are changed: suspended, resumed, scaled, handed to another manager."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.operator.builders import AUTOSCALERS
from tests.operator.operator_namespace import OperatorNamespace, jobs

pytestmark = pytest.mark.anyio
METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}
ELASTIC: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]}


def suspend(value: bool) -> dict[str, Any]:
    return {"spec": {"runPolicy": {"suspend": value}}}


async def test_a_job_that_is_created_suspended_creates_no_pods(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("PyTorchJob", run={"suspend": True}, Worker=2)
    status = await site.wait_for_state("Suspended")
    assert "startTime" not in status
    await site.pass_time(1)
    assert await site.pods() == await site.services() == []
    await site.change(suspend(False))
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    assert (await site.status())["startTime"]


async def test_a_suspended_job_loses_its_pods_and_resumes_with_its_changes(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.wait_for_state("Running")
    await site.change(suspend(True))
    await site.wait_for_state("Suspended")
    await site.wait_for_pods()
    await site.wait_for_services()
    # As Kueue does: the flavour of nodes is chosen while the job is suspended.
    template = (await site.job())["spec"]["pytorchReplicaSpecs"]
    template["Worker"]["template"]["spec"]["nodeSelector"] = {"gpu": "h200"}
    await site.change({"spec": {"pytorchReplicaSpecs": template, "runPolicy": {"suspend": False}}})
    await site.wait_for_pods("job-worker-0")
    assert (await site.pod("job-worker-0"))["spec"]["nodeSelector"] == {"gpu": "h200"}
    conditions = {condition["type"]: condition for condition in (await site.status())["conditions"]}
    assert conditions["Suspended"]["status"] == "False"
    assert conditions["Suspended"]["reason"] == "PyTorchJobResumed"
    assert not (await site.status())["records"]["worker-0"].get("restarts")


async def test_a_job_managed_by_another_controller_is_ignored(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("PyTorchJob", run={"managedBy": "kueue.x-k8s.io/multikueue"}, Worker=1)
    await site.submit("PyTorchJob", "ours", Worker=1)
    await site.wait_for_pods("ours-worker-0")
    assert await site.status() == {}


async def scale_job(site: OperatorNamespace, number: int) -> None:
    """Scale through the subresource, as an autoscaler does."""
    await site.client.patch(
        jobs("PyTorchJob"),
        "job",
        merge_patch({"spec": {"replicas": number}}),
        namespace=site.space,
        subresource="scale",
    )


async def test_the_scale_subresource_scales_a_job_up_and_down(
    site: OperatorNamespace, operator: Manager
) -> None:
    policy = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}
    await site.submit("PyTorchJob", spec=policy, Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    await scale_job(site, 3)
    await site.wait_for_pods("job-worker-0", "job-worker-1", "job-worker-2")
    await site.wait_for_services("job-worker-0", "job-worker-1", "job-worker-2")
    await site.run()

    async def all_active() -> bool:
        result = await site.client.get(
            jobs("PyTorchJob"), "job", namespace=site.space, subresource="scale"
        )
        return bool(result["status"].get("replicas") == 3)

    await site.eventually(all_active)
    scale = await site.client.get(
        jobs("PyTorchJob"), "job", namespace=site.space, subresource="scale"
    )
    assert "training.kubeflow.org/replica-type=worker" in scale["status"]["selector"]
    await scale_job(site, 1)
    await site.wait_for_pods("job-worker-0")
    await site.wait_for_services("job-worker-0")


async def test_an_elastic_job_has_an_autoscaler_while_it_runs(
    site: OperatorNamespace, operator: Manager
) -> None:
    document = await site.submit("PyTorchJob", spec={"elasticPolicy": ELASTIC}, Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    (result,) = await site.all_of(AUTOSCALERS)
    spec = result["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["metrics"]) == (1, 4, [METRIC])
    assert spec["scaleTargetRef"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "job",
    }
    assert result["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]
    await site.change({"spec": {"elasticPolicy": {"maxReplicas": 3}}})

    async def maximum_is_lower() -> bool:
        return bool((await site.all_of(AUTOSCALERS))[0]["spec"]["maxReplicas"] == 3)

    await site.eventually(maximum_is_lower)
    await site.change(suspend(True))

    async def autoscaler_is_gone() -> bool:
        return not await site.all_of(AUTOSCALERS)

    await site.eventually(autoscaler_is_gone)


async def test_an_elastic_job_is_done_when_one_worker_is(
    site: OperatorNamespace, operator: Manager
) -> None:
    await site.submit("PyTorchJob", spec={"elasticPolicy": ELASTIC}, Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    pod = await site.pod("job-worker-1")
    env = {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}
    assert (env["PET_NNODES"], env["PET_RDZV_ENDPOINT"]) == ("1:4", "job-worker-0:23456")
    await site.run()
    await site.wait_for_state("Running")
    await site.end("job-worker-1")
    await site.wait_for_state("Succeeded")
