"""The protocol of jobs on a cluster: submitted, seen, followed, ended."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from danlu.errors import UsageError
from danlu.jobs.backends import list_views
from danlu.jobs.kubernetes import job_watcher
from danlu.kube.resources import CONFIG_MAPS
from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.support import (
    LIMIT,
    JobNamespace,
    job,
    lines_of,
    running,
    wait_for_view,
    worker,
)

pytestmark = pytest.mark.anyio


async def test_a_job_is_watched_until_it_ends(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.1, log="one\ntwo\n"))
    name = await site.jobs.submit(job(workers=2))
    states = [view.state async for view in site.jobs.watch(name)]
    assert states[-1] == "Succeeded"
    assert {replica.state for replica in (await site.jobs.view(name)).replicas} == {"Succeeded"}
    lines = await lines_of(site)
    assert sorted((str(line.replica), line.number, line.data) for line in lines) == [
        ("worker-0", 0, b"one"),
        ("worker-0", 1, b"two"),
        ("worker-1", 0, b"one"),
        ("worker-1", 1, b"two"),
    ]


async def test_following_logs_ends_with_the_job(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.3))
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    site.write("job-worker-0", "here\n")
    lines = await lines_of(site, follow=True)
    assert [line.data for line in lines] == [b"here"]


async def test_a_name_in_use_is_rejected(site: JobNamespace) -> None:
    await site.jobs.submit(job())
    with pytest.raises(UsageError, match="job job already exists"):
        await site.jobs.submit(job())


async def test_a_missing_job_is_an_error_that_lists_existing_jobs(site: JobNamespace) -> None:
    await site.jobs.submit(job("other"))
    with pytest.raises(UsageError, match="job 'job' not found") as caught:
        await site.jobs.view("job")
    assert "other" in caught.value.hint


async def test_listing_jobs_takes_no_request_per_job(fake_site: JobNamespace) -> None:
    fake_site.behave(PodScript(run=0.02))
    for number in range(5):
        await fake_site.jobs.submit(job(f"job-{number}"))
    await wait_for_view(fake_site, lambda view: view.finished, name="job-4")
    before = len(fake_site.fake.log)
    views = await list_views(fake_site.jobs)
    asked = [
        request for request in fake_site.fake.log[before:] if request.resource == "pytorchjobs"
    ]
    assert sorted(view.name for view in views) == [f"job-{number}" for number in range(5)]
    assert all(len(view.replicas) == 1 for view in views)
    assert "get" not in {request.verb for request in asked}


async def test_an_unresponsive_cluster_is_a_warning_until_it_responds(
    site: JobNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watcher, "_REASONS_POLL_SECONDS", 0.05)
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    silent: list[str] = []
    with anyio.fail_after(LIMIT):
        async for view in site.jobs.watch("job"):
            if silent and not view.warnings:
                break
            if view.warnings:
                silent += view.warnings
                await site.wire.accept_again()
            else:
                site.wire.cut_and_refuse()
    assert len(silent) == 1
    assert silent[0].startswith("the cluster has not responded since")


async def test_a_closed_connection_is_not_an_outage(
    site: JobNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watcher, "_REASONS_POLL_SECONDS", 0.05)
    warned: list[str] = []

    async def follow() -> None:
        async for view in site.jobs.watch("job"):
            warned.extend(view.warnings)

    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        for _ in range(5):
            await anyio.sleep(0.1)
            site.wire.cut()
        group.cancel_scope.cancel()
    assert not warned


async def test_other_objects_of_a_manifests_file_are_created_with_the_job(
    site: JobNamespace,
) -> None:
    data = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
    sent = msgspec.structs.replace(job(), objects={"ConfigMap/settings": data})
    await site.jobs.submit(sent)
    result = await site.client.get(CONFIG_MAPS, "settings", namespace=site.space)
    assert result["data"] == {"a": "1"}


async def test_a_failed_job_has_a_first_failure(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.05, exit_code=3), "job-worker-1")
    await site.jobs.submit(job(workers=2))
    view = await wait_for_view(site, lambda view: view.finished)
    assert view.state == "Failed"
    assert view.status.first_failure is not None
    assert view.status.first_failure.replica == worker(1)
    assert view.status.first_failure.exit_code == 3
