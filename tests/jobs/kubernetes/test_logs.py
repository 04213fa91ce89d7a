"""Logs over everything that may come between: restarts, replacements, broken connections."""

from __future__ import annotations

import anyio
import pytest

from danlu.jobs.kubernetes import logs as reading
from danlu.jobs.kubernetes.logbox import NewestLines
from danlu.jobs.types import LogLine
from danlu.kube.patches import merge_patch
from danlu.kube.resources import PODS
from danlu.testing.kubernetes import Fault, VirtualClock
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


async def end(site: Site, code: int = 0, pod: str = "job-worker-0") -> None:
    """The pod's container ends now."""
    found = await site.client.get(PODS, pod, namespace=site.space)
    status = found["status"]
    for one in status["containerStatuses"]:
        one["state"] = {"terminated": {"exitCode": code, "reason": "Error"}}
    phase = "Failed" if code else "Succeeded"
    patch = merge_patch({"status": {**status, "phase": phase}})
    await site.client.patch(PODS, pod, patch, namespace=site.space, subresource="status")


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


async def test_the_log_of_a_container_that_was_restarted_in_place_goes_on(
    held_site: Site, clock: VirtualClock
) -> None:
    def course(pod: Pod) -> Course:
        return Course(run=10, exit_code=int(pod.restarts < 2), log=f"try {pod.restarts}\n")

    held_site.behave(course)
    await held_site.jobs.submit(job(restart="OnFailure", policy={"backoffLimit": 5}))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(followed, held_site, lines)
        for number in range(3):
            await arrived(lines, number + 1)
            await clock.advance(15)
    assert [(one.data, one.number) for one in lines] == [
        (b"try 0", 0),
        (b"try 1", 1),
        (b"try 2", 2),
    ]


async def test_what_a_container_wrote_before_its_restart_is_read_after_it(
    held_site: Site, clock: VirtualClock
) -> None:
    def course(pod: Pod) -> Course:
        return Course(run=10, exit_code=int(pod.restarts < 1), log=f"try {pod.restarts}\n")

    held_site.behave(course)
    await held_site.jobs.submit(job(restart="OnFailure", policy={"backoffLimit": 5}))
    await seen(held_site, running(1))
    await clock.advance(11)
    await seen(held_site, lambda view: view.replicas[0].restarts == 1)
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(followed, held_site, lines)
        await arrived(lines, 2)
        await clock.advance(15)
    assert data(lines) == [b"try 0", b"try 1"]


async def test_the_pod_that_takes_the_place_of_another_is_a_further_attempt(site: Site) -> None:
    made: list[str] = []

    def course(pod: Pod) -> Course:
        made.append(pod.metadata.uid)
        return Course(log=f"pod {len(made)}\n")

    site.behave(course)
    await site.jobs.submit(job(restart="ExitCode", policy={"backoffLimit": 5}))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(followed, site, lines)
        await arrived(lines, 1)
        await seen(site, running(1))
        await end(site, 130)
        await arrived(lines, 2)
        await seen(site, running(1))
        await end(site)
    assert [(one.data, one.attempt, one.number) for one in lines] == [
        (b"pod 1", 0, 0),
        (b"pod 2", 1, 1),
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


async def test_an_error_of_the_node_is_waited_out(fake_site: Site) -> None:
    fake_site.behave(Course(run=0.6))
    await fake_site.jobs.submit(job())
    await seen(fake_site, running(1))
    fake_site.write("job-worker-0", "early\n")
    fake_site.fake.faults.append(Fault(resource="pods", verb="get", status=500, times=2))
    lines = await lines_of(fake_site, follow=True)
    assert data(lines) == [b"early"]


# -- who reads slower than they come


async def test_who_keeps_up_only_with_the_newest_is_given_the_last_of_each_replica(
    fake_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, lines, goes_on = NewestLines(100), list[LogLine](), anyio.Event()
    monkeypatch.setattr(reading, "NewestLines", lambda most: box)

    async def slowly() -> None:
        async for line in fake_site.jobs.logs("job", follow=True, newest=True):
            lines.append(line)
            if len(lines) > 1:
                await goes_on.wait()

    async def written(pod: str, *text: str) -> None:
        """Have a pod write lines, and wait until all have been read from its node."""
        wanted = box.count + len(text)
        fake_site.write(pod, "".join(f"{one}\n" for one in text))
        with anyio.fail_after(LIMIT):
            while box.count < wanted:
                await anyio.sleep(0.005)

    await fake_site.jobs.submit(job(workers=2))
    await seen(fake_site, running(2))
    async with anyio.create_task_group() as group:
        group.start_soon(slowly)
        fake_site.write("job-worker-1", "first\n")
        await arrived(lines, 1)
        fake_site.write("job-worker-1", "second\n")
        await arrived(lines, 2)
        await written("job-worker-0", *map(str, range(2000)))
        await written("job-worker-1", "last")
        goes_on.set()
        await end(fake_site, pod="job-worker-0")
        await end(fake_site, pod="job-worker-1")
    loud = [one for one in lines if one.replica == worker(0)]
    assert [one.number for one in loud] == list(range(1900, 2000))
    assert [int(one.data) for one in loud] == [one.number for one in loud]
    quiet = [one for one in lines if one.replica == worker(1)]
    assert data(quiet) == [b"first", b"second", b"last"]


async def test_what_is_there_is_given_from_near_its_end_to_who_wants_the_newest(
    fake_site: Site,
) -> None:
    fake_site.behave(Course(run=0.05, log="".join(f"{n}\n" for n in range(10_100))))
    await fake_site.jobs.submit(job())
    await seen(fake_site, lambda view: view.finished)
    lines = await lines_of(fake_site, newest=True)
    assert data(lines) == [b"%d" % number for number in range(100, 10_100)]
    assert len(await lines_of(fake_site, newest=True, tail=5)) == 5
