"""Start another program in a running container."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from danlu.engine.cgroup import ContainerCgroup, enter_script, open_procs_files
from danlu.engine.container_process import ContainerProcess, spawn_session
from danlu.engine.container_scripts import EXEC_SCRIPT
from danlu.engine.procfs import measure_usage
from danlu.engine.types import ContainerExit
from danlu.errors import MachineError
from danlu.sandbox import runtime, runtime_spec
from danlu.sandbox.types import ProcessSpec
from danlu.util.process_tree import child_pids, list_descendants

SHELL = "/bin/sh"
EXEC_ARGS = 'exec "$@"'


@dataclass(frozen=True)
class ExecTarget:
    """A running container: its bundle, and the control group that programs enter through a shell.

    ``group`` is None without a control group, or if the container has no shell. With
    ``passes_streams`` it must have one: programs get the caller's pipes and files themselves.
    """

    runtime: runtime.OciRuntime
    bundle: Path
    main: ContainerProcess
    group: ContainerCgroup | None = None
    passes_streams: bool = False

    def start(
        self, process: ProcessSpec, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        """Start ``process``, which is stopped together with the container.

        Raises :class:`MachineError` if the container has ended.
        """
        inside = child_pids(self.main.keeper)
        if not inside:
            raise MachineError("the container has ended")
        streams = (stdin, stdout, stderr)
        passed = self._choose_passed_streams(process, streams)
        own = [None if number in passed else stream for number, stream in enumerate(streams)]
        if process.terminal:
            own[2] = None  # of the runtime's errors, which are in its log
        with open_procs_files(self.group) as procs_files:
            more = [*procs_files, *(streams[number] for number in passed)]
            script = enter_script(len(procs_files)) + _take_streams(passed, len(procs_files))
            run = EXEC_SCRIPT if self.passes_streams else EXEC_ARGS if script else ""
            file = _write_process_file(self.bundle, _run_first(script + run, process))
            command = self.runtime.exec_command(
                self.bundle, inside[0], process=file, descriptors=len(more)
            )
            pid = spawn_session(command, (*own, *more))
        program = process.args[0]

        def finish(code: int) -> ContainerExit:
            exit = interpret_exit(code, Path(f"{file}.log"), program)
            for path in (file, Path(f"{file}.log")):
                path.unlink(missing_ok=True)
            self.main.exec_processes.remove(exec_process)
            return exit

        exec_process = ContainerProcess(
            pid,
            finish=finish,
            measure=lambda: measure_usage(list_descendants(pid)),
            is_exec=True,
        )
        self.main.exec_processes.append(exec_process)
        return exec_process

    def _choose_passed_streams(self, process: ProcessSpec, streams: Sequence[int]) -> list[int]:
        """Return which streams the program gets as they are, instead of copies by the runtime.

        runc copies until all programs have closed their pipes: it would outlive the program as long
        as something runs in the background. No terminal of the host is passed on, because programs
        could put input into it (TIOCSTI).
        """
        if not self.passes_streams or process.terminal:
            return []
        return [number for number, stream in enumerate(streams) if not os.isatty(stream)]


def interpret_exit(code: int, log: Path, program: str) -> ContainerExit:
    """Turn the exit status of an OCI runtime into the container's exit."""
    code, reason = runtime.interpret_exit(code, log, program)
    if reason:
        return ContainerExit(code, "StartError", reason)
    return ContainerExit(code, "Error" if code else "Completed")


def _take_streams(passed: Sequence[int], before: int) -> str:
    """Return shell code that turns descriptors behind ``before`` others into ``passed``."""
    numbers = {3 + before + position: stream for position, stream in enumerate(passed)}
    taking = "".join(f" {stream}<&{number} {number}<&-" for number, stream in numbers.items())
    return f"exec{taking}; " if passed else ""


def _run_first(script: str, process: ProcessSpec) -> ProcessSpec:
    """Make a shell start ``process`` with ``script``, if that is not empty."""
    if not script:
        return process
    return msgspec.structs.replace(process, args=(SHELL, "-c", script, "danlu", *process.args))


def _write_process_file(bundle: Path, process: ProcessSpec) -> Path:
    """Write the runtime spec of another program to a new file in the bundle."""
    path = bundle / f"exec.{os.urandom(6).hex()}"
    data = msgspec.json.encode(runtime_spec.render_process(process))
    # Readable by its owner only: the environment may contain secrets.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
