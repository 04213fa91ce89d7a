"""The programs of a container as processes of the host: the first one, and others next to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from danlu.errors import MachineError
from danlu.sandbox import container_processes, procfs, runtime, runtime_spec
from danlu.sandbox.launcher import waiting_shell
from danlu.sandbox.launcher.cgroup import ContainerCgroup, enter_script, open_procs_files
from danlu.sandbox.launcher.container import EXEC_ARGS, PreparedContainer
from danlu.sandbox.launcher.spawned_process import SpawnedProcess, spawn_session
from danlu.sandbox.prepare import wrap_in_shell
from danlu.sandbox.types import ContainerExit, ProcessSpec
from danlu.util.process_tree import child_pids, list_descendants, send_signal

# Seconds for the last output of a killed program, and for the OCI runtime to start one.
_DRAIN_TIMEOUT, _START_TIMEOUT = 1.0, 30.0
_POLL_SECONDS = 0.004
_MAX_SEARCHES = 20


class ContainerProcess(SpawnedProcess):
    """A started program; the child process is the keeper that waits for it.

    ``log`` is the runtime's, for ``program``, which may not have been found. ``release`` is called
    once in a thread when all is over. After ``kill_timeout`` seconds a killed container is given
    up, which a process in uninterruptible sleep (proc(5), state D) keeps alive. With ``is_exec``
    the program runs next to the container's first process, so stopping it only kills its own
    descendants.
    """

    def __init__(
        self,
        keeper: int,
        *,
        log: Path,
        program: str,
        group: ContainerCgroup | None = None,
        release: Callable[[], None] = lambda: None,
        kill_timeout: float = inf,
        is_exec: bool = False,
    ) -> None:
        super().__init__(keeper, group)
        self.exec_processes: list[ContainerProcess] = []
        self._log = log
        self._program = program
        self._release = release
        self._kill_timeout = kill_timeout
        self._is_exec = is_exec
        self._killed = 0

    @property
    def pid(self) -> int | None:
        """See :class:`SpawnedProcess`."""
        return container_processes.find_container_init(self.child)

    async def wait_for_start(self) -> None:
        """Wait until the runtime has started the program, or it has ended."""
        with anyio.move_on_after(_START_TIMEOUT):
            while not self._ended.is_set() and not container_processes.is_program_running(
                self.child
            ):
                await anyio.sleep(_POLL_SECONDS)

    async def send_signal(self, number: int) -> None:
        """Send a signal to the program; do nothing if it has ended."""
        if (program := self.pid) is not None:
            send_signal([program], number)

    async def notify_resize(self) -> None:
        """Signal the OCI runtime, which copies the size of our terminal to the program's."""
        send_signal(child_pids(self.child)[:1], signal.SIGWINCH)

    async def hang_up(self) -> None:
        """Send SIGHUP to the program's session, as when its terminal is closed."""
        program = self.pid
        if program is None:
            return
        reached: set[int] = set()
        # Again for those that were forked while the others were searched for.
        for _ in range(_MAX_SEARCHES):
            found = set(procfs.find_processes(program, b"", orphanage=None)) - reached
            if not found:
                break
            send_signal(found, signal.SIGHUP)
            reached |= found

    async def _collect_exit(self) -> ContainerExit:
        for process in tuple(self.exec_processes):
            await process.stop(grace=0)
        return await to_thread.run_sync(self._interpret_exit)

    def _interpret_exit(self) -> ContainerExit:
        status = -self._killed if self._killed else self._end[0]
        code, failure = runtime.interpret_exit(status, self._log, self._program)
        reason = "StartError" if failure else "Error" if code else "Completed"
        exit = self._describe_exit(code, reason, failure)
        self._release()
        return exit

    def _find_program(self) -> int | None:
        return self.pid if self._is_exec else waiting_shell.find_program(self.child)

    def _send_stop_signal(self, number: int) -> None:
        if not self._is_exec:
            if not waiting_shell.send_signal(self.child, number):
                self._killed = number
        elif (program := self.pid) is not None:
            send_signal([program], number)

    async def _kill_all(self) -> None:
        if self._ended.is_set():
            return
        # Kill the program before its keeper, which then still passes on its last output.
        send_signal(self._own_processes())
        with anyio.move_on_after(_DRAIN_TIMEOUT):
            await self._ended.wait()
            return
        if self._is_exec:
            # Spare the keeper: it must reap the runtime, which the PID namespace would wait for.
            send_signal(list_descendants(self.child))
            return
        container_processes.kill_container(self.child)
        with anyio.move_on_after(self._kill_timeout):
            await self._ended.wait()
            return
        send_signal([self.child])

    def _own_processes(self) -> list[int]:
        program = self.pid
        if program is None:
            return []
        # Killing the first process of a PID namespace kills all its processes.
        return [program, *(list_descendants(program) if self._is_exec else ())]


