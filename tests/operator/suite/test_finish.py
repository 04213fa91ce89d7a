"""The end of a job: clean-up, time to live, deadline, restarts and their limit."""

from __future__ import annotations

import pytest

from danlu.kube.manager import Manager
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio


async def running(site: OperatorNamespace, **options: object) -> None:
    """A job of one master and two workers, all of which run."""
    await site.submit("PyTorchJob", Master=1, Worker=2, **options)  # type: ignore[arg-type]
    await site.wait_for_pods("job-master-0", "job-worker-0", "job-worker-1")
    await site.run()
    await site.wait_for_state("Running")


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("All", []),
        ("Running", ["job-master-0"]),
        ("None", ["job-master-0", "job-worker-0", "job-worker-1"]),
    ],
)
async def test_pods_and_services_are_deleted_by_the_clean_pod_policy(
    policy: str, left: list[str], site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, run={"cleanPodPolicy": policy})
    await site.end("job-master-0")
    await site.wait_for_state("Succeeded")
    await site.wait_for_pods(*left)
    await site.wait_for_services(*left)


async def test_a_failed_job_is_cleaned_up_too(site: OperatorNamespace, operator: Manager) -> None:
    await running(site, run={"cleanPodPolicy": "Running"}, policy="Never")
    await site.end("job-worker-1", code=1)
    await site.wait_for_state("Failed")
    await site.wait_for_pods("job-worker-1")
    await site.wait_for_services("job-worker-1")


@pytest.mark.timeout(120)
async def test_a_job_is_removed_with_its_pods_when_its_time_to_live_is_over(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, run={"ttlSecondsAfterFinished": 1})
    await site.end()
    await site.eventually(site.is_gone)
    await site.wait_for_collection()


async def test_a_quiet_job_fails_at_its_deadline(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, run={"activeDeadlineSeconds": 2, "cleanPodPolicy": "All"})
    status = await site.wait_for_state("Failed")
    assert "active longer" in status["conditions"][-1]["message"]
    await site.wait_for_pods()


async def test_a_failed_replica_is_recreated_and_keeps_its_service(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, policy="OnFailure")
    before, services = await site.uid("job-worker-0"), await site.services()
    await site.end("job-worker-0", code=1)
    await site.wait_for_recreation("job-worker-0", before)
    assert await site.state() in ("Restarting", "Running")
    assert await site.services() == services
    await site.run()
    await site.wait_for_state("Running")
    record = (await site.status())["records"]["worker-0"]
    assert (record["restarts"], record["attempts"]) == (1, 1)


async def test_a_job_fails_when_its_restarts_are_used_up(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, run={"backoffLimit": 1}, policy="OnFailure")
    before = await site.uid("job-worker-0")
    await site.end("job-worker-0", code=1)
    await site.wait_for_recreation("job-worker-0", before)
    await site.end("job-worker-0", code=1)
    status = await site.wait_for_state("Failed")
    assert "backoff limit" in status["conditions"][-1]["message"]


async def test_restarts_by_the_kubelet_count_too(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, run={"backoffLimit": 2}, policy="OnFailure")
    await site.restart("job-worker-1", 2)

    async def both_restarts_count() -> bool:
        return bool((await site.status())["records"]["worker-1"].get("restarts") == 2)

    await site.eventually(both_restarts_count)
    assert await site.state() == "Running"
    await site.restart("job-worker-1", 3)
    await site.wait_for_state("Failed")


async def test_a_signal_is_tried_again_by_exit_code(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, policy="ExitCode")
    assert (await site.pod("job-worker-0"))["spec"]["restartPolicy"] == "Never"
    before = await site.uid("job-worker-0")
    await site.end("job-worker-0", code=137)
    await site.wait_for_recreation("job-worker-0", before)
    assert await site.state() != "Failed"


async def test_an_error_is_permanent_by_exit_code(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, policy="ExitCode", run={"ttlSecondsAfterFinished": 1})
    await site.end("job-worker-0", code=1)
    status = await site.wait_for_state("Failed")
    assert status["completionTime"]
    await site.eventually(site.is_gone)


async def test_a_deleted_pod_is_recreated(site: OperatorNamespace, operator: Manager) -> None:
    await running(site, policy="Never")
    before = await site.uid("job-worker-1")
    await site.delete("job-worker-1")
    await site.wait_for_recreation("job-worker-1", before)
    assert (await site.status())["records"]["worker-1"]["reason"] == "Lost"


async def test_an_evicted_pod_is_recreated(site: OperatorNamespace, operator: Manager) -> None:
    await running(site, policy="ExitCode")
    before = await site.uid("job-worker-1")
    await site.evict("job-worker-1")
    await site.wait_for_recreation("job-worker-1", before)
    assert (await site.status())["records"]["worker-1"]["reason"] == "Evicted"


async def test_a_succeeded_replica_is_not_recreated_when_its_pod_is_deleted(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site)
    await site.end("job-worker-1")

    async def completion_is_visible() -> bool:
        return bool((await site.status())["records"]["worker-1"].get("completed"))

    await site.eventually(completion_is_visible)
    await site.delete("job-worker-1")
    await site.wait_for_pods("job-master-0", "job-worker-0")
    await site.pass_time(2)
    assert await site.pods() == ["job-master-0", "job-worker-0"]
    await site.end()
    await site.wait_for_state("Succeeded")


async def test_a_deleted_service_is_recreated(site: OperatorNamespace, operator: Manager) -> None:
    from danlu.kube.resources import SERVICES

    await running(site)
    await site.delete("job-worker-1", SERVICES)
    await site.wait_for_services("job-master-0", "job-worker-0", "job-worker-1")


async def test_all_replicas_are_recreated_together_if_the_job_asks_for_it(
    site: OperatorNamespace, operator: Manager
) -> None:
    metadata = {"annotations": {"danlu.dev/restart-policy": "Job"}}
    await running(site, policy="OnFailure", run={"backoffLimit": 1}, metadata=metadata)
    names = ["job-master-0", "job-worker-0", "job-worker-1"]
    before = {name: await site.uid(name) for name in names}
    assert (await site.pod("job-worker-0"))["spec"]["restartPolicy"] == "Never"
    await site.end("job-worker-0", code=1)
    message = await site.wait_for_event("PyTorchJobRestarting")
    assert message.endswith("All replicas are recreated: restart 1 of 1 of the job.")
    for name, uid in before.items():
        await site.wait_for_recreation(name, uid)
    master = (await site.pod("job-master-0"))["spec"]["containers"][0]
    assert {"name": "DANLU_RESTART_COUNT", "value": "1"} in master["env"]
    await site.run()
    assert (await site.wait_for_state("Running"))["restarts"] == 1
    await site.end("job-worker-1", code=1)
    status = await site.wait_for_state("Failed")
    assert "max number of restarts (1)" in status["conditions"][-1]["message"]
    assert status["firstFailure"]["replica"] == {"type": "Worker", "index": 1}


async def test_a_running_job_that_gets_the_annotation_is_restarted_as_a_whole(
    site: OperatorNamespace, operator: Manager
) -> None:
    await running(site, policy="ExitCode")
    before = await site.uid("job-master-0")
    await site.change({"metadata": {"annotations": {"danlu.dev/restart-policy": "Job"}}})
    await site.end("job-worker-0", code=137)
    await site.wait_for_recreation("job-master-0", before)
    assert (await site.status())["restarts"] == 1
