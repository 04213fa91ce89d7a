"""Many at one time: jobs, replicas, lines; and the limits that keep them apart."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId
from tests.jobs.local.support import (
    lines_of,
    local_jobs,
    runs,
    spec,
    submission,
    supervisor_of,
    wait_for_view,
    worker,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real]

MEMORY = 150 << 20
PRINTS = """
import random, sys, time
out, chance = sys.stdout.buffer, random.Random(int(sys.argv[1]))
began = time.monotonic()
for line in range(6250):
    out.write(b"%d " % line + chance.randbytes(40).translate(None, b"\\r\\n") + b"\\n")
    if line % 25 == 0:
        out.flush()
        time.sleep(max(0, began + line / 1250 - time.monotonic()))
"""


async def test_twenty_concurrent_jobs_share_no_address_or_port(jobs: LocalJobs, work: Path) -> None:
    script = "echo $MASTER_ADDR:$MASTER_PORT"
    names = [f"job-{index}" for index in range(20)]
    async with anyio.create_task_group() as group:
        for name in names:
            expected = submission(work, spec(script + "; exec sleep 60", 2), name=name)
            group.start_soon(jobs.submit, expected)
    for name in names:
        await wait_for_view(jobs, runs(2), name=name)
    results = [(await jobs.command(name, worker(0))).environment for name in names]
    assert len({env["MASTER_ADDR"] for env in results}) == 20
    assert len({env["MASTER_PORT"] for env in results}) == 20
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(partial(jobs.stop, name, grace=0))


@pytest.mark.parametrize("log_bytes", [16 << 20, 100_000])
async def test_ten_thousand_lines_per_second_of_eight_replicas_are_complete(
    home: Path, work: Path, log_bytes: int
) -> None:
    jobs = local_jobs(home, log_bytes=log_bytes, log_files=200)
    (work / "prints.py").write_text(PRINTS)
    expected = spec(f"exec {sys.executable} prints.py $RANK", 8)
    await jobs.submit(submission(work, expected))
    by_replica: dict[ReplicaId, list[LogLine]] = defaultdict(list)
    for line in await lines_of(jobs):
        by_replica[line.replica].append(line)
    assert (await jobs.result("job")).view.state == "Succeeded"
    assert len(by_replica) == 8
    for replica, lines in by_replica.items():
        assert [line.number for line in lines] == list(range(6250))
        assert _hash_pieces(b"%s\n" % line.data for line in lines) == _digest_of_rank(replica.index)


def _hash_pieces(pieces: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def _digest_of_rank(rank: int) -> str:
    chance = random.Random(rank)
    numbers = range(6250)
    return _hash_pieces(
        b"%d " % line + chance.randbytes(40).translate(None, b"\r\n") + b"\n" for line in numbers
    )


@pytest.mark.slow
async def test_two_hundred_idle_replicas_use_little_cpu(home: Path, work: Path) -> None:
    jobs = local_jobs(home, sample=2.0)
    await jobs.submit(submission(work, spec("exec sleep 600", 200)))
    await wait_for_view(jobs, runs(200))
    supervisor = supervisor_of(home)
    before = _read_cpu_seconds(supervisor)
    await anyio.sleep(10)
    assert (_read_cpu_seconds(supervisor) - before) / 10 < 0.05
    assert _read_resident_bytes(supervisor) < MEMORY
    await jobs.stop("job", grace=1)


def _read_cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _read_resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


EATS = "b = []\nwhile True: b.append(bytearray(1 << 20))"


def _limits_hold() -> bool:
    from danlu.sandbox.launcher.cgroup import CgroupManager

    groups = CgroupManager.detect()
    try:
        return not groups.missing
    finally:
        groups.close()


async def test_a_replica_above_its_memory_limit_is_oom_killed(jobs: LocalJobs, work: Path) -> None:
    limits = {"limits": {"memory": "64Mi", "cpu": "500m"}}
    command = [sys.executable, "-c", EATS if _limits_hold() else "pass"]
    await jobs.submit(submission(work, spec("", command=command, resources=limits)))
    view = (await jobs.result("job")).view
    if _limits_hold():
        assert (view.replicas[0].exit_code, view.replicas[0].reason) == (137, "OOMKilled")
        assert view.status.first_failure is not None
        assert view.status.first_failure.reason == "OOMKilled"
        assert view.warnings == ()
    else:
        assert view.warnings[0].startswith("resources: not enforced: ")
