"""The OCI runtime configuration of one process (runtime-spec, config.md), as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from danlu.sandbox.types import Mount, Process

__all__ = ["HOSTNAME", "Surroundings", "configuration", "process_document"]

HOSTNAME = "danlu"

# What Docker gives, without NET_RAW: the network may be the machine's own.
_CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# Not in any namespace: the caller's keys. And doors into the kernel that no step needs.
_DENIED_CALLS = (
    "add_key",
    "bpf",
    "keyctl",
    "perf_event_open",
    "request_key",
    "userfaultfd",
)


class Surroundings(msgspec.Struct, frozen=True):
    """What a sandbox adds to a process: its root, its devices, its limits.

    ``devices`` is a directory prepared as ``/dev``; ``network`` shares the machine's, else there is
    a namespace: that of the file ``namespace``, or a new one with a loopback only;
    ``terminal_group`` is the group of terminals (5), or None where it has no id here;
    ``fresh_sysfs`` allows a sysfs of its own (only root, or with a network namespace, may).
    """

    root: Path
    devices: Path
    network: bool
    terminal_group: int | None
    fresh_sysfs: bool
    seccomp: bool
    namespace: Path | None = None
    hostname: str = HOSTNAME


def configuration(
    process: Process, mounts: Sequence[Mount], around: Surroundings
) -> dict[str, Any]:
    """The content of ``config.json``. There is no user namespace: ours is entered already."""
    linux: dict[str, Any] = {
        "namespaces": _namespaces(around),
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READONLY),
    }
    if around.seccomp:
        linux["seccomp"] = _seccomp()
    return {
        "ociVersion": "1.0.2",
        "hostname": around.hostname,
        "root": {"path": str(around.root)},
        "process": process_document(process),
        "mounts": [*_standard_mounts(around), *map(_mount, mounts)],
        "linux": linux,
    }


def _namespaces(around: Surroundings) -> list[dict[str, str]]:
    found = [{"type": name} for name in ("pid", "ipc", "uts", "mount")]
    if around.network:
        return found
    place = {} if around.namespace is None else {"path": str(around.namespace)}
    return [*found, {"type": "network", **place}]


def process_document(process: Process) -> dict[str, Any]:
    """One process as a runtime reads it, in a bundle's configuration or for its ``exec``."""
    # Capabilities of a user other than root end at its exec; only the bounding set stays.
    held = list(_CAPABILITIES) if process.uid == 0 else []
    return {
        "terminal": process.terminal,
        "user": {
            "uid": process.uid,
            "gid": process.gid,
            "additionalGids": list(process.groups),
        },
        "args": list(process.args),
        "env": [f"{name}={value}" for name, value in sorted(process.environment.items())],
        "cwd": process.working_directory,
        "capabilities": {
            "bounding": list(_CAPABILITIES),
            "effective": held,
            "permitted": held,
        },
        "noNewPrivileges": False,
    }


def _standard_mounts(around: Surroundings) -> list[dict[str, Any]]:
    group = [] if around.terminal_group is None else [f"gid={around.terminal_group}"]
    quiet = ["nosuid", "noexec", "nodev"]
    return [
        _special("/proc", "proc", quiet),
        # A runtime makes no device nodes where /dev is bound: ours are bound in it already.
        _special("/dev", "bind", ["rbind", "nosuid", "nodev"], source=str(around.devices)),
        _special(
            "/dev/pts",
            "devpts",
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", *group],
        ),
        _special("/dev/shm", "tmpfs", [*quiet, "mode=1777"]),
        _special("/dev/mqueue", "mqueue", quiet),
        _special("/sys", "sysfs", [*quiet, "ro"])
        if around.fresh_sysfs
        else _special("/sys", "bind", ["rbind", *quiet, "rro"], source="/sys"),
    ]


def _special(target: str, kind: str, options: list[str], *, source: str = "") -> dict[str, Any]:
    return {
        "destination": target,
        "type": kind,
        "source": source or kind,
        "options": options,
    }


def _mount(mount: Mount) -> dict[str, Any]:
    if mount.kind == "tmpfs":
        only = ["ro"] if mount.readonly else []
        return _special(mount.target, "tmpfs", ["nosuid", "nodev", "mode=1777", *only])
    access = ["ro"] if mount.readonly else ["rw"]
    if mount.readonly and mount.source is not None and mount.source.is_dir():
        # What is mounted below is read-only too (Linux >= 5.12; crun cannot say it of a file).
        access.append("rro")
    return _special(mount.target, "bind", ["rbind", "nodev", *access], source=str(mount.source))


def _seccomp() -> dict[str, Any]:
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": list(_DENIED_CALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    }
