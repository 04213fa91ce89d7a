from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.abc import Process

from danlu.util.process import run, stream


def test_both_outputs_and_the_exit_code_are_returned() -> None:
    result = anyio.run(run, ["sh", "-c", "cat; echo bad >&2; exit 3"])
    assert (result.code, result.stdout, result.stderr) == (3, b"", b"bad\n")


def test_input_is_passed() -> None:
    async def main() -> bytes:
        return (await run(["cat"], input=b"x" * 200_000)).stdout

    assert anyio.run(main) == b"x" * 200_000


def test_child_that_ignores_its_input_is_fine() -> None:
    async def main() -> int:
        return (await run(["true"], input=b"x" * 2_000_000)).code

    assert anyio.run(main) == 0


def test_child_that_ends_before_its_input_is_written_is_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_process = anyio.open_process

    async def open_and_wait(*args: Any, **options: Any) -> Process:
        process = await open_process(*args, **options)
        with suppress(ChildProcessError):  # asyncio has waited for it already
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process

    monkeypatch.setattr(anyio, "open_process", open_and_wait)

    async def main() -> bytes:
        return (await run(["echo", "done"], input=b"x")).stdout

    assert anyio.run(main) == b"done\n"


def test_lines_come_one_by_one() -> None:
    lines: list[str] = []
    code = anyio.run(stream, ["sh", "-c", r"printf 'a\nb\rc\r\nd'; exit 2"], lines.append)
    assert code == 2
    assert lines == ["a", "b", "c", "d"]


def test_child_is_killed_on_cancel() -> None:
    pids: list[int] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:

            def cancel_on_line(line: str) -> None:
                pids.append(int(line))
                group.cancel_scope.cancel()

            await stream(["sh", "-c", "echo $$; exec sleep 1000"], cancel_on_line)

    anyio.run(main)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], signal.SIGCONT)


def test_a_stuck_program_is_given_up() -> None:
    idle: list[float] = []

    def is_stuck(seconds: float) -> bool:
        idle.append(seconds)
        return len(idle) > 2

    async def main() -> None:
        # The grandchild keeps the pipes open.
        await run(["sh", "-c", "sleep 1000 & wait"], is_stuck=is_stuck)

    with pytest.raises(TimeoutError, match="sh is stuck"):
        anyio.run(main)
    assert idle == sorted(idle)


@pytest.mark.parametrize(
    "program",
    ["while :; do echo line; sleep 0.05; done", "while :; do :; done"],
    ids=["writes", "computes"],
)
def test_a_program_that_does_something_is_not_stuck(program: str) -> None:
    active: list[bool] = []

    def is_stuck(seconds: float) -> bool:
        active.append(seconds == 0)
        return active.count(True) > 1

    async def main() -> None:
        await run(["bash", "-c", program], is_stuck=is_stuck)

    with pytest.raises(TimeoutError):
        anyio.run(main)
