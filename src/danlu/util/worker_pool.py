"""Run functions in worker processes that never outlive the work they were started for.

Threads share the interpreter's lock, so work that makes many small system calls (unpacking
archives) is slower in four threads than in one. A thread cannot be stopped either, whereas a worker
process is killed as soon as its caller is cancelled.
"""

from __future__ import annotations

import heapq
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from subprocess import PIPE
from typing import IO, TypeVar, cast

import anyio
from anyio import to_thread
from anyio.abc import Process

from danlu.errors import OutsideError
from danlu.util.outcomes import pickle_error, pickle_outcome, unpickle_outcome
from danlu.util.pdeathsig import with_parent_death_signal
from danlu.util.process import kill_and_reap

T = TypeVar("T")

#: Work of less weight runs in a thread: starting a process costs as much.
_MIN_WEIGHT = 512 * 1024

_HEADER = struct.Struct("!Q")
_MAX_REPLY = 64 << 20


class WorkerPool:
    """Up to ``size`` worker processes (one per core), started when needed, and one thread.

    An asynchronous context manager: at its end the processes are killed.
    """

    def __init__(self, size: int | None = None) -> None:
        self._available = size or len(os.sched_getaffinity(0))
        self._idle: list[_WorkerProcess] = []
        #: Callers that wait for a process: the heaviest first, then in order of arrival.
        self._waiting: list[tuple[int, int, anyio.Event]] = []
        self._arrivals = 0
        self._thread_limit = anyio.CapacityLimiter(1)

    async def __aenter__(self) -> WorkerPool:
        return self

    async def __aexit__(self, *raised: object) -> None:
        while self._idle:
            await self._idle.pop().kill()

    async def run(self, function: Callable[..., T], *args: object, weight: int) -> T:
        """Return ``function(*args)``, which must be defined at the top of a module.

        ``weight`` is the number of bytes that it works on: of several waiting calls the heaviest
        comes first, so that none is left for the end. Light ones run in a thread of this process,
        one at a time. Raises the :class:`DanluError` or :class:`OSError` that ``function`` raises.
        Cancelling kills the process; so does the end of this process.
        """
        if weight < _MIN_WEIGHT:
            return await to_thread.run_sync(partial(function, *args), limiter=self._thread_limit)
        await self._wait_for_turn(weight)
        try:
            worker = self._idle.pop() if self._idle else await _start_worker()
            try:
                reply = await worker.call(pickle.dumps((function, args)))
            except BaseException:
                await worker.kill()
                raise
            self._idle.append(worker)
        finally:
            self._end_turn()
        return cast("T", unpickle_outcome(reply))

    async def _wait_for_turn(self, weight: int) -> None:
        if self._available:
            self._available -= 1
            return
        self._arrivals += 1
        entry = (-weight, self._arrivals, anyio.Event())
        heapq.heappush(self._waiting, entry)
        try:
            await entry[2].wait()
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            else:
                # The turn came while the task was being cancelled, and belongs to the next one.
                self._end_turn()
            raise

    def _end_turn(self) -> None:
        """Hand the turn over to the next caller, if any."""
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
        else:
            self._available += 1


class _WorkerProcess:
    def __init__(self, process: Process) -> None:
        from anyio.streams.buffered import BufferedByteReceiveStream  # few builds start a worker

        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def call(self, request: bytes) -> bytes:
        """Return the reply to ``request``; raise :class:`OutsideError` if the process ends."""
        try:
            await self._stdin.send(_HEADER.pack(len(request)) + request)
            (size,) = _HEADER.unpack(await self._stdout.receive_exactly(_HEADER.size))
            if size > _MAX_REPLY:
                raise OutsideError(f"a worker process sent a reply of {size} bytes")
            return await self._stdout.receive_exactly(size)
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            code = await self._process.wait()
            if code == -signal.SIGKILL:
                raise OutsideError(
                    "a worker process of the build was killed",
                    hint="this machine may be short of memory: see `dmesg`, then build again",
                ) from error
            raise OutsideError(f"a worker process of the build ended with code {code}") from error

    async def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        await kill_and_reap(self._process)
        with anyio.CancelScope(shield=True):
            await self._process.aclose()


async def _start_worker() -> _WorkerProcess:
    # In a separate session: Ctrl-C must reach the build only, which then kills its workers.
    process = await anyio.open_process(
        with_parent_death_signal([sys.executable, "-P", "-m", "danlu.util.worker_pool"]),
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
        start_new_session=True,
    )
    return _WorkerProcess(process)


def serve_requests(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Run what is requested, one function after another, until there are no more requests."""
    while len(header := requests.read(_HEADER.size)) == _HEADER.size:
        (size,) = _HEADER.unpack(header)
        function, args = pickle.loads(requests.read(size))
        try:
            reply = pickle_outcome(partial(function, *args))
        except OSError as error:
            reply = pickle_error(error)
        replies.write(_HEADER.pack(len(reply)) + reply)
        replies.flush()


def main() -> None:
    """Serve the requests of the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    # What a function prints must not be taken for a reply.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with suppress(BrokenPipeError):
        serve_requests(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
