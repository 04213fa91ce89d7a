"""Jobs that are changed: suspended, resumed, scaled, handed to another manager."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.manager import Manager
from danlu.kube.patch import merge_patch
from danlu.operator.builders import AUTOSCALERS
from tests.operator.site import Site, jobs

pytestmark = pytest.mark.anyio
METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}
ELASTIC: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 4, "metrics": [METRIC]}


def suspend(value: bool) -> dict[str, Any]:
    return {"spec": {"runPolicy": {"suspend": value}}}


async def test_a_job_that_begins_suspended_makes_nothing(site: Site, operator: Manager) -> None:
    await site.submit("PyTorchJob", run={"suspend": True}, Worker=2)
    status = await site.until("Suspended")
    assert "startTime" not in status
    await site.pass_time(1)
    assert await site.pods() == await site.services() == []
    await site.change(suspend(False))
    await site.until_pods("job-worker-0", "job-worker-1")
    assert (await site.status())["startTime"]


async def test_a_suspended_job_loses_its_pods_and_starts_again_as_it_was_changed(
    site: Site, operator: Manager
) -> None:
    await site.submit("PyTorchJob", Worker=1)
    await site.until_pods("job-worker-0")
    await site.run()
    await site.until("Running")
    await site.change(suspend(True))
    await site.until("Suspended")
    await site.until_pods()
    await site.until_services()
    # As Kueue does: the flavour of nodes is chosen while the job is suspended.
    template = (await site.job())["spec"]["pytorchReplicaSpecs"]
    template["Worker"]["template"]["spec"]["nodeSelector"] = {"gpu": "h200"}
    await site.change({"spec": {"pytorchReplicaSpecs": template, "runPolicy": {"suspend": False}}})
    await site.until_pods("job-worker-0")
    assert (await site.pod("job-worker-0"))["spec"]["nodeSelector"] == {"gpu": "h200"}
    conditions = {condition["type"]: condition for condition in (await site.status())["conditions"]}
    assert conditions["Suspended"]["status"] == "False"
    assert conditions["Suspended"]["reason"] == "PyTorchJobResumed"
    assert not (await site.status())["records"]["worker-0"].get("restarts")


async def test_a_job_managed_by_another_controller_is_ignored(
    site: Site, operator: Manager
) -> None:
    await site.submit("PyTorchJob", run={"managedBy": "kueue.x-k8s.io/multikueue"}, Worker=1)
    await site.submit("PyTorchJob", "ours", Worker=1)
    await site.until_pods("ours-worker-0")
    assert await site.status() == {}


async def scaled(site: Site, number: int) -> None:
    """Scale through the subresource, as an autoscaler does."""
    await site.client.patch(
        jobs("PyTorchJob"),
        "job",
        merge_patch({"spec": {"replicas": number}}),
        namespace=site.space,
        subresource="scale",
    )


async def test_the_scale_subresource_makes_a_job_bigger_and_smaller(
    site: Site, operator: Manager
) -> None:
    policy = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}
    await site.submit("PyTorchJob", spec=policy, Worker=2)
    await site.until_pods("job-worker-0", "job-worker-1")
    await scaled(site, 3)
    await site.until_pods("job-worker-0", "job-worker-1", "job-worker-2")
    await site.until_services("job-worker-0", "job-worker-1", "job-worker-2")
    await site.run()

    async def all_active() -> bool:
        found = await site.client.get(
            jobs("PyTorchJob"), "job", namespace=site.space, subresource="scale"
        )
        return bool(found["status"].get("replicas") == 3)

    await site.eventually(all_active)
    scale = await site.client.get(
        jobs("PyTorchJob"), "job", namespace=site.space, subresource="scale"
    )
    assert "training.kubeflow.org/replica-type=worker" in scale["status"]["selector"]
    await scaled(site, 1)
    await site.until_pods("job-worker-0")
    await site.until_services("job-worker-0")


async def test_an_elastic_job_has_an_autoscaler_while_it_runs(
    site: Site, operator: Manager
) -> None:
    document = await site.submit("PyTorchJob", spec={"elasticPolicy": ELASTIC}, Worker=2)
    await site.until_pods("job-worker-0", "job-worker-1")
    (found,) = await site.all_of(AUTOSCALERS)
    spec = found["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["metrics"]) == (1, 4, [METRIC])
    assert spec["scaleTargetRef"] == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "job",
    }
    assert found["metadata"]["ownerReferences"][0]["uid"] == document["metadata"]["uid"]
    await site.change({"spec": {"elasticPolicy": {"maxReplicas": 3}}})

    async def lowered() -> bool:
        return bool((await site.all_of(AUTOSCALERS))[0]["spec"]["maxReplicas"] == 3)

    await site.eventually(lowered)
    await site.change(suspend(True))

    async def gone() -> bool:
        return not await site.all_of(AUTOSCALERS)

    await site.eventually(gone)


async def test_an_elastic_job_is_done_when_one_worker_is(site: Site, operator: Manager) -> None:
    await site.submit("PyTorchJob", spec={"elasticPolicy": ELASTIC}, Worker=2)
    await site.until_pods("job-worker-0", "job-worker-1")
    pod = await site.pod("job-worker-1")
    env = {variable["name"]: variable["value"] for variable in pod["spec"]["containers"][0]["env"]}
    assert (env["PET_NNODES"], env["PET_RDZV_ENDPOINT"]) == ("1:4", "job-worker-0:23456")
    await site.run()
    await site.until("Running")
    await site.end("job-worker-1")
    await site.until("Succeeded")
