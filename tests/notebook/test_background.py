"""Work beside the main thread: its value, its errors, and what an interrupt does to it."""

from __future__ import annotations

import contextvars
import signal
import threading
from collections.abc import Callable

import anyio
import pytest

from danlu.errors import UsageError
from danlu.notebook import background
from tests.notebook.interrupts import interrupted, until


async def forever() -> None:
    await anyio.sleep_forever()


def test_the_value_comes_from_another_thread() -> None:
    async def act() -> str:
        return threading.current_thread().name

    assert background.run(act) != threading.current_thread().name


def test_what_runs_sees_the_context_of_its_caller() -> None:
    cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell")
    cell.set("the third")

    async def act() -> str:
        return cell.get()

    assert background.run(act) == "the third"


def test_an_error_is_raised_as_it_is_also_out_of_a_group() -> None:
    async def fail() -> None:
        raise UsageError("no")

    async def group() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    for act in (fail, group):
        with pytest.raises(UsageError, match="no"):
            background.run(act)


def test_something_is_called_now_and_then() -> None:
    called = threading.Event()

    async def act() -> bool:
        while not called.is_set():
            await anyio.sleep(0.01)
        return True

    assert background.run(act, tick=called.set)


def test_an_interrupt_is_answered_while_the_work_cleans_up() -> None:
    running, cleaning, clean = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                told.append("cleaning")
                while not cleaning.is_set():
                    await anyio.sleep(0.01)
                clean.set()

    with interrupted(running.is_set):
        background.run(act, stopping=lambda: told.append("stopping"))
    assert background.is_ending()
    assert not clean.is_set()
    cleaning.set()
    until(clean.is_set)
    until(lambda: not background.is_ending())
    assert told == ["stopping", "cleaning"]


def test_an_interrupt_before_the_work_began_ends_it_too() -> None:
    began = threading.Event()

    async def act() -> None:
        began.set()
        await anyio.sleep_forever()

    start = background._Work.start

    def struck(work: background._Work[None]) -> None:
        signal.raise_signal(signal.SIGINT)
        start(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background._Work, "start", struck)
        with pytest.raises(KeyboardInterrupt):
            background.run(act)
    assert not began.is_set()


def test_two_interrupts_break_nothing() -> None:
    running, ended = threading.Event(), threading.Event()

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with interrupted(running.is_set, times=2):
        background.run(act)
    until(ended.is_set)
    until(lambda: not background.is_ending())


def test_the_handler_of_interrupts_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def act() -> None:
        assert signal.getsignal(signal.SIGINT) is not before

    background.run(act)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_whatever_is_raised_while_it_waits_ends_the_work(raised: type[BaseException]) -> None:
    running, ended = threading.Event(), threading.Event()

    async def act() -> None:
        running.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def heard(number: int, frame: object) -> None:
        raise raised

    before = signal.signal(signal.SIGINT, heard)
    try:
        strike: Callable[[], object] = running.is_set
        if raised is KeyboardInterrupt:
            with interrupted(strike):
                background.run(act)
        else:
            with pytest.raises(SystemExit), interrupted(strike):
                background.run(act)
    finally:
        signal.signal(signal.SIGINT, before)
    until(ended.is_set)


def test_work_may_be_begun_in_another_thread() -> None:
    found: list[int] = []

    async def act() -> int:
        return 7

    thread = threading.Thread(target=lambda: found.append(background.run(act)))
    thread.start()
    thread.join()
    assert found == [7]
