"""The ledger: no address, port or GPU is given to two, and nothing stays with the dead."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from danlu.jobs.local.ledger import Ledger

PORT = 21111


@contextmanager
def owner(root: Path, name: str) -> Iterator[Ledger]:
    """A ledger as a job uses it whose supervisor lives within the block."""
    (root / name).mkdir(exist_ok=True)
    descriptor = os.open(root / name / "supervisor.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield Ledger(root / "ledger.json", root / name)
    finally:
        os.close(descriptor)


def test_the_port_of_the_framework_goes_to_the_first_who_asks(tmp_path: Path) -> None:
    with owner(tmp_path, "a") as a, owner(tmp_path, "b") as b:
        first = a.seats(["worker-0", "worker-1"], wanted=PORT, common=False)
        second = b.seats(["worker-0"], wanted=PORT, common=False)
        assert first["worker-0"].port == PORT
        seats = [*first.values(), *second.values()]
        assert len({seat.port for seat in seats}) == 3
        assert len({seat.address for seat in seats}) == 3
        assert a.seats(["worker-1"], wanted=PORT, common=False) == {"worker-1": first["worker-1"]}


def test_a_port_that_somebody_listens_on_is_not_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, owner(tmp_path, "a") as a:
        taken = listening.getsockname()[1]
        assert a.seats(["worker-0"], wanted=taken, common=False)["worker-0"].port != taken


def test_a_common_port_is_the_same_for_all_and_no_other_jobs(tmp_path: Path) -> None:
    names = ["worker-0", "worker-1", "worker-2"]
    with owner(tmp_path, "a") as a, owner(tmp_path, "b") as b:
        first = a.seats(names, wanted=PORT, common=True)
        second = b.seats(names, wanted=PORT, common=True)
        assert {seat.port for seat in first.values()} == {PORT}
        assert len({seat.port for seat in second.values()} - {PORT}) == 1


def test_many_jobs_share_nothing(tmp_path: Path) -> None:
    names = [f"worker-{index}" for index in range(8)]
    with ExitStack() as stack:
        jobs = [stack.enter_context(owner(tmp_path, f"job-{one}")) for one in range(20)]
        seats = [
            seat for job in jobs for seat in job.seats(names, wanted=PORT, common=False).values()
        ]
    assert len({seat.address for seat in seats}) == 160
    assert len({seat.port for seat in seats}) == 160


def test_gpus_are_given_whole_jobs_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    there = (0, 1, 2, 3)
    with owner(tmp_path, "b") as b, owner(tmp_path, "c") as c:
        with owner(tmp_path, "a") as a:
            assert a.gpus(3, there) == (0, 1, 2)
            assert b.gpus(2, there) is None
            assert c.gpus(1, there) is None, "one is free, but another came before"
            assert a.gpus(3, there) == (0, 1, 2)
        assert c.gpus(1, there) is None
        assert b.gpus(2, there) == (0, 1)
        assert c.gpus(1, there) == (2,)


def test_who_gives_up_waiting_holds_nobody_up(tmp_path: Path) -> None:
    with (
        owner(tmp_path, "a") as a,
        owner(tmp_path, "b") as b,
        owner(tmp_path, "c") as c,
    ):
        assert a.gpus(1, (0, 1)) == (0,)
        assert b.gpus(2, (0, 1)) is None
        b.give_gpus_back()
        assert c.gpus(1, (0, 1)) == (1,)


def test_a_damaged_ledger_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text("{")
    with owner(tmp_path, "a") as a:
        assert a.seats(["worker-0"], wanted=PORT, common=False)["worker-0"].port == PORT
