"""Control groups: CPU and memory limits of replicas, their usage, and out-of-memory kills.

Both versions are supported: each controller is looked for where cgroup v1 mounts it, or else in the
unified hierarchy of v2 (kernel documentation, admin-guide/cgroup-v1 and cgroup-v2). New groups are
created below the supervisor's own, so its limits apply to them, too. A group's name identifies the
supervisor that created it; a later supervisor removes the groups left by one that was killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sandbox.types import ResourceLimits, ResourceUsage

_PREFIX = "danlu"
_CPU_PERIOD_US = 100_000
#: Number of the first descriptor through which a program enters its group.
_FIRST_FD = 3


class CgroupRoot(msgspec.Struct, frozen=True):
    """An open directory in which groups can be created, and the controllers available there."""

    descriptor: int
    version: int
    controllers: tuple[str, ...]


class CgroupManager:
    """Creates control groups; to be set up before the process enters namespaces.

    A sandbox hides the cgroup file system, so the directories are kept open. ``missing`` says which
    of CPU and memory cannot be limited; it is empty if both can be.
    """

    def __init__(self, roots: Mapping[str, CgroupRoot]) -> None:
        self._roots = tuple(dict.fromkeys(roots.values()))
        lacking = [name for name in ("cpu", "memory") if name not in roots]
        self.missing = f"no writable cgroup for {' and '.join(lacking)}" if lacking else ""

    @classmethod
    def detect(cls, process: str = "/proc/self") -> CgroupManager:
        """Find writable cgroup directories, and remove the groups of dead supervisors.

        ``process`` is the procfs directory of the process whose groups are the parents.
        """
        manager = cls(find_writable_roots(process))
        manager.clean_up()
        return manager

    def explain_missing(self, limits: ResourceLimits) -> str:
        """Return a warning if these limits cannot be enforced, or an empty string."""
        has_limits = limits.cpu is not None or limits.memory is not None
        return f"resources: not enforced: {self.missing}" if has_limits and self.missing else ""

    def create(self, mark: str, limits: ResourceLimits) -> ContainerCgroup:
        """Create a group with these limits.

        Raises :class:`MachineError` if the kernel rejects a limit.
        """
        group = ContainerCgroup(self._roots, group_name(mark), limits)
        try:
            group.apply_limits()
        except BaseException:
            group.close()
            raise
        return group

    def clean_up(self) -> None:
        """Remove the groups of dead supervisors, except those that still contain processes."""
        for root in self._roots:
            for name in os.listdir(root.descriptor):
                if is_stale(name):
                    with suppress(OSError):
                        # Fails with EBUSY while a process is in the group (cgroups(7)), which is
                        # what we want.
                        os.rmdir(name, dir_fd=root.descriptor)

    def close(self) -> None:
        """Close the directories."""
        for root in self._roots:
            os.close(root.descriptor)
        self._roots = ()


class ContainerCgroup:
    """One control group, with a directory in each hierarchy that has a controller for it."""

    def __init__(self, roots: tuple[CgroupRoot, ...], name: str, limits: ResourceLimits) -> None:
        self.limits = limits
        self._name = name
        self._roots: list[CgroupRoot] = []
        for root in roots:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=root.descriptor)
            self._roots.append(root)

    def apply_limits(self) -> None:
        """Set the limits of CPU (cores) and memory (bytes, including swap)."""
        for root in self._roots:
            for file, value in _limit_files(root, self.limits):
                # Without swap accounting the file does not exist, and there is nothing to limit.
                optional = "swap" in file or "memsw" in file
                try:
                    self._write_file(root, file, value)
                except FileNotFoundError as error:
                    if not optional:
                        raise _limit_error(file, value, error) from error
                except OSError as error:
                    raise _limit_error(file, value, error) from error

    @property
    def fd_count(self) -> int:
        """Number of descriptors that :func:`open_procs_files` yields."""
        return len(self._roots)

    def open_procs_files(self, opened: ExitStack) -> list[int]:
        """Open the descriptors for :func:`enter_script` until ``opened`` closes."""
        name, flags = f"{self._name}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC
        descriptors = []
        for root in self._roots:
            descriptors.append(os.open(name, flags, dir_fd=root.descriptor))
            opened.callback(os.close, descriptors[-1])
        return descriptors

    def usage(self) -> ResourceUsage | None:
        """Return CPU seconds and bytes of memory, without page cache that can be reclaimed."""
        try:
            return ResourceUsage(self._cpu_seconds(), self._memory_bytes())
        except (OSError, KeyError, ValueError):
            return None

    def had_oom_kill(self) -> bool:
        """Return whether the kernel's OOM killer killed a process of the group."""
        root = self._root_of("memory")
        if root is None:
            return False
        file = "memory.oom_control" if root.version == 1 else "memory.events"
        try:
            return int(self._read_table(root, file).get("oom_kill", "0")) > 0
        except OSError:
            return False

    def close(self) -> None:
        """Remove the group, which must not contain processes any more."""
        for root in self._roots:
            with suppress(OSError):
                os.rmdir(self._name, dir_fd=root.descriptor)
        self._roots = []

    def _cpu_seconds(self) -> float:
        root = self._root_of("cpuacct") or self._root_of("cpu")
        if root is None:
            raise KeyError("cpu")
        if root.version == 1:
            return int(self._read_file(root, "cpuacct.usage")) / 1e9
        return int(self._read_table(root, "cpu.stat")["usage_usec"]) / 1e6

    def _memory_bytes(self) -> int:
        root = self._root_of("memory")
        if root is None:
            raise KeyError("memory")
        is_v1 = root.version == 1
        used = int(self._read_file(root, "memory.usage_in_bytes" if is_v1 else "memory.current"))
        inactive = "total_inactive_file" if is_v1 else "inactive_file"
        return max(0, used - int(self._read_table(root, "memory.stat").get(inactive, "0")))

    def _root_of(self, controller: str) -> CgroupRoot | None:
        return next((root for root in self._roots if controller in root.controllers), None)

    def _read_table(self, root: CgroupRoot, file: str) -> dict[str, str]:
        lines = (line.split() for line in self._read_file(root, file).splitlines())
        return {words[0]: words[1] for words in lines if len(words) == 2}

    def _read_file(self, root: CgroupRoot, file: str) -> str:
        return read_file(root.descriptor, f"{self._name}/{file}")

    def _write_file(self, root: CgroupRoot, file: str, value: str) -> None:
        write_file(root.descriptor, f"{self._name}/{file}", value)


