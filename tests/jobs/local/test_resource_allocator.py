"""The ledger: no address, port or GPU is given to two, and nothing stays with the dead."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from danlu.engine.resource_allocator import ResourceAllocator, read_gpu_owners

PORT = 21111


@contextmanager
def owner(root: Path, name: str) -> Iterator[ResourceAllocator]:
    """A ledger as a job uses it whose supervisor lives within the block."""
    (root / name).mkdir(exist_ok=True)
    descriptor = os.open(root / name / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield ResourceAllocator(root / "ledger.json", root / name)
    finally:
        os.close(descriptor)


def test_the_frameworks_port_goes_to_the_first_job(tmp_path: Path) -> None:
    with owner(tmp_path, "a") as a, owner(tmp_path, "b") as b:
        first = a.allocate_endpoints(["worker-0", "worker-1"], wanted=PORT, common=False)
        second = b.allocate_endpoints(["worker-0"], wanted=PORT, common=False)
        assert first["worker-0"].port == PORT
        seats = [*first.values(), *second.values()]
        assert len({seat.port for seat in seats}) == 3
        assert len({seat.address for seat in seats}) == 3
        assert a.allocate_endpoints(["worker-1"], wanted=PORT, common=False) == {
            "worker-1": first["worker-1"]
        }


def test_a_port_in_use_is_not_allocated(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, owner(tmp_path, "a") as a:
        taken = listening.getsockname()[1]
        assert (
            a.allocate_endpoints(["worker-0"], wanted=taken, common=False)["worker-0"].port != taken
        )


def test_a_common_port_is_shared_by_one_jobs_replicas_only(tmp_path: Path) -> None:
    names = ["worker-0", "worker-1", "worker-2"]
    with owner(tmp_path, "a") as a, owner(tmp_path, "b") as b:
        first = a.allocate_endpoints(names, wanted=PORT, common=True)
        second = b.allocate_endpoints(names, wanted=PORT, common=True)
        assert {seat.port for seat in first.values()} == {PORT}
        assert len({seat.port for seat in second.values()} - {PORT}) == 1


def test_jobs_share_no_address_or_port(tmp_path: Path) -> None:
    names = [f"worker-{index}" for index in range(8)]
    with ExitStack() as stack:
        jobs = [stack.enter_context(owner(tmp_path, f"job-{number}")) for number in range(20)]
        seats = [
            seat
            for job in jobs
            for seat in job.allocate_endpoints(names, wanted=PORT, common=False).values()
        ]
    assert len({seat.address for seat in seats}) == 160
    assert len({seat.port for seat in seats}) == 160


def test_gpus_are_allocated_to_whole_jobs_first_come_first_served(tmp_path: Path) -> None:
    existing = (0, 1, 2, 3)
    with owner(tmp_path, "b") as b, owner(tmp_path, "c") as c:
        with owner(tmp_path, "a") as a:
            assert a.allocate_gpus(3, existing) == (0, 1, 2)
            assert b.allocate_gpus(2, existing) is None
            assert c.allocate_gpus(1, existing) is None, "one is free, but another came before"
            assert a.allocate_gpus(3, existing) == (0, 1, 2)
        assert c.allocate_gpus(1, existing) is None
        assert b.allocate_gpus(2, existing) == (0, 1)
        assert c.allocate_gpus(1, existing) == (2,)


def test_a_job_that_stops_waiting_for_gpus_blocks_no_other(tmp_path: Path) -> None:
    with (
        owner(tmp_path, "a") as a,
        owner(tmp_path, "b") as b,
        owner(tmp_path, "c") as c,
    ):
        assert a.allocate_gpus(1, (0, 1)) == (0,)
        assert b.allocate_gpus(2, (0, 1)) is None
        b.release_gpus()
        assert c.allocate_gpus(1, (0, 1)) == (1,)


def test_environments_and_jobs_get_different_gpus(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "jobs").mkdir()
    ledger = tmp_path / "environments/ledger.json"
    with owner(tmp_path / "environments", "dev") as dev, owner(tmp_path / "jobs", "a") as job:
        job = ResourceAllocator(ledger, tmp_path / "jobs/a")
        assert dev.claim_gpus(1, (0, 1), share=False) == (0,)
        assert job.allocate_gpus(1, (0, 1)) == (1,)
        assert dev.claim_gpus(2, (0, 1), share=False) is None
        assert dev.list_other_users((0, 1)) == ["job a"]
        assert job.list_other_users((0,)) == ["environment dev"]
        owners = {tmp_path / "environments/dev": (0,), tmp_path / "jobs/a": (1,)}
        assert read_gpu_owners(ledger) == owners
        # Those that are free come first.
        assert dev.claim_gpus(2, (0, 1, 2), share=True) == (0, 2)
        assert dev.claim_gpus(2, (0, 1), share=True) == (0, 1)
    assert read_gpu_owners(ledger) == {}


def test_gpus_that_the_user_named_are_not_given_to_others(tmp_path: Path) -> None:
    with owner(tmp_path, "a") as a, owner(tmp_path, "b") as b:
        a.record_gpus((1, 0))
        assert b.allocate_gpus(1, (0, 1)) is None
        assert b.claim_gpus(1, (0, 1, 2), share=False) == (2,)


def test_a_damaged_allocation_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text("{")
    with owner(tmp_path, "a") as a:
        assert (
            a.allocate_endpoints(["worker-0"], wanted=PORT, common=False)["worker-0"].port == PORT
        )
