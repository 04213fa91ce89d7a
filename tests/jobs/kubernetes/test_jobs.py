"""The protocol of jobs on a cluster: submitted, seen, followed, ended."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from danlu.commands.jobs import views
from danlu.errors import UsageError
from danlu.jobs.kubernetes import sight
from danlu.kube.resources import CONFIG_MAPS
from danlu.testing.kubernetes.courses import Course
from tests.jobs.kubernetes.support import LIMIT, Site, job, lines_of, running, seen, worker

pytestmark = pytest.mark.anyio


async def test_a_job_is_followed_from_its_submission_to_its_end(site: Site) -> None:
    site.behave(Course(run=0.1, log="one\ntwo\n"))
    name = await site.jobs.submit(job(workers=2))
    states = [view.state async for view in site.jobs.watch(name)]
    assert states[-1] == "Succeeded"
    assert {one.state for one in (await site.jobs.view(name)).replicas} == {"Succeeded"}
    lines = await lines_of(site)
    assert sorted((str(one.replica), one.number, one.data) for one in lines) == [
        ("worker-0", 0, b"one"),
        ("worker-0", 1, b"two"),
        ("worker-1", 0, b"one"),
        ("worker-1", 1, b"two"),
    ]


async def test_lines_are_given_as_they_come_and_the_log_ends_with_the_job(site: Site) -> None:
    site.behave(Course(run=0.3))
    await site.jobs.submit(job())
    await seen(site, running(1))
    site.write("job-worker-0", "here\n")
    lines = await lines_of(site, follow=True)
    assert [one.data for one in lines] == [b"here"]


async def test_a_name_in_use_is_refused(site: Site) -> None:
    await site.jobs.submit(job())
    with pytest.raises(UsageError, match="there is a job job already"):
        await site.jobs.submit(job())


async def test_a_job_that_is_not_there_is_told_with_those_that_are(site: Site) -> None:
    await site.jobs.submit(job("other"))
    with pytest.raises(UsageError, match="no job job") as caught:
        await site.jobs.view("job")
    assert "other" in caught.value.hint


async def test_a_list_of_many_jobs_costs_no_question_for_each(fake_site: Site) -> None:
    fake_site.behave(Course(run=0.02))
    for number in range(5):
        await fake_site.jobs.submit(job(f"job-{number}"))
    await seen(fake_site, lambda view: view.finished, name="job-4")
    before = len(fake_site.fake.log)
    found = await views(fake_site.jobs)
    asked = [one for one in fake_site.fake.log[before:] if one.resource == "pytorchjobs"]
    assert sorted(one.name for one in found) == [f"job-{number}" for number in range(5)]
    assert all(len(one.replicas) == 1 for one in found)
    assert "get" not in {one.verb for one in asked}


async def test_a_cluster_that_does_not_answer_is_told_until_it_does(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "_ASK", 0.05)
    await site.jobs.submit(job())
    await seen(site, running(1))
    silent: list[str] = []
    with anyio.fail_after(LIMIT):
        async for view in site.jobs.watch("job"):
            if silent and not view.warnings:
                break
            if view.warnings:
                silent += view.warnings
                await site.wire.mend()
            else:
                site.wire.lose()
    assert len(silent) == 1
    assert silent[0].startswith("the cluster has not answered since")


async def test_a_connection_that_ends_is_no_silence(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "_ASK", 0.05)
    warned: list[str] = []

    async def follow() -> None:
        async for view in site.jobs.watch("job"):
            warned.extend(view.warnings)

    await site.jobs.submit(job())
    await seen(site, running(1))
    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        for _ in range(5):
            await anyio.sleep(0.1)
            site.wire.cut()
        group.cancel_scope.cancel()
    assert not warned


async def test_other_objects_of_a_manifests_file_are_created_with_the_job(site: Site) -> None:
    data = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
    sent = msgspec.structs.replace(job(), objects={"ConfigMap/settings": data})
    await site.jobs.submit(sent)
    found = await site.client.get(CONFIG_MAPS, "settings", namespace=site.space)
    assert found["data"] == {"a": "1"}


async def test_a_failed_job_says_who_failed_first(site: Site) -> None:
    site.behave(Course(run=0.05, exit_code=3), "job-worker-1")
    await site.jobs.submit(job(workers=2))
    view = await seen(site, lambda view: view.finished)
    assert view.state == "Failed"
    assert view.status.first_failure is not None
    assert view.status.first_failure.replica == worker(1)
    assert view.status.first_failure.exit_code == 3
