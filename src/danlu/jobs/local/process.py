"""Replicas as processes of this machine, each in a session of its own.

Each is killed by the kernel when its supervisor dies. At its end everything it left is killed too:
what is of its session or process group, and what carries its mark in the environment.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

import anyio

from danlu.errors import MachineError
from danlu.jobs.local import proc
from danlu.jobs.local.cgroup import Group, Groups, enter_script
from danlu.jobs.local.state import now
from danlu.jobs.local.types import Container, Exit, Running, Usage

__all__ = ["MARK", "ProcessEngine"]

MARK = "DANLU_REPLICA"
"""The variable that marks the processes of one attempt at a replica."""

_ROUND = 0.01
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class ProcessEngine:
    """Runs containers as processes.

    ``orphanage`` is the process that the kernel gives those to whose parent died, where that is
    known to be one of ours (the keeper).
    """

    def __init__(self, *, orphanage: int | None = None) -> None:
        self._orphanage = orphanage
        self._running: set[_Process] = set()
        self._groups: Groups | None = None
        self._warnings: dict[str, None] = {}

    def warnings(self) -> Sequence[str]:
        """What of the containers started so far could not be kept."""
        return tuple(self._warnings)

    async def start(self, container: Container, *, output: int) -> Running:
        """Start a process; one that cannot be is a :class:`Running` that has ended already."""
        environment = _environment(container, container.environment)
        refused = _refused(container, environment)
        if refused is not None:
            return _NeverRan(refused)
        self._note_mounts(container)
        group = self._group(container)
        with open(os.devnull, "rb") as nothing:
            pid = _spawn(
                container.args,
                environment,
                directory=container.directory,
                streams=(nothing.fileno(), output, output),
                entrances=group.entrances() if group else [],
            )
        return self._watch(_Process(pid, container, self._orphanage, group))

    async def exec(
        self,
        running: Running,
        args: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> Running:
        """Run a further program for the same replica, which ends with the first one.

        What it leaves behind is left: MPI's daemon goes to the background.
        """
        assert isinstance(running, _Process)
        container = running.container
        pid = _spawn(
            args,
            _environment(container, {**container.environment, **environment}),
            directory=container.directory,
            streams=(stdin, stdout, stderr),
            entrances=running.group.entrances() if running.group else [],
        )
        process = _Process(pid, container, self._orphanage, None, beside=True)
        running.others.append(process)
        return self._watch(process)

    async def close(self) -> None:
        """End what still runs."""
        for one in list(self._running):
            await one.end(grace=0)
        if self._groups is not None:
            self._groups.close()

    def _watch(self, process: _Process) -> _Process:
        self._running.add(process)
        process.on_gone = partial(self._running.discard, process)
        return process

    def _group(self, container: Container) -> Group | None:
        limits = container.limits
        if limits.cpu is None and limits.memory is None:
            return None
        if self._groups is None:
            self._groups = Groups.find()
        if self._groups.missing:
            self._warnings[f"resources: not enforced: {self._groups.missing}"] = None
        return self._groups.make(container.mark, limits)

    def _note_mounts(self, container: Container) -> None:
        for one in container.volumes:
            # A pod asks for a large /dev/shm in this way; a process has the machine's.
            if one.target not in (str(one.source), "/dev/shm"):
                text = f"volumes: not mounted for processes: {one.target} (it is {one.source})"
                self._warnings[text] = None


class _Process:
    """A process that was started, and all that belongs to it."""

    def __init__(
        self,
        pid: int,
        container: Container,
        orphanage: int | None,
        group: Group | None,
        *,
        beside: bool = False,
    ) -> None:
        self.container = container
        self.group = group
        self.others: list[_Process] = []
        self.on_gone: Callable[[], None] = lambda: None
        self._pid = pid
        # What runs beside another has its mark too, which then tells nothing.
        self._mark = b"" if beside else f"{MARK}={container.mark}".encode()
        self._to_clear = not beside
        self._orphanage = orphanage
        self._descriptor = os.pidfd_open(pid)
        self._ended = anyio.Event()
        self._end: tuple[int, datetime] = (0, now())
        self._exit: Exit | None = None
        self._clearing = anyio.Lock()
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._pid

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self._pid, 0)
        self._end = os.waitstatus_to_exitcode(status), now()
        self._ended.set()

    async def wait(self) -> Exit:
        """Its end, with nothing left of it."""
        await self._ended.wait()
        async with self._clearing:
            if self._exit is None:
                if self._to_clear:
                    await self._clear()
                self._exit = self._outcome()
                if self.group is not None:
                    self.group.close()
                self.on_gone()
        return self._exit

    async def _clear(self) -> None:
        for other in self.others:
            await other.end(grace=0)
        while left := self._members():
            proc.kill(left)
            await anyio.sleep(_ROUND)

    def _outcome(self) -> Exit:
        code, time = self._end
        code = 128 - code if code < 0 else code
        if code and self.group is not None and self.group.memory_ran_out():
            return Exit(code, "OOMKilled", "it used more memory than its limit", time)
        return Exit(code, "Error" if code else "Completed", "", time)

    def _members(self) -> list[int]:
        # Once the keeper is dead orphans go to whoever comes next.
        known = self._orphanage if self._orphanage == os.getppid() else None
        return proc.members(self._pid, self._mark, orphanage=known)

    async def end(self, *, grace: float) -> None:
        """Ask it to end, and see to it."""
        with anyio.CancelScope(shield=True):
            if grace > 0 and not self._ended.is_set():
                proc.kill([self._pid], signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self._ended.wait()
            self._to_clear = True
            if not self._ended.is_set():
                proc.kill(self._members())
            await self.wait()

    def usage(self) -> Usage | None:
        """What its processes use now."""
        if self._ended.is_set():
            return None
        if self.group is not None and (used := self.group.usage()):
            return used
        return proc.usage([self._pid, *proc.descendants(self._pid)])


class _NeverRan:
    """What could not be started."""

    def __init__(self, exit: Exit) -> None:
        self._exit = exit

    @property
    def pid(self) -> int | None:
        """None."""
        return None

    async def wait(self) -> Exit:
        """Why it could not."""
        return self._exit

    async def end(self, *, grace: float) -> None:
        """Nothing to end."""

    def usage(self) -> Usage | None:
        """Nothing used."""
        return None


def _environment(container: Container, variables: Mapping[str, str]) -> dict[str, str]:
    found = {**os.environ, **variables, MARK: container.mark}
    if container.limits.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in container.limits.gpus)
    return found


def _refused(container: Container, environment: Mapping[str, str]) -> Exit | None:
    """Why a container cannot be started as a process; the codes are a shell's."""
    if not container.args:
        why = f"the container {container.name!r} has no command, and no image to take one from"
        return Exit(_NOT_FOUND, "StartError", why, now())
    if not os.path.isdir(container.directory):
        why = f"the working directory {container.directory} is not there"
        return Exit(_NOT_FOUND, "StartError", why, now())
    program = container.args[0]
    place = os.path.join(container.directory, program) if "/" in program else program
    if shutil.which(place, path=environment.get("PATH")):
        return None
    if "/" in program and os.path.exists(place):
        return Exit(_NOT_EXECUTABLE, "StartError", f"{program} cannot be executed", now())
    return Exit(_NOT_FOUND, "StartError", f"there is no program {program}", now())


