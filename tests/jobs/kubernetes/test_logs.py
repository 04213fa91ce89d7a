"""Logs are followed across restarts, replaced pods and broken connections."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from danlu.jobs.kubernetes import log_stream as reading
from danlu.jobs.kubernetes.log_stream import DropOldestQueue
from danlu.jobs.types import LogLine
from danlu.kube.patch import merge_patch
from danlu.kube.resources import PODS
from tests.fakes.kubernetes import ApiFault, VirtualClock
from tests.fakes.kubernetes.pod_script import PodScript, SimulatedPod
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


def data(lines: list[LogLine]) -> list[bytes]:
    return [line.data for line in lines]


async def follow_logs(site: JobNamespace, lines: list[LogLine], name: str = "job") -> None:
    async for line in site.jobs.logs(name, follow=True):
        lines.append(line)


async def wait_for_lines(lines: list[LogLine], count: int) -> None:
    with anyio.fail_after(LIMIT):
        while len(lines) < count:
            await anyio.sleep(0.005)


async def end(site: JobNamespace, code: int = 0, pod: str = "job-worker-0") -> None:
    """The pod's container ends now."""
    result = await site.client.get(PODS, pod, namespace=site.space)
    status = result["status"]
    for container_status in status["containerStatuses"]:
        container_status["state"] = {"terminated": {"exitCode": code, "reason": "Error"}}
    phase = "Failed" if code else "Succeeded"
    patch = merge_patch({"status": {**status, "phase": phase}})
    await site.client.patch(PODS, pod, patch, namespace=site.space, subresource="status")


async def test_a_broken_connection_loses_and_repeats_no_line(site: JobNamespace) -> None:
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(follow_logs, site, lines)
        for number in range(4):
            site.write("job-worker-0", f"{number}a\n{number}b\n")
            await wait_for_lines(lines, 2 * number + 2)
            assert site.wire.cut(b"/log?") >= 1
        await end(site)
    assert data(lines) == [f"{n}{c}".encode() for n in range(4) for c in "ab"]
    assert [line.number for line in lines] == list(range(8))


async def test_logs_continue_after_a_container_restart(
    held_site: JobNamespace, clock: VirtualClock
) -> None:
    def course(pod: SimulatedPod) -> PodScript:
        return PodScript(run=10, exit_code=int(pod.restarts < 2), log=f"try {pod.restarts}\n")

    held_site.behave(course)
    await held_site.jobs.submit(job(restart="OnFailure", policy={"backoffLimit": 5}))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(follow_logs, held_site, lines)
        for number in range(3):
            await wait_for_lines(lines, number + 1)
            await clock.advance(15)
    assert [(line.data, line.number) for line in lines] == [
        (b"try 0", 0),
        (b"try 1", 1),
        (b"try 2", 2),
    ]


async def test_the_previous_containers_log_is_read_after_a_restart(
    held_site: JobNamespace, clock: VirtualClock
) -> None:
    def course(pod: SimulatedPod) -> PodScript:
        return PodScript(run=10, exit_code=int(pod.restarts < 1), log=f"try {pod.restarts}\n")

    held_site.behave(course)
    await held_site.jobs.submit(job(restart="OnFailure", policy={"backoffLimit": 5}))
    await wait_for_view(held_site, running(1))
    await clock.advance(11)
    await wait_for_view(held_site, lambda view: view.replicas[0].restarts == 1)
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(follow_logs, held_site, lines)
        await wait_for_lines(lines, 2)
        await clock.advance(15)
    assert data(lines) == [b"try 0", b"try 1"]


async def test_a_replacement_pod_is_a_new_attempt(site: JobNamespace) -> None:
    results: list[str] = []

    def course(pod: SimulatedPod) -> PodScript:
        results.append(pod.metadata.uid)
        return PodScript(log=f"pod {len(results)}\n")

    site.behave(course)
    await site.jobs.submit(job(restart="ExitCode", policy={"backoffLimit": 5}))
    lines: list[LogLine] = []
    async with anyio.create_task_group() as group:
        group.start_soon(follow_logs, site, lines)
        await wait_for_lines(lines, 1)
        await wait_for_view(site, running(1))
        await end(site, 130)
        await wait_for_lines(lines, 2)
        await wait_for_view(site, running(1))
        await end(site)
    assert [(line.data, line.attempt, line.number) for line in lines] == [
        (b"pod 1", 0, 0),
        (b"pod 2", 1, 1),
    ]


