"""Control groups: limits of CPU and memory, what was used, and whether memory ran out.

Both versions are spoken: each controller is looked for where version 1 mounts it, else in
version 2's one tree (kernel documentation, admin-guide/cgroup-v1 and cgroup-v2). Groups lie below
the supervisor's own, so what limits it limits them too. Their names tell which supervisor made
them, and a later one removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from danlu.errors import MachineError
from danlu.jobs.local.cgroupplaces import (
    Place,
    find_places,
    group_name,
    is_abandoned,
    read,
    write,
)
from danlu.jobs.local.types import Limits, Usage

__all__ = ["Group", "Groups", "enter_script"]

_PERIOD = 100_000
#: The first descriptor of those a program is given to enter its group by.
_FIRST = 3


class Groups:
    """Where this process can make control groups; found before namespaces are entered.

    A sandbox hides the tree, so the directories are held open. ``missing`` says what of CPU and
    memory cannot be limited, and why; nothing where both can be.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = tuple(dict.fromkeys(places.values()))
        lacking = [name for name in ("cpu", "memory") if name not in places]
        self.missing = f"no control group for {' and '.join(lacking)} here" if lacking else ""

    @classmethod
    def find(cls, process: str = "/proc/self") -> Groups:
        """What there is; tries it, and removes groups of supervisors that are dead.

        ``process`` is where the kernel says in which groups this process is.
        """
        groups = cls(find_places(process))
        groups.sweep()
        return groups

    def make(self, mark: str, limits: Limits) -> Group:
        """A group of its own for what is marked ``mark``, with its limits.

        Raises :class:`MachineError` where the kernel takes a limit not.
        """
        group = Group(self._places, group_name(mark))
        try:
            group.limit(limits)
        except BaseException:
            group.close()
            raise
        return group

    def sweep(self) -> None:
        """Remove the groups of supervisors that are dead; those with processes stay."""
        for place in self._places:
            for name in os.listdir(place.descriptor):
                if is_abandoned(name):
                    with contextlib.suppress(OSError):
                        os.rmdir(name, dir_fd=place.descriptor)

    def close(self) -> None:
        """Let go of the directories."""
        for place in self._places:
            os.close(place.descriptor)
        self._places = ()


class Group:
    """One control group, in each tree where there is something to control."""

    def __init__(self, places: tuple[Place, ...], name: str) -> None:
        self._name = name
        self._places: list[Place] = []
        for place in places:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=place.descriptor)
            self._places.append(place)

    def limit(self, limits: Limits) -> None:
        """Set the limits of CPU (cores) and memory (bytes, swap included)."""
        for place in self._places:
            for file, value in _settings(place, limits):
                # A machine without swap accounting has no such file, and nothing to forbid.
                optional = "swap" in file or "memsw" in file
                try:
                    self._write(place, file, value)
                except FileNotFoundError as error:
                    if not optional:
                        raise _refused(file, value, error) from error
                except OSError as error:
                    raise _refused(file, value, error) from error

    @property
    def count(self) -> int:
        """How many descriptors :meth:`entrances` gives."""
        return len(self._places)

    def entrances(self) -> list[int]:
        """New descriptors for :func:`enter_script`; the caller closes them."""
        return [
            os.open(f"{self._name}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=one.descriptor)
            for one in self._places
        ]

    def usage(self) -> Usage | None:
        """CPU seconds and bytes of memory of all in it, without what the kernel could drop."""
        try:
            return Usage(self._cpu(), self._memory())
        except (OSError, KeyError, ValueError):
            return None

    def memory_ran_out(self) -> bool:
        """Whether the kernel killed one of its processes for want of memory."""
        place = self._of("memory")
        if place is None:
            return False
        file = "memory.oom_control" if place.version == 1 else "memory.events"
        try:
            return int(self._table(place, file).get("oom_kill", "0")) > 0
        except OSError:
            return False

    def close(self) -> None:
        """Remove it; its processes are gone by now."""
        for place in self._places:
            with contextlib.suppress(OSError):
                os.rmdir(self._name, dir_fd=place.descriptor)
        self._places = []

    def _cpu(self) -> float:
        place = self._of("cpuacct") or self._of("cpu")
        if place is None:
            raise KeyError("cpu")
        if place.version == 1:
            return int(self._read(place, "cpuacct.usage")) / 1e9
        return int(self._table(place, "cpu.stat")["usage_usec"]) / 1e6

    def _memory(self) -> int:
        place = self._of("memory")
        if place is None:
            raise KeyError("memory")
        first = place.version == 1
        used = int(self._read(place, "memory.usage_in_bytes" if first else "memory.current"))
        idle = "total_inactive_file" if first else "inactive_file"
        return max(0, used - int(self._table(place, "memory.stat").get(idle, "0")))

    def _of(self, controller: str) -> Place | None:
        return next((one for one in self._places if controller in one.controllers), None)

    def _table(self, place: Place, file: str) -> dict[str, str]:
        lines = (line.split() for line in self._read(place, file).splitlines())
        return {words[0]: words[1] for words in lines if len(words) == 2}

    def _read(self, place: Place, file: str) -> str:
        return read(place.descriptor, f"{self._name}/{file}")

    def _write(self, place: Place, file: str, value: str) -> None:
        write(place.descriptor, f"{self._name}/{file}", value)


def enter_script(count: int) -> str:
    """Shell words that enter a group by ``count`` descriptors from 3 on, and close them.

    The kernel checks the rights of who opened them, so this works in a container too. What cannot
    enter does not run.
    """
    numbers = range(_FIRST, _FIRST + count)
    entering = "".join(f"echo 0 >&{number} || exit 125; " for number in numbers)
    closing = "".join(f" {number}>&-" for number in numbers)
    return f"{entering}exec{closing}; " if count else ""


def _settings(place: Place, limits: Limits) -> list[tuple[str, str]]:
    """The files to write, in order: version 1 wants the limit of memory before that with swap."""
    found: list[tuple[str, str]] = []
    if limits.memory is not None and "memory" in place.controllers:
        memory = str(limits.memory)
        if place.version == 1:
            found += [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
        else:
            found += [("memory.max", memory), ("memory.swap.max", "0")]
    if limits.cpu is not None and "cpu" in place.controllers:
        # The kernel takes no quota below a millisecond.
        quota = max(1000, int(limits.cpu * _PERIOD))
        if place.version == 1:
            found += [("cpu.cfs_period_us", str(_PERIOD)), ("cpu.cfs_quota_us", str(quota))]
        else:
            found += [("cpu.max", f"{quota} {_PERIOD}")]
    return found


def _refused(file: str, value: str, error: OSError) -> MachineError:
    return MachineError(
        f"the limit {value} could not be set: {error.strerror} ({file})",
        hint="give the container more, or no limit",
    )
