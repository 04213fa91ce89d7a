"""Background tasks: their value, their errors, and how they are interrupted."""

from __future__ import annotations

import contextvars
import signal
import threading
from collections.abc import Callable

import anyio
import pytest

from danlu.errors import UsageError
from danlu.notebook import background_loop
from tests.notebook.interrupts import interrupt_when, until


async def sleep_forever() -> None:
    await anyio.sleep_forever()


def test_act_runs_in_another_thread() -> None:
    async def act() -> str:
        return threading.current_thread().name

    assert background_loop.run(act) != threading.current_thread().name


def test_act_runs_in_the_callers_context() -> None:
    cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell")
    cell.set("the third")

    async def act() -> str:
        return cell.get()

    assert background_loop.run(act) == "the third"


def test_errors_are_raised_without_an_exception_group() -> None:
    async def fail() -> None:
        raise UsageError("no")

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    for act in (fail, group):
        with pytest.raises(UsageError, match="no"):
            background_loop.run(act)


def test_tick_is_called_regularly() -> None:
    called = threading.Event()

    async def act() -> bool:
        while not called.is_set():
            await anyio.sleep(0.01)
        return True

    assert background_loop.run(act, tick=called.set)


def test_interrupt_is_raised_while_cleanup_continues() -> None:
    running, cleaning, clean = threading.Event(), threading.Event(), threading.Event()
    output: list[str] = []

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                output.append("cleaning")
                while not cleaning.is_set():
                    await anyio.sleep(0.01)
                clean.set()

    with interrupt_when(running.is_set):
        background_loop.run(act, stopping=lambda: output.append("stopping"))
    assert background_loop.has_pending_cleanup()
    assert not clean.is_set()
    cleaning.set()
    until(clean.is_set)
    until(lambda: not background_loop.has_pending_cleanup())
    assert output == ["stopping", "cleaning"]


def test_interrupt_before_the_start_cancels() -> None:
    began = threading.Event()

    async def act() -> None:
        began.set()
        await anyio.sleep_forever()

    start = background_loop._BackgroundTask.start

    def start_and_interrupt(work: background_loop._BackgroundTask[None]) -> None:
        signal.raise_signal(signal.SIGINT)
        start(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_loop._BackgroundTask, "start", start_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            background_loop.run(act)
    assert not began.is_set()


def test_two_interrupts_are_handled() -> None:
    running, result = threading.Event(), threading.Event()

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            result.set()

    with interrupt_when(running.is_set, times=2):
        background_loop.run(act)
    until(result.is_set)
    until(lambda: not background_loop.has_pending_cleanup())


def test_interrupt_between_cells_reaches_the_cleanup() -> None:
    """A kernel ignores SIGINT between cells while its event loop continues."""
    running, heard = threading.Event(), threading.Event()

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await background_loop.wait_for_another_interrupt()
                heard.set()

    async def kernel() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with interrupt_when(running.is_set):
            background_loop.run(act)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            await anyio.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            await anyio.sleep(0.01)

    before = signal.getsignal(signal.SIGINT)
    try:
        anyio.run(kernel)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard.is_set()


def test_interrupt_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def act() -> None:
        assert signal.getsignal(signal.SIGINT) is not before

    background_loop.run(act)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_exception_in_the_main_thread_cancels_the_task(raised: type[BaseException]) -> None:
    running, result = threading.Event(), threading.Event()

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            result.set()

    def raise_in_handler(number: int, frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGINT, raise_in_handler)
    try:
        strike: Callable[[], object] = running.is_set
        if raised is KeyboardInterrupt:
            with interrupt_when(strike):
                background_loop.run(act)
        else:
            with pytest.raises(SystemExit), interrupt_when(strike):
                background_loop.run(act)
    finally:
        signal.signal(signal.SIGINT, before)
    until(result.is_set)


def test_run_works_in_another_thread() -> None:
    results: list[int] = []

    async def act() -> int:
        return 7

    thread = threading.Thread(target=lambda: results.append(background_loop.run(act)))
    thread.start()
    thread.join()
    assert results == [7]