@contextmanager
def open_procs_files(group: ContainerCgroup | None) -> Iterator[list[int]]:
    """Yield the descriptors for :func:`enter_script`, none without a group, and close them."""
    with ExitStack() as opened:
        yield group.open_procs_files(opened) if group else []


def enter_script(count: int) -> str:
    """Return shell code that enters a group through ``count`` descriptors, and closes them.

    The kernel checks the permissions of the process that opened a descriptor, so this works inside
    a container, too. A program that cannot enter its group is not run.
    """
    numbers = range(_FIRST_FD, _FIRST_FD + count)
    entering = "".join(f"echo 0 >&{number} || exit 125; " for number in numbers)
    closing = "".join(f" {number}>&-" for number in numbers)
    return f"{entering}exec{closing}; " if count else ""


def _limit_files(root: CgroupRoot, limits: ResourceLimits) -> list[tuple[str, str]]:
    """Return the files to write, in order: v1 needs the memory limit before memory plus swap."""
    files: list[tuple[str, str]] = []
    if limits.memory is not None and "memory" in root.controllers:
        memory = str(limits.memory)
        if root.version == 1:
            files += [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
        else:
            files += [("memory.max", memory), ("memory.swap.max", "0")]
    if limits.cpu is not None and "cpu" in root.controllers:
        # The kernel rejects quotas below one millisecond.
        quota = max(1000, int(limits.cpu * _CPU_PERIOD_US))
        if root.version == 1:
            period = str(_CPU_PERIOD_US)
            files += [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", str(quota))]
        else:
            files += [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]
    return files


def _limit_error(file: str, value: str, error: OSError) -> MachineError:
    return MachineError(
        f"cannot set the limit {value}: {error.strerror} ({file})",
        hint="raise the container's limit, or remove it",
    )


# -- where groups can be created ------------------------------------------------------------------

CandidateDir = tuple[Path, int, tuple[str, ...]]
"""A directory to try: its path, the cgroup version, and the controllers it may have."""


def find_writable_roots(process: str) -> dict[str, CgroupRoot]:
    """Return where groups can be created, by controller (``cpu``, ``cpuacct``, ``memory``)."""
    roots: dict[str, CgroupRoot] = {}
    for path, version, controllers in _candidate_dirs(process):
        wanted = tuple(name for name in controllers if name not in roots)
        root = _open_root(path, version, wanted) if wanted else None
        if root is not None:
            roots.update(dict.fromkeys(root.controllers, root))
    return roots


def cpu_quota(process: str = "/proc/self") -> float | None:
    """Return the number of cores that the cgroups of a process allow; None without a quota.

    This is the smallest quota of its group and those of the visible ancestors.
    """
    mounts = _cgroup_mounts(process)
    quotas = []
    for line in _read_lines(f"{process}/cgroup"):
        _, names, group = line.split(":", 2)
        if names and "cpu" not in names.split(","):
            continue
        for mount, root in mounts.get("cpu" if names else "", ()):
            path = _own_directory(mount, root, group)
            visible = [parent for parent in (path, *path.parents) if parent.is_relative_to(mount)]
            quotas += [quota for parent in visible if (quota := _quota_of(parent)) is not None]
    return min(quotas, default=None)


def _quota_of(group: Path) -> float | None:
    """Return the quota of one group of either version; ``-1`` and ``max`` mean unlimited."""
    words = " ".join(_read_lines(str(group / "cpu.max"))).split()
    if not words:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(line for file in files for line in _read_lines(str(group / file))).split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def group_name(mark: str) -> str:
    """Return a name that identifies this process, see :func:`is_stale`."""
    pid = os.getpid()
    return f"{_PREFIX}-{pid}.{_start_time(pid)}.{_pid_namespace()}-{mark}"


def is_stale(name: str) -> bool:
    """Return whether this is the name of a group whose creator is dead.

    A container can share the cgroups of its host, but its processes have other IDs there. So
    creators in other PID namespaces count as alive.
    """
    if not name.startswith(f"{_PREFIX}-"):
        return False
    # Older versions did not write the namespace.
    pid, started, namespace = (*name.removeprefix(f"{_PREFIX}-").split("-")[0].split("."), "")[:3]
    if namespace and namespace != _pid_namespace():
        return False
    return not pid.isdigit() or _start_time(int(pid)) != started


def _candidate_dirs(process: str) -> list[CandidateDir]:
    """Return the directories to try, best first: those of v1, then of v2 from the bottom up."""
    mounts = _cgroup_mounts(process)
    first: list[CandidateDir] = []
    second: list[CandidateDir] = []
    for line in _read_lines(f"{process}/cgroup"):
        _, names, group = line.split(":", 2)
        controllers = tuple(names.split(",")) if names else ("",)
        for mount, root in mounts.get(controllers[0], ()):
            path = _own_directory(mount, root, group)
            if names:
                first.append((path, 1, controllers))
            else:
                visible = [dir for dir in (path, *path.parents) if dir.is_relative_to(mount)]
                second += [(ancestor, 2, ("cpu", "memory")) for ancestor in visible]
    wanted = {"cpu", "cpuacct", "memory"}
    return [*(candidate for candidate in first if wanted & set(candidate[2])), *second]


def _cgroup_mounts(process: str) -> dict[str, list[tuple[Path, str]]]:
    """Return mount point and root by controller of v1, and of the v2 hierarchy as ``""``."""
    mounts: dict[str, list[tuple[Path, str]]] = {}
    for line in _read_lines(f"{process}/mountinfo"):
        head, _, tail = line.partition(" - ")
        fields, (kind, _, options) = head.split(), tail.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = options.split(",") if kind == "cgroup" else [""]
        for name in names:
            mounts.setdefault(name, []).append((Path(fields[4]), fields[3]))
    return mounts


def _own_directory(mount: Path, root: str, group: str) -> Path:
    """Return the directory of ``group`` if ``mount`` shows the hierarchy from ``root`` down."""
    try:
        return mount / Path(group).relative_to(root)
    # A container may see its own group as the root of the hierarchy (cgroup_namespaces(7)).
    except ValueError:
        return mount


def _open_root(path: Path, version: int, wanted: tuple[str, ...]) -> CgroupRoot | None:
    """Open the directory if a group created there has at least one of the wanted controllers."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    controllers = _probe_controllers(descriptor, version, wanted)
    if not controllers:
        os.close(descriptor)
        return None
    return CgroupRoot(descriptor, version, controllers)


def _probe_controllers(descriptor: int, version: int, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Create a group, return which of the wanted controllers it has, and remove it again."""
    marks = {"cpuacct": "cpuacct.usage", "memory": "memory.limit_in_bytes"}
    marks["cpu"] = "cpu.cfs_quota_us" if version == 1 else "cpu.max"
    if version == 2:
        marks["memory"] = "memory.max"
        # Refused for a group that contains processes ("no internal processes" rule).
        with suppress(OSError):
            write_file(descriptor, "cgroup.subtree_control", "+cpu +memory")
    name = group_name("try")
    try:
        os.mkdir(name, dir_fd=descriptor)
    except OSError:
        return ()
    try:
        files = set(_list_directory(descriptor, name))
        procs = os.open(f"{name}/cgroup.procs", os.O_WRONLY, dir_fd=descriptor)
        os.close(procs)
    except OSError:
        files = set()
    finally:
        os.rmdir(name, dir_fd=descriptor)
    return tuple(controller for controller in wanted if marks.get(controller) in files)


def _list_directory(descriptor: int, name: str) -> list[str]:
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
    try:
        return os.listdir(directory)
    finally:
        os.close(directory)


def _pid_namespace() -> str:
    """Return the ID of this process's PID namespace; empty if procfs does not have it."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return a process's start time in ticks since boot (proc(5)); empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name in parentheses may contain spaces and parentheses. After it follow the fields from
    # the third on; the start time is the 22nd (proc(5)).
    return text.rpartition(")")[2].split()[19]


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def read_file(directory: int, file: str) -> str:
    """Read a file below an open directory; raises :class:`OSError`."""
    with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)) as opened:
        return opened.read()


def write_file(directory: int, file: str, value: str) -> None:
    """Write a file below an open directory; raises :class:`OSError`."""
    with open(os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory), "w") as opened:
        opened.write(value)
