"""Child processes that end with us: run one, gather or stream its output, kill it on cancel."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from danlu.util.lifeline import dies_with_us

__all__ = ["Completed", "run", "stream"]


class Completed(msgspec.Struct, frozen=True):
    """How a child ended: its exit code (negative for a signal) and what it printed."""

    code: int
    stdout: bytes
    stderr: bytes


async def _end(process: Process) -> None:
    """Kill what still runs and reap it, also when we are being cancelled."""
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
) -> Completed:
    """Run ``args`` to its end and gather what it prints; a ``umask`` of -1 is ours.

    Raises :class:`FileNotFoundError` where the program is missing. Cancelling kills the child.
    """
    process = await anyio.open_process(
        dies_with_us(args), stdin=PIPE if input else DEVNULL, env=env, cwd=cwd, umask=umask
    )
    chunks: dict[str, bytes] = {}

    async def drain(name: str, source: ByteReceiveStream) -> None:
        parts = [part async for part in source]
        chunks[name] = b"".join(parts)

    try:
        async with anyio.create_task_group() as group:
            assert process.stdout is not None
            assert process.stderr is not None
            group.start_soon(drain, "stdout", process.stdout)
            group.start_soon(drain, "stderr", process.stderr)
            if process.stdin is not None:
                with suppress(anyio.BrokenResourceError):
                    await process.stdin.send(input)
                await process.stdin.aclose()
        await process.wait()
    finally:
        await _end(process)
    assert process.returncode is not None
    return Completed(process.returncode, chunks.get("stdout", b""), chunks.get("stderr", b""))


async def stream(
    args: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
) -> int:
    """Run ``args``, call ``on_line`` with each line of its merged output, give its exit code.

    Carriage returns end lines too (progress bars); undecodable bytes are replaced; a line longer
    than 64 KiB is cut in pieces.
    """
    process = await anyio.open_process(
        dies_with_us(args), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env, cwd=cwd
    )
    pending = b""
    try:
        assert process.stdout is not None
        async for chunk in process.stdout:
            *lines, pending = (pending + chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(
                b"\n"
            )
            for line in lines:
                on_line(line.decode(errors="replace"))
            if len(pending) > 65536:
                on_line(pending.decode(errors="replace"))
                pending = b""
        if pending:
            on_line(pending.decode(errors="replace"))
        await process.wait()
    finally:
        await _end(process)
    assert process.returncode is not None
    return process.returncode
