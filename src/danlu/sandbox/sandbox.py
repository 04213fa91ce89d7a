"""Run one program in a root file system with an OCI runtime, leaving nothing behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path

import anyio

from danlu.sandbox import runtime, userns
from danlu.sandbox.launcher.container import ContainerLauncher, PreparedContainer
from danlu.sandbox.launcher.container_process import StartedContainer
from danlu.sandbox.network_env import detect_network_environment
from danlu.sandbox.prepare import ContainerSpec
from danlu.sandbox.types import ContainerExit, Mount, ProcessSpec, RootFilesystem
from danlu.util.output_lines import OutputLines

_CHUNK_BYTES = 65536
#: The build ends all the same if a killed step does not.
_KILL_TIMEOUT = 10.0
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
        self._launcher = ContainerLauncher(self.work, runtime=name, seccomp=seccomp)
        self._network_env = detect_network_environment(self.work, trusted=trusted)

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
        spec = ContainerSpec(
            process,
            root,
            script="" if on_line is None else _MERGE_STREAMS,
            mounts=mounts,
            network=network,
            network_env=self._network_env,
        )
        resources = ExitStack()
        try:
            prepared = await anyio.to_thread.run_sync(self._launcher.prepare, spec, resources)
            exit = await _run_container(prepared, on_line)
        finally:
            with anyio.CancelScope(shield=True):
                # Mounts and directories must go even if the build was cancelled.
                await anyio.to_thread.run_sync(resources.close)
        if exit.code == runtime.FAILED_TO_START and exit.message:
            raise prepared.start_error("a step", exit.message)
        if exit.message and on_line is not None:
            on_line(exit.message)
        return exit.code


async def _run_container(
    prepared: PreparedContainer, on_line: Callable[[str], None] | None
) -> ContainerExit:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    with open(reading, "rb", buffering=0) as output:
        try:
            container = StartedContainer(
                prepared,
                (0, 1, 2) if on_line is None else (None, writing, writing),
                # Only we handle Ctrl-C; but a terminal can be read only from within our session.
                new_session=on_line is not None,
                kill_timeout=_KILL_TIMEOUT,
            )
        finally:
            os.close(writing)
        try:
            if on_line is not None:
                await _stream_lines(output, on_line)
            return await container.wait()
        finally:
            # The runtime would wait until somebody reads the rest.
            output.close()
            # All of it must be gone, even if the build is being cancelled.
            await container.stop(grace=0)


async def _stream_lines(output: FileIO, on_line: Callable[[str], None]) -> None:
    def report_line(line: str) -> None:
        # The runtime's own error is reported from its log.
        if not line.startswith("runc run failed: "):
            on_line(line)

    lines = OutputLines(report_line)
    while True:
        await anyio.wait_readable(output)
        chunk = os.read(output.fileno(), _CHUNK_BYTES)
        lines.feed(chunk, final=not chunk)
        if not chunk:
            return