class StartedContainer(ContainerProcess):
    """The first process of a container, with three descriptors as its streams (None: /dev/null).

    Its end is the container's, and ``release`` is then called in a thread. With ``exec_script`` the
    container is there for other programs: it has a shell, which starts them with this script, and
    they get the caller's pipes and files themselves. A terminal can only be read without a
    ``new_session``.
    """

    def __init__(
        self,
        prepared: PreparedContainer,
        streams: Sequence[int | None],
        *,
        exec_script: str = "",
        release: Callable[[], None] = lambda: None,
        new_session: bool = True,
        kill_timeout: float = inf,
    ) -> None:
        with prepared.open_command() as (command, procs_files):
            keeper = spawn_session(command, (*streams, *procs_files), new_session=new_session)
        super().__init__(
            keeper,
            log=prepared.log,
            program=prepared.process.args[0],
            # The kernel may have killed any program in it, at any time.
            group=None if exec_script else prepared.group,
            release=release,
            kill_timeout=kill_timeout,
        )
        self.prepared = prepared
        self._exec_script = exec_script

    def start_program(
        self, process: ProcessSpec, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        """Start ``process`` next to the first one; it is stopped together with the container.

        Raises :class:`MachineError` if the container has ended.
        """
        inside = child_pids(self.child)
        if not inside:
            raise MachineError("the container has ended")
        bundle = self.prepared.bundle
        streams = (stdin, stdout, stderr)
        passed = self._choose_passed_streams(process, streams)
        own = [None if number in passed else stream for number, stream in enumerate(streams)]
        if process.terminal:
            own[2] = None  # of the runtime's errors, which are in its log
        group = self.prepared.group if self.prepared.enters_inside else None
        with open_procs_files(group) as procs_files:
            more = [*procs_files, *(streams[number] for number in passed)]
            script = enter_script(len(procs_files)) + _take_streams(passed, len(procs_files))
            script += self._exec_script or (EXEC_ARGS if script else "")
            wrapped = wrap_in_shell(process, script) if script else process
            file = _write_process_file(bundle, wrapped)
            command = self.prepared.runtime.exec_command(
                bundle, inside[0], process=file, descriptors=len(more)
            )
            keeper = spawn_session(command, (*own, *more))
        log = Path(f"{file}.log")

        def release() -> None:
            for path in (file, log):
                path.unlink(missing_ok=True)
            self.exec_processes.remove(exec_process)

        exec_process = ContainerProcess(
            keeper, log=log, program=process.args[0], release=release, is_exec=True
        )
        self.exec_processes.append(exec_process)
        return exec_process

    def _choose_passed_streams(self, process: ProcessSpec, streams: Sequence[int]) -> list[int]:
        """Return which streams the program gets as they are, instead of copies by the runtime.

        runc copies until all programs have closed their pipes: it would outlive the program as long
        as something runs in the background. No terminal of the host is passed on, because programs
        could put input into it (TIOCSTI).
        """
        if not self._exec_script or process.terminal:
            return []
        return [number for number, stream in enumerate(streams) if not os.isatty(stream)]


def _take_streams(passed: Sequence[int], before: int) -> str:
    """Return shell code that turns descriptors behind ``before`` others into ``passed``."""
    numbers = {3 + before + position: stream for position, stream in enumerate(passed)}
    taking = "".join(f" {stream}<&{number} {number}<&-" for number, stream in numbers.items())
    return f"exec{taking}; " if passed else ""


def _write_process_file(bundle: Path, process: ProcessSpec) -> Path:
    """Write the runtime spec of another program to a new file in the bundle."""
    path = bundle / f"exec.{os.urandom(6).hex()}"
    data = msgspec.json.encode(runtime_spec.render_process(process))
    # Readable by its owner only: the environment may contain secrets.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
