"""Start another program in a running container."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from danlu.engine.cgroup import ContainerCgroup, enter_script
from danlu.engine.container_process import ContainerProcess, spawn_session
from danlu.engine.procfs import descendants, measure_usage
from danlu.engine.types import ContainerExit
from danlu.errors import MachineError
from danlu.sandbox import container_processes, runtime, runtime_spec
from danlu.sandbox.types import ProcessSpec

SHELL = "/bin/sh"
EXEC_ARGS = 'exec "$@"'


@dataclass(frozen=True)
class ExecTarget:
    """A running container: its bundle, and the control group that programs enter through a shell.

    ``group`` is None if there is none, or if the container has no shell.
    """

    runtime: runtime.OciRuntime
    bundle: Path
    main: ContainerProcess
    group: ContainerCgroup | None = None

    def start(
        self, process: ProcessSpec, *, stdin: int, stdout: int, stderr: int
    ) -> ContainerProcess:
        """Start ``process``, which is stopped together with the container.

        Raises :class:`MachineError` if the container has ended.
        """
        inside = container_processes.child_pids(self.main.keeper)
        if not inside:
            raise MachineError("the container has ended")
        procs_files = self.group.open_procs_files() if self.group else []
        try:
            file = _write_process_file(self.bundle, _enter_cgroup_first(process, len(procs_files)))
            command = self.runtime.exec_command(
                self.bundle, inside[0], process=file, descriptors=len(procs_files)
            )
            pid = spawn_session(
                command, stdin=stdin, stdout=stdout, stderr=stderr, more=procs_files
            )
        finally:
            close_descriptors(procs_files)
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
            measure=lambda: measure_usage(descendants(pid)),
            is_exec=True,
        )
        self.main.exec_processes.append(exec_process)
        return exec_process


def interpret_exit(code: int, log: Path, program: str) -> ContainerExit:
    """Turn the exit status of an OCI runtime into the container's exit."""
    code, reason = runtime.interpret_exit(code, log, program)
    if reason:
        return ContainerExit(code, "StartError", reason)
    return ContainerExit(code, "Error" if code else "Completed")


def close_descriptors(descriptors: Sequence[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def _enter_cgroup_first(process: ProcessSpec, count: int) -> ProcessSpec:
    """Make ``process`` enter a cgroup through its descriptors from 3 on."""
    if not count:
        return process
    script = f"{enter_script(count)}{EXEC_ARGS}"
    return msgspec.structs.replace(process, args=(SHELL, "-c", script, "danlu", *process.args))


def _write_process_file(bundle: Path, process: ProcessSpec) -> Path:
    """Write the runtime spec of another program to a new file in the bundle."""
    path = bundle / f"exec.{os.urandom(6).hex()}"
    data = msgspec.json.encode(runtime_spec.render_process(process))
    # Readable by its owner only: the environment may contain secrets.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    return path