async def test_a_tail_skips_earlier_lines_but_counts_them(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.3, log="".join(f"{n}\n" for n in range(10))))
    await site.jobs.submit(job())
    await wait_for_view(site, running(1))
    lines = await lines_of(site, follow=True, tail=2)
    assert [(line.number, line.data) for line in lines] == [(8, b"8"), (9, b"9")]


async def test_only_selected_replicas_are_read(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.05, log="x\n"))
    await site.jobs.submit(job(workers=3))
    await wait_for_view(site, lambda view: view.finished)
    lines = await lines_of(site, replicas=[worker(1)])
    assert {line.replica for line in lines} == {worker(1)}


async def test_a_line_without_a_newline_is_returned_at_the_end(site: JobNamespace) -> None:
    site.behave(PodScript(run=0.1, log="whole\nhalf"))
    await site.jobs.submit(job())
    lines = await lines_of(site, follow=True)
    assert [(line.data, line.whole) for line in lines] == [(b"whole", True), (b"half", False)]


async def test_log_errors_of_a_node_are_retried(fake_site: JobNamespace) -> None:
    fake_site.behave(PodScript(run=0.6))
    await fake_site.jobs.submit(job())
    await wait_for_view(fake_site, running(1))
    fake_site.write("job-worker-0", "early\n")
    fake_site.fake.faults.append(ApiFault(resource="pods", verb="get", status=500, times=2))
    lines = await lines_of(fake_site, follow=True)
    assert data(lines) == [b"early"]


async def test_the_end_of_a_job_that_is_seen_before_its_pods_loses_no_line(
    fake_site: JobNamespace,
) -> None:
    """The job and its pods are watched separately; under load one watch can be far behind."""
    fake_site.behave(PodScript(run=0.0, exit_code=1, log="the reason\n"))
    await fake_site.jobs.submit(job(policy={"suspend": True}))
    release = asyncio.Event()
    fault = ApiFault(resource="pods", verb="watch", release=release)
    fake_site.fake.faults.append(fault)
    lines: list[LogLine] = []
    try:
        with anyio.fail_after(LIMIT):
            async with anyio.create_task_group() as group:
                group.start_soon(follow_logs, fake_site, lines)
                while fault.times:
                    await anyio.sleep(0.005)
                await fake_site.jobs.suspend("job", suspended=False)
    finally:
        release.set()
    assert data(lines) == [b"the reason"]


# -- who reads slower than they come


async def test_a_slow_reader_of_the_newest_lines_gets_the_last_of_each_replica(
    fake_site: JobNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, lines, goes_on = DropOldestQueue(100), list[LogLine](), anyio.Event()
    monkeypatch.setattr(reading, "DropOldestQueue", lambda most: box)

    async def read_slowly() -> None:
        async for line in fake_site.jobs.logs("job", follow=True, newest=True):
            lines.append(line)
            if len(lines) > 1:
                await goes_on.wait()

    async def write_lines(pod: str, *text: str) -> None:
        """Write lines in the log of a pod, and wait until all were read from its node."""
        expected = box.count + len(text)
        fake_site.write(pod, "".join(f"{line}\n" for line in text))
        with anyio.fail_after(LIMIT):
            while box.count < expected:
                await anyio.sleep(0.005)

    await fake_site.jobs.submit(job(workers=2))
    await wait_for_view(fake_site, running(2))
    async with anyio.create_task_group() as group:
        group.start_soon(read_slowly)
        fake_site.write("job-worker-1", "first\n")
        await wait_for_lines(lines, 1)
        fake_site.write("job-worker-1", "second\n")
        await wait_for_lines(lines, 2)
        await write_lines("job-worker-0", *map(str, range(2000)))
        await write_lines("job-worker-1", "last")
        goes_on.set()
        await end(fake_site, pod="job-worker-0")
        await end(fake_site, pod="job-worker-1")
    loud = [line for line in lines if line.replica == worker(0)]
    assert [line.number for line in loud] == list(range(1900, 2000))
    assert [int(line.data) for line in loud] == [line.number for line in loud]
    quiet = [line for line in lines if line.replica == worker(1)]
    assert data(quiet) == [b"first", b"second", b"last"]


async def test_newest_starts_near_the_end_of_existing_logs(
    fake_site: JobNamespace,
) -> None:
    fake_site.behave(PodScript(run=0.05, log="".join(f"{n}\n" for n in range(10_100))))
    await fake_site.jobs.submit(job())
    await wait_for_view(fake_site, lambda view: view.finished)
    lines = await lines_of(fake_site, newest=True)
    assert data(lines) == [b"%d" % number for number in range(100, 10_100)]
    assert len(await lines_of(fake_site, newest=True, tail=5)) == 5
