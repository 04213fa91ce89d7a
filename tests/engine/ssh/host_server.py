"""An SSH server whose environment is this machine: real processes, terminals and sockets.

As a program, ``python -m tests.engine.ssh.host_server KEYS`` is the ``ProxyCommand`` of a client.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.stdio import serve_standard_streams
from danlu.engine.types import ExecProcess, ExecRequest


class HostExecClient:
    """Starts programs on this machine."""

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ExecProcess:
        def take_terminal() -> None:
            if request.terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = subprocess.Popen(
            request.args or ("/bin/sh",),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "SHELL": "/bin/sh", "PS1": "$ ", **request.environment},
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        return HostExecProcess(process)


class HostExecProcess:
    """A program, the leader of its session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._exit = asyncio.ensure_future(asyncio.to_thread(process.wait))

    async def wait(self) -> int:
        code = await asyncio.shield(self._exit)
        return code if code >= 0 else 128 - code

    async def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def notify_resize(self) -> None:
        self._process.send_signal(signal.SIGWINCH)

    async def close(self) -> None:
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._exit


if __name__ == "__main__":
    serve_standard_streams(HostExecClient(), SshKeys(Path(sys.argv[1])))
