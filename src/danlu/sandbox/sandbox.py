"""Run one program in a root file system with an OCI runtime, leaving nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import anyio
from anyio.abc import Process as Child

from danlu.errors import MachineError
from danlu.sandbox import container_processes, network_env, runtime, userns
from danlu.sandbox.prepare import prepare_run
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem

_MAX_LINE_BYTES = 65536
# A runtime copies stdout and stderr from two pipes, which would lose their order.
_MERGE_STREAMS = 'exec "$@" 2>&1'


class Sandbox:
    """Run the processes of builds in containers.

    ``work`` is a private directory on the store's file system. ``name`` selects the runtime and
    ``seccomp`` the system call filter (the settings ``runtime`` and ``seccomp``). ``trusted`` is
    whether the build file is the user's own. Raises :class:`MachineError` if no OCI runtime is
    installed. Requires :func:`danlu.sandbox.userns.enter`.
    """

    def __init__(
        self, work: Path, *, name: str = "", seccomp: str = "", trusted: bool = True
    ) -> None:
        if not userns.has_entered():
            raise RuntimeError("userns.enter() must be called before a sandbox is made")
        self.work = work.absolute()
        self._runtime = runtime.find_runtime(name)
        self._seccomp = seccomp
        self._network_env = network_env.detect_network_environment(self.work, trusted=trusted)

    async def run(
        self,
        process: ProcessSpec,
        root: RootFilesystem,
        *,
        mounts: Sequence[Mount] = (),
        network: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> int:
        """Run ``process`` to completion and return its exit code: 128+n if signal n killed it.

        ``on_line`` is called with each line of its merged output (a carriage return ends a line
        too; bytes that are not UTF-8 are replaced). Without it, the process shares our input and
        output. As in a shell, 126 and 127 mean that the program cannot be executed or was not
        found. Cancelling kills everything that runs inside. Without ``network`` there is only a
        loopback. Raises :class:`MachineError` if the runtime fails before the program starts.
        """
        stack = ExitStack()
        context = prepare_run(
            process,
            root,
            mounts=mounts,
            network_env=self._network_env,
            network=network,
            work=self.work,
            shell="" if on_line is None else _MERGE_STREAMS,
            seccomp=self._seccomp,
        )
        try:
            bundle = await anyio.to_thread.run_sync(stack.enter_context, context)
            code = await self._run_bundle(bundle, joined=on_line is None, on_line=on_line)
            code, reason = runtime.interpret_exit(code, bundle / "log", process.args[0])
        finally:
            with anyio.CancelScope(shield=True):
                # Mounts and directories must go even if the build was cancelled.
                await anyio.to_thread.run_sync(stack.close)
        if code == runtime.FAILED_TO_START and reason:
            raise MachineError(
                f"{self._runtime.name} could not start a step",
                details=(reason,),
                hint="`danlu doctor` checks this machine",
            )
        if reason and on_line is not None:
            on_line(reason)
        return code

    async def _run_bundle(
        self, place: Path, *, joined: bool, on_line: Callable[[str], None] | None
    ) -> int:
        child = await anyio.open_process(
            self._runtime.command(place),
            stdin=None if joined else DEVNULL,
            stdout=None if joined else PIPE,
            stderr=None if joined else STDOUT,
            env=self._runtime.environment(),
            cwd=place,
            # Only we handle Ctrl-C; but a terminal can be read only from within our session.
            start_new_session=not joined,
        )
        try:
            if on_line is not None:
                await _stream_lines(child, on_line)
            await child.wait()
        finally:
            await _kill_and_reap(child)
        assert child.returncode is not None
        return child.returncode


async def _stream_lines(child: Child, on_line: Callable[[str], None]) -> None:
    assert child.stdout is not None
    pending = b""
    async for chunk in child.stdout:
        text = pending + chunk
        # The rest of "\r\n" may arrive with the next chunk.
        pending_cr = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(pending_cr).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, pending = text.split(b"\n")
        pending += pending_cr
        for line in lines:
            _emit_line(line, on_line)
        if len(pending) > _MAX_LINE_BYTES:
            _emit_line(pending, on_line)
            pending = b""
    if pending:
        _emit_line(pending.removesuffix(b"\r"), on_line)


def _emit_line(line: bytes, on_line: Callable[[str], None]) -> None:
    # The runtime's own error is reported from its log.
    if not line.startswith(b"runc run failed: "):
        on_line(line.decode(errors="replace"))


async def _kill_and_reap(child: Child) -> None:
    """Kill the container and wait until all of it is gone, even while being cancelled."""
    if child.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        container_processes.kill_container(child.pid)
        with anyio.move_on_after(10):
            await child.wait()
        if child.returncode is None:
            # A process in uninterruptible sleep (proc(5), state D) keeps the namespace alive. The
            # build ends all the same.
            os.kill(child.pid, 9)
            await child.wait()
