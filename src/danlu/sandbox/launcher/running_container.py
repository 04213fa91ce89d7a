"""A started container, in which other programs can be started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sandbox import runtime_spec
from danlu.sandbox.launcher.cgroup import enter_script, open_procs_files
from danlu.sandbox.launcher.container import EXEC_ARGS, PreparedContainer
from danlu.sandbox.launcher.container_process import ContainerProcess
from danlu.sandbox.launcher.spawned_process import spawn_session
from danlu.sandbox.prepare import wrap_in_shell
from danlu.sandbox.types import ProcessSpec
from danlu.util.process_tree import child_pids


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
