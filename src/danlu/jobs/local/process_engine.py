"""Run replicas as processes of the host, each in its own session.

The kernel kills each process if the supervisor dies. When a replica ends, everything it left is
killed, too: the processes of its session and process groups, and those with its mark in their
environment.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio

from danlu.engine.types import RunningContainer
from danlu.errors import MachineError
from danlu.jobs.local.job_directory import utc_now
from danlu.jobs.local.pod import ReplicaContainer
from danlu.sandbox import procfs
from danlu.sandbox.launcher.cgroup import (
    CgroupManager,
    ContainerCgroup,
    enter_script,
    open_procs_files,
)
from danlu.sandbox.launcher.spawned_process import SpawnedProcess
from danlu.sandbox.launcher.stop_signals import DEFAULT_SIGNALS
from danlu.sandbox.types import ContainerExit, ResourceUsage
from danlu.util.pdeathsig import with_parent_death_signal
from danlu.util.process_tree import send_signal
from danlu.util.spawn import spawn_process

MARK_VARIABLE = "DANLU_REPLICA"
"""Variable that marks the processes of one attempt at a replica."""

_POLL_SECONDS = 0.01
_EXIT_NOT_FOUND, _EXIT_NOT_EXECUTABLE = 127, 126


class ProcessEngine:
    """Runs containers as processes.

    ``orphanage`` is the process (the reaper) to which the kernel reparents the job's orphans, if
    there is one.
    """

    def __init__(self, *, orphanage: int | None = None) -> None:
        self._orphanage = orphanage
        self._running: set[_HostProcess] = set()
        self._cgroups: CgroupManager | None = None
        self._warnings: dict[str, None] = {}

    def warnings(self) -> Sequence[str]:
        """Return limits that are not enforced and volumes that are not mounted."""
        return tuple(self._warnings)

    async def start(self, container: ReplicaContainer, *, output: int) -> RunningContainer:
        """Start a process; if that is impossible, return one that has already failed."""
        environment = _build_environment(container)
        failure = _check_startable(container, environment)
        if failure is not None:
            return _FailedStart(failure)
        self._warn_about_mounts(container)
        group = self._create_cgroup(container)
        streams = None, output, output
        pid = _spawn_process(container.args, environment, container.directory, streams, group)
        return _HostProcess(pid, container, self._orphanage, group, self._running)

    async def exec(
        self,
        running: RunningContainer,
        args: Sequence[str],
        streams: tuple[int, int, int],
    ) -> RunningContainer:
        """Run another program for the same replica; it is stopped with the first one.

        Processes that it leaves are not killed when it exits: MPI's daemon moves to the background.
        """
        assert isinstance(running, _HostProcess)
        container = running.container
        environment = _build_environment(container)
        pid = _spawn_process(args, environment, container.directory, streams, running.group)
        process = _HostProcess(pid, container, self._orphanage, None, self._running, is_exec=True)
        running.exec_processes.append(process)
        return process

    async def close(self) -> None:
        """Kill what still runs."""
        for process in list(self._running):
            await process.stop(grace=0)
        if self._cgroups is not None:
            self._cgroups.close()

    def _create_cgroup(self, container: ReplicaContainer) -> ContainerCgroup | None:
        limits = container.limits
        if limits.cpu is None and limits.memory is None:
            return None
        if self._cgroups is None:
            self._cgroups = CgroupManager.detect()
        if warning := self._cgroups.explain_missing(limits):
            self._warnings[warning] = None
        return self._cgroups.create(container.mark, limits)

    def _warn_about_mounts(self, container: ReplicaContainer) -> None:
        for volume in container.volumes:
            # Pods mount an emptyDir at /dev/shm to enlarge it; a process uses the host's.
            if volume.target not in (str(volume.source), "/dev/shm"):
                text = (
                    f"volumes: not mounted for processes: {volume.target};"
                    f" in commands and variables it is {volume.source}"
                )
                self._warnings[text] = None


class _HostProcess(SpawnedProcess):
    """A started process and its descendants, in the set ``running`` until all have ended."""

    def __init__(
        self,
        pid: int,
        container: ReplicaContainer,
        orphanage: int | None,
        group: ContainerCgroup | None,
        running: set[_HostProcess],
        *,
        is_exec: bool = False,
    ) -> None:
        super().__init__(pid, group)
        running.add(self)
        self._running = running
        self.container = container
        self.exec_processes: list[_HostProcess] = []
        # An exec has the same mark as its replica, so the mark does not tell its processes apart.
        self._mark = b"" if is_exec else f"{MARK_VARIABLE}={container.mark}".encode()
        self._kills_leftovers = not is_exec
        self._orphanage = orphanage

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self.child

    def _find_program(self) -> int | None:
        return self.child

    def _send_stop_signal(self, number: int) -> None:
        send_signal([self.child], number)

    async def _kill_all(self) -> None:
        self._kills_leftovers = True
        if not self._ended.is_set():
            send_signal(self._own_processes())

    async def _collect_exit(self) -> ContainerExit:
        for process in self.exec_processes:
            await process.stop(grace=0)
        while self._kills_leftovers and (pids := self._own_processes()):
            send_signal(pids)
            await anyio.sleep(_POLL_SECONDS)
        code = self._end[0]
        reason = "Error" if code else "Completed"
        if code < 0:
            code = 128 - code
            with suppress(ValueError):  # real-time signals have no names
                reason = signal.Signals(code - 128).name
        exit = self._describe_exit(code, reason)
        if self.group is not None:
            self.group.close()
        self._running.discard(self)
        return exit

    def _own_processes(self) -> list[int]:
        # If the reaper died, the kernel reparents orphans to some other process.
        orphanage = self._orphanage if self._orphanage == os.getppid() else None
        return procfs.find_processes(self.child, self._mark, orphanage=orphanage)


class _FailedStart:
    """A container that could not be started."""

    def __init__(self, exit: ContainerExit) -> None:
        self._exit = exit

    @property
    def pid(self) -> int | None:
        """None, because no process was started."""
        return None

    async def wait(self) -> ContainerExit:
        """Return why it could not be started."""
        return self._exit

    async def stop(self, *, grace: float) -> None:
        """Do nothing."""

    def usage(self) -> ResourceUsage | None:
        """Return None."""
        return None


def _build_environment(container: ReplicaContainer) -> dict[str, str]:
    environment = {
        **container.defaults,
        **os.environ,
        **container.environment,
        MARK_VARIABLE: container.mark,
    }
    if container.limits.gpus:
        gpus = ",".join(str(gpu) for gpu in container.limits.gpus)
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    return environment


def _check_startable(
    container: ReplicaContainer, environment: Mapping[str, str]
) -> ContainerExit | None:
    """Return why a container cannot be started as a process, with a shell's exit codes."""
    if not container.args:
        error = f"container {container.name!r} has no command, and no image to take one from"
        return _start_error(_EXIT_NOT_FOUND, error)
    if not os.path.isdir(container.directory):
        error = f"working directory {container.directory} not found"
        return _start_error(_EXIT_NOT_FOUND, error)
    program = container.args[0]
    path = os.path.join(container.directory, program) if "/" in program else program
    if shutil.which(path, path=environment.get("PATH")):
        return None
    if "/" in program and os.path.exists(path):
        return _start_error(_EXIT_NOT_EXECUTABLE, f"program {program} is not executable")
    return _start_error(_EXIT_NOT_FOUND, f"program {program} not found")


def _start_error(code: int, message: str) -> ContainerExit:
    return ContainerExit(code, "StartError", message, utc_now())


def _spawn_process(
    args: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    streams: Sequence[int | None],
    group: ContainerCgroup | None,
) -> int:
    """Start a program in a new session; return its process id. Raises :class:`MachineError`."""
    with open_procs_files(group) as procs_files:
        script = f'cd -- "$1" || exit 127; shift; {enter_script(len(procs_files))}exec "$@"'
        command = ("/bin/sh", "-c", script, "sh", directory, *args)
        try:
            return spawn_process(
                with_parent_death_signal(command),
                (*streams, *procs_files),
                environment=environment,
                new_session=True,
                default_signals=DEFAULT_SIGNALS,
            )
        except OSError as error:
            raise MachineError(f"cannot start a process: {error.strerror}") from error
