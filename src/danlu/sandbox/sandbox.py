"""Run one program in a root file system, by an OCI runtime, and leave nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.errors import MachineError
from danlu.sandbox import children, runtime, trust, userns
from danlu.sandbox.prepare import prepared
from danlu.sandbox.types import Mount, Process, Root

if TYPE_CHECKING:
    from anyio.abc import Process as Child

__all__ = ["Sandbox"]

_PIECE = 65536
# A runtime copies output and errors from two pipes, which loses their order.
_ONE_STREAM = 'exec "$@" 2>&1'


class Sandbox:
    """Runs processes; ``work`` is a private directory on the store's file system.

    ``name`` chooses the runtime (configuration ``runtime``). Raises :class:`MachineError` where
    there is none. Needs :func:`danlu.sandbox.userns.enter`.
    """

    def __init__(self, work: Path, *, name: str = "") -> None:
        if not userns.entered():
            raise RuntimeError("userns.enter() must be called before a sandbox is made")
        self.work = work.absolute()
        self._runtime = runtime.find(name)
        self._trust = trust.gather(self.work)

    async def run(
        self,
        process: Process,
        root: Root,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run ``process`` to its end and give its exit code: 128+n where signal n ended it.

        ``on_line`` is called with each line of its merged output (a carriage return ends a line
        too; bytes that are not UTF-8 are replaced); None joins it to our own input and output.
        126 and 127 say, as in a shell, that the program cannot be executed or is not there.
        Cancelling kills everything that runs inside. Without ``network`` there is a loopback
        only. Raises :class:`MachineError` where the runtime fails before the program starts.
        """
        from anyio import CancelScope, to_thread

        stack = ExitStack()
        context = prepared(
            process,
            root,
            mounts=mounts,
            trust=self._trust,
            network=network,
            work=self.work,
            shell="" if on_line is None else _ONE_STREAM,
        )
        try:
            place = await to_thread.run_sync(stack.enter_context, context)
            code = await self._launch(place, joined=on_line is None, on_line=on_line)
            code, reason = runtime.outcome(code, place / "log", process.args[0])
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(stack.close)
        if code == runtime.FAILED_BEFORE and reason:
            raise MachineError(
                f"{self._runtime.name} could not start a step",
                details=(reason,),
                hint="`danlu doctor` checks this machine",
            )
        if reason and on_line is not None:
            on_line(reason)
        return code

    async def _launch(
        self, place: Path, *, joined: bool, on_line: Callable[[str], None] | None
    ) -> int:
        from subprocess import DEVNULL, PIPE, STDOUT

        import anyio

        child = await anyio.open_process(
            self._runtime.command(place),
            stdin=None if joined else DEVNULL,
            stdout=None if joined else PIPE,
            stderr=None if joined else STDOUT,
            env=self._runtime.environment(),
            cwd=place,
            # Ctrl-C is ours to handle; a terminal is read only from our session.
            start_new_session=not joined,
        )
        try:
            if on_line is not None:
                await _stream(child, on_line)
            await child.wait()
        finally:
            await _end(child)
        assert child.returncode is not None
        return child.returncode


async def _stream(child: Child, on_line: Callable[[str], None]) -> None:
    assert child.stdout is not None
    pending = b""
    async for chunk in child.stdout:
        text = pending + chunk
        # The rest of "\r\n" may come with the next chunk.
        held = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, pending = text.split(b"\n")
        pending += held
        for line in lines:
            _say(line, on_line)
        if len(pending) > _PIECE:
            _say(pending, on_line)
            pending = b""
    if pending:
        _say(pending.removesuffix(b"\r"), on_line)


def _say(line: bytes, on_line: Callable[[str], None]) -> None:
    # The runtime's own complaint is in its log, and told from there.
    if not line.startswith(b"runc run failed: "):
        on_line(line.decode(errors="replace"))


async def _end(child: Child) -> None:
    """Kill what still runs and wait until all of it is gone, also when we are being cancelled."""
    import anyio

    if child.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        children.kill_inside(child.pid)
        with anyio.move_on_after(10):
            await child.wait()
        if child.returncode is None:
            os.kill(child.pid, 9)
            await child.wait()
