"""Run child processes that never outlive us; collect or stream their output."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from danlu.util.output_lines import OutputLines
from danlu.util.pdeathsig import with_parent_death_signal
from danlu.util.process_activity import (
    STUCK_SECONDS,
    kill_process_tree,
    read_activity,
    stuck_error,
)

_ACTIVITY_POLL_SECONDS = 1.0
_KILL_TIMEOUT_SECONDS = 5.0


def _is_worth_logging(record: logging.LogRecord) -> bool:
    # What asyncio warns about when an interrupt ends its event loop before a killed child, which
    # subprocess then reaps. Without a handler it would be printed between our own messages.
    return not str(record.msg).startswith("Unknown child process pid")


logging.getLogger("asyncio").addFilter(_is_worth_logging)


class CompletedProcess(msgspec.Struct, frozen=True):
    """The exit code of a child (negative for a signal) and its output."""

    code: int
    stdout: bytes
    stderr: bytes


async def kill_and_reap(process: Process) -> None:
    """Kill the process if it still runs and reap it, even while being cancelled."""
    if process.returncode is None:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()


async def run(
    args: Sequence[str],
    *,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    umask: int = -1,
    pass_fds: Sequence[int] = (),
    is_stuck: Callable[[float], bool] | None = None,
    on_stderr: Callable[[str], None] | None = None,
) -> CompletedProcess:
    """Run ``args`` to completion and collect the output; a ``umask`` of -1 keeps ours.

    ``on_stderr`` is called with each part of stderr when it comes.

    ``is_stuck`` is asked from time to time whether to give up, with the seconds for which the
    program and its children have neither read, written nor computed anything. Raises
    :class:`TimeoutError` then; without it :class:`TemporaryError` after
    :data:`~danlu.util.process_activity.STUCK_SECONDS`. Raises :class:`FileNotFoundError` if the
    program does not exist. Cancelling kills the child.
    """
    process = await anyio.open_process(
        with_parent_death_signal(args),
        stdin=PIPE if input else DEVNULL,
        env=env,
        cwd=cwd,
        umask=umask,
        pass_fds=pass_fds,
    )
    chunks: dict[str, bytes] = {}

    async def drain(name: str, source: ByteReceiveStream) -> None:
        parts = []
        async for part in source:
            parts.append(part)
            if name == "stderr" and on_stderr is not None:
                on_stderr(part.decode(errors="replace"))
        chunks[name] = b"".join(parts)

    stuck = False

    async def watch_activity() -> None:
        nonlocal stuck
        await wait_until_stuck(process, is_stuck)
        stuck = True
        kill_process_tree(process.pid)
        await anyio.sleep(_KILL_TIMEOUT_SECONDS)
        watching.cancel_scope.cancel()  # a process that is not a descendant any more has the pipes

    try:
        async with anyio.create_task_group() as watching:
            watching.start_soon(watch_activity)
            async with anyio.create_task_group() as group:
                assert process.stdout is not None
                assert process.stderr is not None
                # Both pipes are read while the input is written: a full pipe would block the child.
                group.start_soon(drain, "stdout", process.stdout)
                group.start_soon(drain, "stderr", process.stderr)
                if process.stdin is not None:
                    # The program may have ended without reading it.
                    with suppress(anyio.BrokenResourceError, ConnectionError):
                        await process.stdin.send(input)
                    await process.stdin.aclose()
            await process.wait()
            watching.cancel_scope.cancel()
    finally:
        await kill_and_reap(process)
    if stuck and is_stuck is None:
        raise stuck_error(args[0], STUCK_SECONDS)
    if stuck:
        raise TimeoutError(f"{args[0]} is stuck")
    assert process.returncode is not None
    return CompletedProcess(
        process.returncode, chunks.get("stdout", b""), chunks.get("stderr", b"")
    )


async def wait_until_stuck(
    process: Process, is_stuck: Callable[[float], bool] | None = None
) -> None:
    """Return when a process and its children are stuck, as ``is_stuck`` of :func:`run` decides."""
    before, since = read_activity(process.pid), anyio.current_time()
    while True:
        await anyio.sleep(_ACTIVITY_POLL_SECONDS)
        now, time = read_activity(process.pid), anyio.current_time()
        if now != before:
            before, since = now, time
        idle = time - since
        if is_stuck(idle) if is_stuck is not None else idle > STUCK_SECONDS:
            return


async def stream(
    args: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> int:
    """Run ``args``, call ``on_line`` with each line of the merged output, and return the exit code.

    See :class:`~danlu.util.output_lines.OutputLines`.
    """
    process = await anyio.open_process(
        with_parent_death_signal(args), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env, cwd=cwd
    )
    lines = OutputLines(on_line)
    try:
        assert process.stdout is not None
        async for chunk in process.stdout:
            lines.feed(chunk)
        lines.feed(b"", final=True)
        await process.wait()
    finally:
        await kill_and_reap(process)
    assert process.returncode is not None
    return process.returncode
