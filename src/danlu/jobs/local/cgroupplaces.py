"""Where control groups can be made on this machine, of either version, and how they are named."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

__all__ = ["Place", "find_places", "group_name", "is_abandoned", "read", "write"]

_PREFIX = "danlu"
Candidate = tuple[Path, int, tuple[str, ...]]
"""A directory to try: its path, the version, and the controllers it may have."""


class Place(msgspec.Struct, frozen=True):
    """A directory where groups can be made: an open descriptor, and what it controls."""

    descriptor: int
    version: int
    controllers: tuple[str, ...]


def find_places(process: str) -> dict[str, Place]:
    """By controller (``cpu``, ``cpuacct``, ``memory``) where a group can be made; tries it."""
    found: dict[str, Place] = {}
    for path, version, controllers in _candidates(process):
        wanted = tuple(name for name in controllers if name not in found)
        place = _place(path, version, wanted) if wanted else None
        if place is not None:
            found.update(dict.fromkeys(place.controllers, place))
    return found


def group_name(mark: str) -> str:
    """What a group of this process is called: it tells whether its maker lives."""
    return f"{_PREFIX}-{os.getpid()}.{_started(os.getpid())}-{mark}"


def is_abandoned(name: str) -> bool:
    """Whether ``name`` is that of a group whose maker is dead."""
    if not name.startswith(f"{_PREFIX}-"):
        return False
    pid, _, rest = name.removeprefix(f"{_PREFIX}-").partition(".")
    return not pid.isdigit() or _started(int(pid)) != rest.partition("-")[0]


def _candidates(process: str) -> list[Candidate]:
    """Directories to try, the best first: (path, version, controllers it may have)."""
    mounts = _mounts(process)
    found: list[Candidate] = []
    second: list[Candidate] = []
    for line in _read_lines(f"{process}/cgroup"):
        _, names, own = line.split(":", 2)
        controllers = tuple(names.split(",")) if names else ("",)
        for place, root in mounts.get(controllers[0], ()):
            path = _below(place, root, own)
            if names:
                found.append((path, 1, controllers))
            else:
                ancestors = [one for one in (path, *path.parents) if one.is_relative_to(place)]
                second += [(one, 2, ("cpu", "memory")) for one in ancestors]
    wanted = {"cpu", "cpuacct", "memory"}
    return [*(one for one in found if wanted & set(one[2])), *second]


def _mounts(process: str) -> dict[str, list[tuple[Path, str]]]:
    """Where each controller of version 1 is mounted, and (under ``""``) version 2's tree."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for line in _read_lines(f"{process}/mountinfo"):
        head, _, tail = line.partition(" - ")
        fields, (kind, _, options) = head.split(), tail.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = options.split(",") if kind == "cgroup" else [""]
        for name in names:
            found.setdefault(name, []).append((Path(fields[4]), fields[3]))
    return found


def _below(place: Path, root: str, own: str) -> Path:
    """The directory of our own group, where ``root`` of the tree is what ``place`` shows."""
    try:
        return place / Path(own).relative_to(root)
    except ValueError:
        return place


def _place(path: Path, version: int, wanted: tuple[str, ...]) -> Place | None:
    """The directory, open, if a group made there controls at least one of ``wanted``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    controllers = _tried(descriptor, version, wanted)
    if not controllers:
        os.close(descriptor)
        return None
    return Place(descriptor, version, controllers)


def _tried(descriptor: int, version: int, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Which of ``wanted`` a group made there, and removed again, controls."""
    marks = {"cpuacct": "cpuacct.usage", "memory": "memory.limit_in_bytes"}
    marks["cpu"] = "cpu.cfs_quota_us" if version == 1 else "cpu.max"
    if version == 2:
        marks["memory"] = "memory.max"
        # A group with processes in it can give its children nothing: then this is refused.
        with contextlib.suppress(OSError):
            write(descriptor, "cgroup.subtree_control", "+cpu +memory")
    name = group_name("try")
    try:
        os.mkdir(name, dir_fd=descriptor)
    except OSError:
        return ()
    try:
        files = set(_listing(descriptor, name))
        entered = os.open(f"{name}/cgroup.procs", os.O_WRONLY, dir_fd=descriptor)
        os.close(entered)
    except OSError:
        files = set()
    finally:
        os.rmdir(name, dir_fd=descriptor)
    return tuple(one for one in wanted if marks.get(one) in files)


def _listing(descriptor: int, name: str) -> list[str]:
    opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
    try:
        return os.listdir(opened)
    finally:
        os.close(opened)


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did (proc(5)); empty where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def read(directory: int, file: str) -> str:
    """What ``file`` says, below an open directory; raises :class:`OSError`."""
    with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as opened:
        return opened.read()


def write(directory: int, file: str, value: str) -> None:
    """Have ``file`` say ``value``; raises :class:`OSError`."""
    with open(os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory), "w") as opened:
        opened.write(value)
