"""Work in a thread with an event loop of its own, which an interrupt ends without waiting for it.

The loop of a kernel's main thread is taken by the kernel: a signal that is raised in it ends the
kernel. So the main thread only waits, a short while at a time, and whatever takes long is done
elsewhere. The thread runs in a copy of the caller's context: what it displays goes to the cell that
began it, also when another one runs by then.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import anyio

__all__ = ["is_ending", "run"]

T = TypeVar("T")

#: Seconds between two calls of what is to be called now and then.
_TICK = 0.1

#: Seconds of one wait of the main thread: an interrupt ends it at once, but for the rare moment.
_WAIT = 0.2

#: What runs now; it may be cleaning up.
_running: set[_Work[Any]] = set()


def run(
    act: Callable[[], Awaitable[T]],
    *,
    tick: Callable[[], object] = lambda: None,
    stopping: Callable[[], object] = lambda: None,
) -> T:
    """The value of ``act()``, awaited in another thread, where ``tick`` is called now and then.

    An interrupt cancels it and is raised at once; ``stopping`` is called there first, and what
    ``act`` does to clean up goes on.
    """
    work = _Work(act, tick, stopping)
    with _heeding(work.stop):
        try:
            work.start()
            while not work.done.wait(_WAIT):
                pass
        except BaseException:
            work.stop()
            raise
    return work.outcome()


def is_ending() -> bool:
    """Whether something still cleans up after an interrupt."""
    return any(one.stopped for one in list(_running))


class _Work(Generic[T]):
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
        self._values: list[T] = []
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="danlu cell", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Cancel it; from any thread, from a signal handler, as often as one likes."""
        if self.done.is_set():
            return
        self.stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._cancel)

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._values[0]

    def _run(self) -> None:
        _running.add(self)
        try:
            anyio.run(self._main)
        except BaseException as error:
            self._error = error
        finally:
            _running.discard(self)
            self.done.set()

    async def _main(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._ticking)
            with anyio.CancelScope() as self._scope:
                self._loop = asyncio.get_running_loop()
                if self.stopped:
                    self._cancel()
                await self._acted()
            group.cancel_scope.cancel()

    def _cancel(self) -> None:
        if self._scope is not None and not self._scope.cancel_called:
            self._stopping()
            self._scope.cancel()

    async def _acted(self) -> None:
        try:
            self._values.append(await self._act())
        except Exception as error:
            # Not through the group, which would wrap it.
            self._error = _leaf(error)

    async def _ticking(self) -> None:
        while True:
            await anyio.sleep(_TICK)
            self._tick()


def _leaf(error: BaseException) -> BaseException:
    """What went wrong first in a group of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _heeding(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at every interrupt within the block, before anything else is done for it.

    By the handler itself: what is raised for a first interrupt may be met by a second one before
    it gets to anything. Only the main thread is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def heard(number: int, frame: FrameType | None) -> None:
        stop()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
