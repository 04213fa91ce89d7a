from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from danlu.errors import MachineError, OutsideError
from danlu.sources.conda.solve import find_subdir
from danlu.util.worker_pool import WorkerPool

pytestmark = pytest.mark.anyio
HEAVY = 1 << 30


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_heavy_work_runs_in_a_worker_that_ends_with_the_pool() -> None:
    async with WorkerPool(1) as pool:
        worker = await pool.run(os.getpid, weight=HEAVY)
        assert worker != os.getpid()
        assert await pool.run(os.getpid, weight=HEAVY) == worker
    assert is_gone(worker)


async def test_light_work_starts_no_process() -> None:
    async with WorkerPool(1) as pool:
        assert await pool.run(os.getpid, weight=1) == os.getpid()


async def test_errors_keep_their_type_and_details() -> None:
    async with WorkerPool(1) as pool:
        with pytest.raises(MachineError, match="not supported on architecture 'riscv'") as caught:
            await pool.run(find_subdir, "riscv", weight=HEAVY)
        assert "amd64" in caught.value.hint
        with pytest.raises(FileNotFoundError) as missing:
            await pool.run(os.listdir, "/nowhere", weight=HEAVY)
        assert missing.value.filename == "/nowhere"
        # An error does not cost the worker.
        assert await pool.run(operator.add, 1, 2, weight=HEAVY) == 3


async def test_what_a_function_prints_is_not_its_result(capfd: pytest.CaptureFixture[str]) -> None:
    async with WorkerPool(1) as pool:
        await pool.run(print, "a line", weight=HEAVY)
    assert "a line" in capfd.readouterr().err


async def test_cancelling_kills_the_worker() -> None:
    async with WorkerPool(1) as pool:
        worker = await pool.run(os.getpid, weight=HEAVY)
        with anyio.move_on_after(0.05) as scope:
            await pool.run(time.sleep, 1000, weight=HEAVY)
        assert scope.cancelled_caught
        assert is_gone(worker)
        assert await pool.run(os.getpid, weight=HEAVY) != worker


async def test_a_worker_that_was_killed_is_reported_and_replaced() -> None:
    async with WorkerPool(1) as pool:
        with pytest.raises(OutsideError, match="was killed") as caught:
            await pool.run(signal.raise_signal, signal.SIGKILL, weight=HEAVY)
        assert "memory" in caught.value.hint
        with pytest.raises(OutsideError, match="ended with code 7"):
            await pool.run(os._exit, 7, weight=HEAVY)
        assert await pool.run(operator.add, 1, 2, weight=HEAVY) == 3


async def test_an_interrupt_of_the_terminal_does_not_reach_workers() -> None:
    async with WorkerPool(1) as pool:
        assert await pool.run(os.getsid, 0, weight=HEAVY) != os.getsid(0)
        await pool.run(signal.raise_signal, signal.SIGINT, weight=HEAVY)


async def test_heaviest_task_runs_first_and_a_cancelled_caller_is_skipped(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    order: list[int] = []

    async def run_work(weight: int, function: Callable[..., object], *args: object) -> None:
        await pool.run(function, *args, weight=weight)
        order.append(weight)

    async with WorkerPool(1) as pool, anyio.create_task_group() as group:
        group.start_soon(run_work, HEAVY, gate.read_text)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as cancelled:
            cancelled.cancel()
            await run_work(HEAVY + 9, os.getpid)
        for extra in (1, 3, 2):
            group.start_soon(run_work, HEAVY + extra, os.getpid)
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(gate.write_text, "open")
    assert order == [HEAVY, HEAVY + 3, HEAVY + 2, HEAVY + 1]


async def test_modules_of_the_current_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    async with WorkerPool(1) as pool:
        assert await pool.run(operator.add, 1, 2, weight=HEAVY) == 3
