"""Logs over everything that may come between: restarts, replacements, broken connections."""

from __future__ import annotations

import anyio
import pytest

from danlu.jobs.types import LogLine
from danlu.kube.patches import merge_patch
from danlu.kube.resources import PODS
from danlu.testing.kubernetes import Fault
from danlu.testing.kubernetes.courses import Course, Pod
from tests.jobs.kubernetes.support import LIMIT, Site, job, lines_of, running, seen, worker

pytestmark = pytest.mark.anyio


def data(lines: list[LogLine]) -> list[bytes]:
    return [one.data for one in lines]


async def followed(site: Site, lines: list[LogLine], name: str = "job") -> None:
    async for line in site.jobs.logs(name, follow=True):
        lines.append(line)


async def arrived(lines: list[LogLine], count: int) -> None:
    with anyio.fail_after(LIMIT):
        while len(lines) < count:
            await anyio.sleep(0.005)


async def end(site: Site, pod: str = "job-worker-0") -> None:
    """The pod's container succeeds now."""
    found = await site.client.get(PODS, pod, namespace="default")
    status = found["status"]
    for one in status["containerStatuses"]:
        one["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    patch = merge_patch({"status": {**status, "phase": "Succeeded"}})
    await site.client.patch(PODS, pod, patch, namespace="default", subresource="status")


async def test_a_connection_that_breaks_costs_no_line_and_gives_none_twice(site: Site) -> None:
    await site.jobs.submit(job())
    await seen(site, running(1))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(followed, site, lines)
        for number in range(4):
            site.write("job-worker-0", f"{number}a\n{number}b\n")
            await arrived(lines, 2 * number + 2)
            assert site.wire.cut(b"/log?") >= 1
        await end(site)
    assert data(lines) == [f"{n}{c}".encode() for n in range(4) for c in "ab"]
    assert [one.number for one in lines] == list(range(8))


async def test_the_log_of_a_container_that_was_restarted_in_place_goes_on(site: Site) -> None:
    def course(pod: Pod) -> Course:
        if pod.restarts < 2:
            return Course(run=0.3, exit_code=1, log=f"try {pod.restarts}\n")
        return Course(run=0.2, log="at last\n")

    site.behave(course)
    await site.jobs.submit(job(restart="OnFailure", policy={"backoffLimit": 5}))
    lines = await lines_of(site, follow=True)
    assert data(lines) == [b"try 0", b"try 1", b"at last"]
    assert [one.number for one in lines] == [0, 1, 2]


async def test_the_pod_that_takes_the_place_of_another_is_a_further_attempt(site: Site) -> None:
    tries: list[str] = []

    def course(pod: Pod) -> Course:
        tries.append(pod.metadata.uid)
        if len(tries) == 1:
            return Course(run=0.2, exit_code=130, log="first\n")
        return Course(run=0.2, log="second\n")

    site.behave(course)
    await site.jobs.submit(job(restart="ExitCode", policy={"backoffLimit": 5}))
    lines = await lines_of(site, follow=True)
    assert [(one.data, one.attempt, one.number) for one in lines] == [
        (b"first", 0, 0),
        (b"second", 1, 1),
    ]


async def test_a_tail_leaves_out_what_was_before_and_counts_it(site: Site) -> None:
    site.behave(Course(run=0.3, log="".join(f"{n}\n" for n in range(10))))
    await site.jobs.submit(job())
    await seen(site, running(1))
    lines = await lines_of(site, follow=True, tail=2)
    assert [(one.number, one.data) for one in lines] == [(8, b"8"), (9, b"9")]


async def test_only_the_replicas_that_are_asked_for_are_read(site: Site) -> None:
    site.behave(Course(run=0.05, log="x\n"))
    await site.jobs.submit(job(workers=3))
    await seen(site, lambda view: view.finished)
    lines = await lines_of(site, replicas=[worker(1)])
    assert {one.replica for one in lines} == {worker(1)}


async def test_a_line_without_its_end_is_given_when_the_container_has_ended(site: Site) -> None:
    site.behave(Course(run=0.1, log="whole\nhalf"))
    await site.jobs.submit(job())
    lines = await lines_of(site, follow=True)
    assert [(one.data, one.whole) for one in lines] == [(b"whole", True), (b"half", False)]


async def test_an_error_of_the_node_is_waited_out(site: Site) -> None:
    site.behave(Course(run=0.6))
    await site.jobs.submit(job())
    await seen(site, running(1))
    site.write("job-worker-0", "early\n")
    site.fake.faults.append(Fault(resource="pods", verb="get", status=500, times=2))
    lines = await lines_of(site, follow=True)
    assert data(lines) == [b"early"]
