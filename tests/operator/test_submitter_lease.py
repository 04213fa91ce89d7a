"""Jobs with a submitter lease stop when it is not renewed."""

from __future__ import annotations

import pytest

from danlu.kube.patch import merge_patch
from danlu.kube.resources import LEASES
from danlu.training.names import STOPPED_ANNOTATION, SUBMITTER_LEASE_ANNOTATION
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("operator")]
TIE = {"annotations": {SUBMITTER_LEASE_ANNOTATION: "job-submitter"}}


async def lease(site: OperatorNamespace, *, seconds: int = 2) -> None:
    metadata = {
        "name": "job-submitter",
        "namespace": site.space,
        "labels": {SUBMITTER_LEASE_ANNOTATION: "true"},
    }
    spec = {"holderIdentity": "me", "leaseDurationSeconds": seconds}
    await site.client.create(LEASES, LEASES.to_manifest({"metadata": metadata, "spec": spec}))


async def renew(site: OperatorNamespace, number: int) -> None:
    moment = f"2026-01-01T00:00:{number:02}.000000Z"
    patch = merge_patch({"spec": {"renewTime": moment}})
    await site.client.patch(LEASES, "job-submitter", patch, namespace=site.space)


async def read_stop_annotation(site: OperatorNamespace) -> str:
    annotations = (await site.job())["metadata"].get("annotations") or {}
    return str(annotations.get(STOPPED_ANNOTATION, ""))


async def test_a_job_stops_when_its_submitter_is_gone(site: OperatorNamespace) -> None:
    await lease(site)
    await site.submit(metadata=TIE, Worker=2)
    await site.wait_for_pods("job-worker-0", "job-worker-1")
    status = await site.wait_for_state("Suspended")
    assert await read_stop_annotation(site) == "submitter gone"
    assert (await site.job())["spec"]["runPolicy"]["suspend"] is True
    assert status["conditions"][-1]["reason"] == "PyTorchJobSuspended"
    await site.wait_for_pods()


async def test_a_job_whose_lease_is_renewed_keeps_running(site: OperatorNamespace) -> None:
    await lease(site, seconds=3)
    await site.submit(metadata=TIE, Worker=1)
    await site.wait_for_pods("job-worker-0")
    for number in range(5):
        await site.pass_time(1.0)
        await renew(site, number)
    assert await read_stop_annotation(site) == ""
    await site.wait_for_state("Suspended")


async def test_a_job_without_a_lease_stops_after_the_usual_time(site: OperatorNamespace) -> None:
    if site.fake is None:
        pytest.skip("15 s")
    await site.submit(metadata=TIE, Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.pass_time(13.0)
    assert await read_stop_annotation(site) == ""
    await site.wait_for_state("Suspended")


async def test_a_lease_that_is_taken_away_stops_the_job_in_time(site: OperatorNamespace) -> None:
    await lease(site, seconds=4)
    await site.submit(metadata=TIE, Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.client.delete(LEASES, "job-submitter", namespace=site.space)
    await site.wait_for_state("Suspended")


async def test_a_finished_job_is_left_alone(site: OperatorNamespace) -> None:
    await lease(site)
    await site.submit(metadata=TIE, Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.run()
    await site.end()
    await site.wait_for_state("Succeeded")
    await site.pass_time(4.0)
    assert await read_stop_annotation(site) == ""


async def test_a_job_without_the_mark_needs_no_lease(site: OperatorNamespace) -> None:
    await lease(site)
    await site.submit(Worker=1)
    await site.wait_for_pods("job-worker-0")
    await site.pass_time(4.0)
    assert await read_stop_annotation(site) == ""


async def test_a_clock_that_is_set_stops_nothing(site: OperatorNamespace) -> None:
    if site.fake is None:
        pytest.skip("clocks of this machine are not set by tests")
    await lease(site, seconds=15)
    await site.submit(metadata=TIE, Worker=1)
    await site.wait_for_pods("job-worker-0")
    site.clock.jump(3600.0)  # type: ignore[attr-defined]
    await site.pass_time(5.0)
    assert await read_stop_annotation(site) == ""
