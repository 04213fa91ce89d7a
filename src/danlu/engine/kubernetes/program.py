"""Programs in an environment's pod."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import BinaryIO, TypeVar

import anyio
from anyio import from_thread, to_thread

from danlu.engine.container_scripts import (
    FIND_SCRIPT,
    KILL_SCRIPT,
    LOGIN_SCRIPT,
    render_exports,
)
from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.scripts import EXEC_SCRIPT, MARK_SCRIPT, RUN_DIRECTORY, WRITE_SCRIPT
from danlu.engine.kubernetes.settings import CONTAINER
from danlu.engine.stream_copy import ProgramDescriptors, copy_streams, send_terminal_size
from danlu.engine.types import CONNECTION_LOST, ExecRequest
from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.kube.errors import ConnectionLost
from danlu.kube.pod_streams import Channel, PodExec, open_pod_exec
from danlu.sandbox.runtime import FAILED_TO_START
from danlu.sandbox.types import ContainerExit
from danlu.util.sanitize import read_last_line

T = TypeVar("T")

_KILL_TIMEOUT = 10.0
_KILLED_CODE = 128 + signal.SIGKILL
#: Values that are no secret: others must not be in a request's URL, which API servers log.
_PUBLIC_VARIABLE = re.compile("TERM|COLORTERM|LANG|LANGUAGE|LC_[A-Z]+|NO_COLOR")
_MAX_ERRORS = 1 << 16
_MAX_OUTPUT = 256 << 20
_CHUNK_SIZE = 1 << 18


async def run_script(pod: EnvironmentPod, script: str, *args: str, data: bytes = b"") -> bytes:
    """Run a shell script in the pod and return what it prints.

    Raises :class:`OutsideError` with what it printed on stderr if it fails.
    """
    with BytesIO(data) as source, BytesIO() as target:
        await pipe_script(pod, script, *args, source=source, target=target)
        return target.getvalue()


async def pipe_script(
    pod: EnvironmentPod,
    script: str,
    *args: str,
    source: BinaryIO,
    target: BinaryIO,
    limit: int = _MAX_OUTPUT,
) -> None:
    """Run a shell script in the pod, which reads ``source`` and writes to ``target``.

    Both are files, which do not block. Raises :class:`OutsideError` with what the script printed on
    stderr if it fails, and if it prints more than ``limit`` bytes: programs of an image are not
    trusted.
    """
    words = ("/bin/sh", "-c", script, "danlu", *args)
    program = await open_pod_exec(
        pod.client.transport, pod.namespace, pod.name, words, container=CONTAINER
    )
    errors = bytearray()
    failure: OutsideError | TemporaryError | None = None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_send_file, program, source)
            try:
                async for channel, chunk in program.read_output():
                    if channel == Channel.STDOUT:
                        limit -= len(chunk)
                        if limit < 0:
                            raise OutsideError(f"a program in pod {pod.name} prints too much")
                        target.write(chunk)
                    elif len(errors) < _MAX_ERRORS:
                        errors += chunk
            except (OutsideError, TemporaryError) as error:
                failure = error
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await program.close()
    if failure is not None:
        raise failure
    if program.exit_code:
        reason = read_last_line(bytes(errors), otherwise=f"exit code {program.exit_code}")
        raise OutsideError(f"a program in pod {pod.name} failed: {reason}")


class PodShell:
    """Runs the scripts of a project's copy in a pod, from threads of the event loop."""

    def __init__(self, pod: EnvironmentPod) -> None:
        self._pod = pod
        self.name = f"pod {pod.name}"

    def pipe_script(
        self, script: str, *args: str, source: BinaryIO, target: BinaryIO, limit: int
    ) -> None:
        """See :class:`~danlu.project_sync.types.ScriptRunner`."""
        run = partial(pipe_script, source=source, target=target, limit=limit)
        from_thread.run(partial(run, self._pod, script, *args))


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread, in which :class:`PodShell` works."""
    try:
        return await to_thread.run_sync(function)
    except CancelledError:  # of a program that the thread waited for
        await anyio.lowlevel.checkpoint()
        raise


async def _send_file(program: PodExec, source: BinaryIO) -> None:
    with suppress(ConnectionLost):
        while data := source.read(_CHUNK_SIZE):
            await program.send_input(data)
        await program.end_input()


async def start_program(
    pod: EnvironmentPod,
    request: ExecRequest,
    descriptors: ProgramDescriptors,
    forget: Callable[[KubernetesProgram], None],
    finish: Callable[[], Awaitable[None]],
) -> KubernetesProgram:
    """Start a program of the user, whose streams are the descriptors.

    When it has ended, ``forget`` is called, and :meth:`KubernetesProgram.wait` waits for
    ``finish``.
    """
    mark = os.urandom(8).hex()
    public = {
        name: value
        for name, value in request.environment.items()
        if _PUBLIC_VARIABLE.fullmatch(name)
    }
    secret = {name: value for name, value in request.environment.items() if name not in public}
    file = ""
    if secret:
        file = f"{RUN_DIRECTORY}/{mark}"
        await run_script(pod, WRITE_SCRIPT, file, data=render_exports(secret).encode())
    script = render_exports(public) + EXEC_SCRIPT + LOGIN_SCRIPT
    words = ("/bin/sh", "-c", MARK_SCRIPT, "danlu", mark, script, file, request.directory)
    process = await open_pod_exec(
        pod.client.transport,
        pod.namespace,
        pod.name,
        (*words, *request.args),
        container=CONTAINER,
        terminal=request.terminal,
    )
    return KubernetesProgram(pod, process, mark, descriptors, request.terminal, forget, finish)


class KubernetesProgram:
    """A program in a pod; its streams are copied while somebody waits for its end."""

    #: It runs on a node.
    pid: int | None = None

    def __init__(
        self,
        pod: EnvironmentPod,
        process: PodExec,
        mark: str,
        descriptors: ProgramDescriptors,
        terminal: bool,
        forget: Callable[[KubernetesProgram], None],
        finish: Callable[[], Awaitable[None]],
    ) -> None:
        self._pod = pod
        self._process = process
        self._mark = mark
        self._descriptors = descriptors
        self._terminal = terminal
        self._forget = forget
        self._finish = finish
        self._inside_pid = ""
        self._is_copying = False
        #: Whether the connection ended before the program.
        self.is_lost = False
        self._ended = anyio.Event()
        self._exit = ContainerExit(_KILLED_CODE, "Error")

    async def wait(self) -> ContainerExit:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if self._is_copying:
            await self._ended.wait()
            return self._exit
        self._is_copying = True
        try:
            self._exit = await self._copy_until_exit()
        finally:
            with anyio.CancelScope(shield=True):
                await self._process.close()
            self._descriptors.close()
            self._forget(self)
            self._ended.set()
        await self._finish()
        return self._exit

    async def _copy_until_exit(self) -> ContainerExit:
        try:
            await copy_streams(
                self._process,
                self._descriptors,
                terminal=self._terminal,
                reject_output=self._reject_output,
            )
            code = self._process.exit_code
        except ConnectionLost as error:
            self.is_lost = True
            return ContainerExit(_KILLED_CODE, CONNECTION_LOST, error.message)
        except OutsideError as error:
            return ContainerExit(FAILED_TO_START, "StartError", error.message)
        return ContainerExit(code, "Error" if code else "Completed")

    async def _reject_output(self) -> None:
        await self._signal_inside(signal.SIGPIPE)

    async def stop(self, *, grace: float) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._ended.is_set():
                await self._signal_inside(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self._ended.wait()
            if not self._ended.is_set():
                await self.kill_inside()
                with anyio.move_on_after(_KILL_TIMEOUT):
                    await self._ended.wait()
            if not self._ended.is_set():
                await self._process.close()

    async def send_signal(self, number: int) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if not self._ended.is_set():
            await self._signal_inside(number)

    async def notify_resize(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        if self._terminal and not self._ended.is_set():
            await send_terminal_size(self._process, self._descriptors.stdin)

    async def hang_up(self) -> None:
        """See :class:`~danlu.engine.types.EnvironmentProgram`."""
        await self._signal_inside(signal.SIGHUP, everything=True)

    async def kill_inside(self) -> None:
        """Kill the program and its descendants if it still runs."""
        await self._signal_inside(signal.SIGKILL, everything=True)

    async def _signal_inside(self, number: int, *, everything: bool = False) -> None:
        with suppress(DanluError):
            pid = await self._find_inside()
            if pid:
                scope = "session" if everything else ""
                await run_script(self._pod, KILL_SCRIPT, str(int(number)), pid, scope)

    async def _find_inside(self) -> str:
        """Return the program's process id in the pod; empty if it has ended."""
        if not self._inside_pid:
            found = (await run_script(self._pod, FIND_SCRIPT, self._mark)).split()
            self._inside_pid = found[0].decode() if found and found[0].isdigit() else ""
        return self._inside_pid
