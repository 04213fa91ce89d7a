"""Run a coroutine in an event loop in a background thread, so that an interrupt is never delayed.

A kernel's main thread already runs an event loop, and an exception raised by a signal handler
inside that loop would end the kernel. So the main thread only waits, in short steps, and the work
runs in another thread. That thread runs in a copy of the caller's context: its output goes to the
cell that started it, even if another cell is running by then.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import anyio

from danlu.util.exception_groups import unwrap_group

T = TypeVar("T")

_TICK_SECONDS = 0.1

#: The timeout of one wait of the main thread. An interrupt normally ends the wait immediately; the
#: timeout covers the rare case that the signal arrives just before it begins.
_WAIT_SECONDS = 0.2

#: All running tasks, including those that clean up after an interrupt.
_running: set[_BackgroundTask[Any]] = set()


def run(
    act: Callable[[], Awaitable[T]],
    *,
    tick: Callable[[], object] = lambda: None,
    stopping: Callable[[], object] = lambda: None,
) -> T:
    """Await ``act()`` in another thread and return its value; call ``tick`` there regularly.

    An interrupt cancels ``act``, after a call of ``stopping``, and is raised immediately, while the
    cleanup of ``act`` continues in the background. The cleanup can wait for a further interrupt
    (:func:`wait_for_another_interrupt`), even one that arrives when no cell is running.
    """
    task = _BackgroundTask(act, tick, stopping)
    with _interrupt_handler(task.interrupt):
        try:
            task.start()
            while not task.done.wait(_WAIT_SECONDS):
                pass
        except BaseException:
            task.stop()
            _watch_interrupts(task)
            raise
    return task.outcome()


async def wait_for_another_interrupt() -> None:
    """Wait for the next interrupt after the one that cancelled the current task."""
    task = _current.get()
    while task.interrupts < 2:
        await anyio.sleep(_TICK_SECONDS)


def has_pending_cleanup() -> bool:
    """Return whether an interrupted task is still cleaning up."""
    return any(task.stopped for task in list(_running))


def wait_for_cleanup() -> None:
    """Wait until interrupted tasks have cleaned up; further interrupts are passed on to them."""

    def handle(number: int, frame: FrameType | None) -> None:
        for task in list(_running):
            task.interrupt()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        while has_pending_cleanup():
            time.sleep(_TICK_SECONDS)
    finally:
        signal.signal(signal.SIGINT, previous)


_current: contextvars.ContextVar[_BackgroundTask[Any]] = contextvars.ContextVar("task")


class _BackgroundTask(Generic[T]):
    def __init__(
        self,
        act: Callable[[], Awaitable[T]],
        tick: Callable[[], object],
        stopping: Callable[[], object],
    ) -> None:
        self.done = threading.Event()
        self._act = act
        self._tick = tick
        self._stopping = stopping
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self.stopped = False
        self.interrupts = 0
        self._values: list[T] = []
        self._error: BaseException | None = None
        # IPython's display functions find the cell to write to through context variables.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run_thread,), name="danlu cell", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Cancel the task. Idempotent; safe in any thread and in signal handlers."""
        if self.done.is_set():
            return
        self.stopped = True
        self.interrupts = max(self.interrupts, 1)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._cancel_scope)

    def interrupt(self) -> None:
        """Cancel the task, or wake up its cleanup if it waits for another interrupt."""
        self.interrupts += 1
        self.stop()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._values:
            # Cancelled, yet no KeyboardInterrupt reached `run`: Python drops an exception that a
            # signal handler raises while a destructor runs.
            raise KeyboardInterrupt
        return self._values[0]

    def _run_thread(self) -> None:
        _running.add(self)
        try:
            anyio.run(self._run_tasks)
        except BaseException as error:
            self._error = error
        finally:
            _running.discard(self)
            self.done.set()

    async def _run_tasks(self) -> None:
        _current.set(self)
        async with anyio.create_task_group() as group:
            group.start_soon(self._call_tick)
            with anyio.CancelScope() as self._scope:
                self._loop = asyncio.get_running_loop()
                if self.stopped:  # interrupted before there was a loop to call
                    self._cancel_scope()
                await self._run_act()
            group.cancel_scope.cancel()

    def _cancel_scope(self) -> None:
        if self._scope is not None and not self._scope.cancel_called:
            self._stopping()
            self._scope.cancel()

    async def _run_act(self) -> None:
        try:
            self._values.append(await self._act())
        except Exception as error:
            # Stored, not raised: the task group would wrap it in an exception group.
            self._error = unwrap_group(error)

    async def _call_tick(self) -> None:
        while True:
            await anyio.sleep(_TICK_SECONDS)
            self._tick()


@contextmanager
def _interrupt_handler(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on every SIGINT within the block, before the previous handler.

    It must be the signal handler itself: the code that handles a first KeyboardInterrupt could be
    interrupted by a second one before it gets to anything. Only the main thread receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        stop()
        if callable(previous):
            previous(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _watch_interrupts(task: _BackgroundTask[Any]) -> None:
    """Pass interrupts on to ``task`` between cells, when a kernel would ignore them.

    Does nothing outside the main thread of a kernel, whose event loop continues after the cell.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return

    def handle(number: int, frame: FrameType | None) -> None:
        task.interrupt()

    def check() -> None:
        current = signal.getsignal(signal.SIGINT)
        if task.done.is_set():
            if current is handle:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        # ipykernel ignores SIGINT between cells; a running cell has its own handler.
        if current is signal.SIG_IGN:
            signal.signal(signal.SIGINT, handle)
        loop.call_later(_TICK_SECONDS, check)

    loop.call_later(_TICK_SECONDS, check)