def _spawn(
    args: Sequence[str],
    environment: Mapping[str, str],
    *,
    directory: str,
    streams: tuple[int, int, int],
    entrances: Sequence[int],
) -> int:
    """Start a program in a session of its own, killed when the supervisor dies; its pid.

    ``entrances`` are those of its control group, closed here. Raises :class:`MachineError`.
    """
    # Above what they become: one must not be overwritten before it is copied itself.
    sources = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 16) for one in (*streams, *entrances)]
    actions = [(os.POSIX_SPAWN_DUP2, one, target) for target, one in enumerate(sources)]
    script = f'cd -- "$1" || exit 127; shift; {enter_script(len(entrances))}'
    command = [*_dying_with_us(), "/bin/sh", "-c", _with_program(script), "sh", directory, *args]
    try:
        return os.posix_spawn(
            command[0], command, environment, file_actions=actions, setsid=True, setsigdef=_SIGNALS
        )
    except OSError as error:
        raise MachineError(f"no process could be started: {error.strerror}") from error
    finally:
        for one in (*sources, *entrances):
            with suppress(OSError):
                os.close(one)


_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def _with_program(script: str) -> str:
    # enter_script ends in `exec 3>&-; `: the program then takes the shell's place.
    return f'{script}exec "$@"'


def _dying_with_us() -> list[str]:
    """What has the kernel kill a program when we die (prctl(2), PR_SET_PDEATHSIG)."""
    wrapper = shutil.which("setpriv")
    return [wrapper, "--pdeathsig", "KILL", "--"] if wrapper else []
