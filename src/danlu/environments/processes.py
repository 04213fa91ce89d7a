"""The processes of a running environment, and what they use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import (
    RELAY_MARK,
    WAIT_SCRIPT,
    WAITING_COMMANDS,
    WAITING_MARK,
    EnvironmentDirectory,
    EnvironmentState,
)
from danlu.engine.exec_connection import ExecConnection
from danlu.engine.gpu.usage import GpuMeter, GpuUsage
from danlu.engine.registry import find_engine
from danlu.engine.resource_allocator import ledger_file, read_gpu_owners
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError
from danlu.sandbox.procfs import find_namespace_members, measure_usage, read_command
from danlu.sandbox.types import ResourceUsage
from danlu.util.process_tree import list_descendants

_SAMPLE_SECONDS = 0.5
_MAX_OUTPUT = 8 << 20
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
# All processes: a line of proc(5)'s stat, then the command line.
_LIST_SCRIPT = r"""for directory in /proc/[0-9]*; do
    [ "$directory" != "/proc/$$" ] && read -r stat <"$directory/stat" || continue
    echo "$stat"; tr '\0\n' '  ' <"$directory/cmdline"; echo
  done 2>/dev/null
"""
# Two samples.
_SAMPLE_SCRIPT = rf"""for sample in 1 2; do
  {_LIST_SCRIPT}
  [ $sample = 2 ] || {{ echo; sleep 0.5; }}
done"""


@dataclass(frozen=True)
class ProcessRow:
    """A process of an environment: process id, cores used, bytes of memory, command line.

    The process id is that on this machine, or inside if the container's engine hides it.
    ``gpu_memory`` are the bytes that it uses on each GPU, by index.
    """

    pid: int
    cpu: float
    memory: int
    command: str
    gpu_memory: Mapping[int, int] = field(default_factory=dict)


def list_user_programs(environment: EnvironmentDirectory) -> list[str]:
    """Return the commands that stopping would end, services and waiting processes aside.

    Empty if an engine that hides its processes cannot be reached.
    """
    state = environment.read_state()
    if state.container is None:
        return _list_inside(environment)
    services = {service.pid for service in state.services if service.pid is not None}
    served = {pid for service in services for pid in (service, *list_descendants(service))}
    commands = [
        read_command(pid)
        for pid in find_namespace_members(state.container)
        if pid not in served and pid != state.container
    ]
    return [command for command in commands if not _is_own(command)]


def _list_inside(environment: EnvironmentDirectory) -> list[str]:
    request = ExecRequest(("/bin/sh", "-c", _LIST_SCRIPT))
    services = {" ".join(service.args) for service in environment.read_spec().services}
    try:
        output = _capture_output(environment, request).decode(errors="replace")
    except DanluError:  # it cannot be reached, and is stopped all the same
        return []
    commands = [row.command for row in parse_processes(output)]
    return [item for item in commands if item not in services and not _is_own(item)]


def _is_own(command: str) -> bool:
    """Return whether danlu started a command only to wait, or to relay connections."""
    own = WAITING_MARK, RELAY_MARK, WAIT_SCRIPT
    return not command or command in WAITING_COMMANDS or any(mark in command for mark in own)


def measure_processes(environment: EnvironmentDirectory) -> list[ProcessRow]:
    """Return the processes of a running environment, by memory; CPU is measured for 0.5 s.

    Raises :class:`~danlu.errors.UsageError` if the environment does not run.
    """
    state = environment.read_state()
    rows = _measure_members(state) or _measure_inside(environment)
    return sorted(rows, key=lambda row: -row.memory)


def add_gpu_usage(
    environment: EnvironmentDirectory, rows: Sequence[ProcessRow]
) -> tuple[list[ProcessRow], list[GpuUsage]]:
    """Return the processes with their memory on GPUs, and the GPUs that the environment has.

    These are those assigned to it, and those that its processes use. No GPUs if it was started
    without, or in another place than this machine.
    """
    spec = environment.read_spec()
    if not spec.gpus or find_engine(spec.engine).features.gpus != "host":
        return list(rows), []
    assigned = read_gpu_owners(ledger_file()).get(environment.directory, ())
    pids = {row.pid for row in rows}
    gpus = [
        gpu
        for gpu in GpuMeter().measure()
        if gpu.index in assigned or not pids.isdisjoint(gpu.processes)
    ]
    used = [
        {gpu.index: gpu.processes[row.pid] for gpu in gpus if row.pid in gpu.processes}
        for row in rows
    ]
    return [replace(row, gpu_memory=memory) for row, memory in zip(rows, used, strict=True)], gpus


def _measure_members(state: EnvironmentState) -> list[ProcessRow]:
    """Measure the processes that share the namespace of the container's first process."""
    members = [] if state.container is None else find_namespace_members(state.container)
    before = {pid: measure_usage([pid]) for pid in members}
    if before:
        time.sleep(_SAMPLE_SECONDS)
    rows = []
    for pid, earlier in before.items():
        now = measure_usage([pid])
        if now is not None:
            rows.append(ProcessRow(pid, _core_share(earlier, now), now.memory, read_command(pid)))
    return rows


def _core_share(earlier: ResourceUsage | None, now: ResourceUsage) -> float:
    return (now.cpu - earlier.cpu) / _SAMPLE_SECONDS if earlier is not None else 0.0


def _measure_inside(environment: EnvironmentDirectory) -> list[ProcessRow]:
    """Measure the processes with a program in the container."""
    request = ExecRequest(("/bin/sh", "-c", _SAMPLE_SCRIPT))
    output = _capture_output(environment, request).decode(errors="replace")
    first, _, second = output.partition("\n\n")
    before = {row.pid: row.cpu for row in parse_processes(first)}
    return [
        ProcessRow(
            row.pid,
            max(0.0, row.cpu - before.get(row.pid, row.cpu)) / _SAMPLE_SECONDS,
            row.memory,
            row.command,
        )
        for row in parse_processes(second)
        if not _is_own(row.command)
    ]


def parse_processes(text: str) -> Iterator[ProcessRow]:
    """Parse pairs of lines: a process's ``stat`` of proc(5), and its command line.

    ``cpu`` of the rows are seconds since the process started. Other lines are skipped: a process
    may have any name.
    """
    lines = text.splitlines()
    for stat, command in zip(lines[::2], lines[1::2], strict=False):
        pid, fields = stat.partition(" ")[0], stat.rpartition(")")[2].split()
        numbers = [fields[place] for place in (11, 12, 21)] if len(fields) > 21 else []
        if numbers and all(word.isascii() and word.isdigit() for word in (pid, *numbers)):
            user, system, pages = map(int, numbers)
            cpu = (user + system) / _TICKS_PER_SECOND
            yield ProcessRow(int(pid), cpu, pages * _PAGE_SIZE, command.strip())


def _capture_output(environment: EnvironmentDirectory, request: ExecRequest) -> bytes:
    """Return what a program prints, at most 8 MiB."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        connection = ExecConnection.open(
            environment.directory, encode_exec(request), (null, writing, null)
        )
    except DanluError:
        os.close(reading)
        raise
    finally:
        # Only the program's copy is left, so reading ends with it.
        os.close(writing)
        os.close(null)
    with open(reading, "rb") as file:
        output = file.read(_MAX_OUTPUT)
    connection.close()
    return output
