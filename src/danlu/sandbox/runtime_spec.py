"""Render the configuration of one container (OCI runtime-spec, config.md) as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from danlu.sandbox.types import Mount, ProcessSpec, RuntimeHook

HOSTNAME = "danlu"

#: Docker's default capabilities without NET_RAW, because the network may be the machine's.
CAPABILITIES = (
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
_MASKED_PATHS = (
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
_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


class SpecContext(msgspec.Struct, frozen=True):
    """What a sandbox adds to a process: its root, its devices, its limits.

    ``devices`` is a directory prepared as ``/dev``. ``network`` shares the machine's network; else
    the container joins the namespace in the file ``namespace``, or gets a new one with only a
    loopback. ``terminal_group`` is the group of terminals (5), or None if that id is not mapped.
    ``fresh_sysfs`` mounts a new sysfs, which only root may do, or the owner of the network
    namespace. ``shm_size`` is the bytes of ``/dev/shm``, 0 for the kernel's default. ``seccomp`` is
    the filter (:func:`danlu.sandbox.seccomp.load_filter`), or None. ``hooks`` are programs of the
    machine, by the moment at which the runtime runs them.
    """

    root: Path
    devices: Path
    network: bool
    terminal_group: int | None
    fresh_sysfs: bool
    seccomp: Mapping[str, Any] | None
    namespace: Path | None = None
    hostname: str = HOSTNAME
    shm_size: int = 0
    hooks: Mapping[str, tuple[RuntimeHook, ...]] = {}


def render_config(
    process: ProcessSpec, mounts: Sequence[Mount], around: SpecContext
) -> dict[str, Any]:
    """Return the content of ``config.json``.

    It creates no user namespace, because this process has entered one already.
    """
    linux: dict[str, Any] = {
        "namespaces": _render_namespaces(around),
        "maskedPaths": list(_MASKED_PATHS),
        "readonlyPaths": list(_READONLY_PATHS),
    }
    if around.seccomp is not None:
        linux["seccomp"] = around.seccomp
    hooks = {"hooks": msgspec.to_builtins(around.hooks)} if around.hooks else {}
    return {
        "ociVersion": "1.0.2",
        "hostname": around.hostname,
        "root": {"path": str(around.root)},
        "process": render_process(process),
        "mounts": [*_standard_mounts(around), *map(_render_mount, mounts)],
        "linux": linux,
        **hooks,
    }


def _render_namespaces(around: SpecContext) -> list[dict[str, str]]:
    namespaces = [{"type": name} for name in ("pid", "ipc", "uts", "mount")]
    if around.network:
        # A kind that is not listed is inherited (runtime-spec, config-linux.md, Namespaces).
        return namespaces
    joined = {} if around.namespace is None else {"path": str(around.namespace)}
    return [*namespaces, {"type": "network", **joined}]


def render_process(process: ProcessSpec) -> dict[str, Any]:
    """Return a process as a runtime reads it, in ``config.json`` or for ``exec``."""
    # A user other than root loses capabilities at exec anyway; only the bounding set stays.
    capabilities = list(CAPABILITIES) if process.uid == 0 else []
    limits = {}
    if process.open_files is not None:
        soft, hard = process.open_files
        limits = {"rlimits": [{"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}]}
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
            "bounding": list(CAPABILITIES),
            "effective": capabilities,
            "permitted": capabilities,
        },
        "noNewPrivileges": False,
        **limits,
    }


def _standard_mounts(around: SpecContext) -> list[dict[str, Any]]:
    group = [] if around.terminal_group is None else [f"gid={around.terminal_group}"]
    restricted = ["nosuid", "noexec", "nodev"]
    shm_size = [f"size={around.shm_size}"] if around.shm_size else []
    return [
        _special_mount("/proc", "proc", restricted),
        # A runtime creates no device nodes if /dev is a bind mount: ours contains them already.
        _special_mount("/dev", "bind", ["rbind", "nosuid", "nodev"], source=str(around.devices)),
        _special_mount(
            "/dev/pts",
            "devpts",
            ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", *group],
        ),
        _special_mount("/dev/shm", "tmpfs", [*restricted, "mode=1777", *shm_size]),
        _special_mount("/dev/mqueue", "mqueue", restricted),
        _special_mount("/sys", "sysfs", [*restricted, "ro"])
        if around.fresh_sysfs
        else _special_mount("/sys", "bind", ["rbind", *restricted, "rro"], source="/sys"),
    ]


def _special_mount(
    target: str, kind: str, options: list[str], *, source: str = ""
) -> dict[str, Any]:
    return {
        "destination": target,
        "type": kind,
        "source": source or kind,
        "options": options,
    }


def _render_mount(mount: Mount) -> dict[str, Any]:
    if mount.kind == "tmpfs":
        only = ["ro"] if mount.readonly else []
        return _special_mount(mount.target, "tmpfs", ["nosuid", "nodev", "mode=1777", *only])
    access = ["ro"] if mount.readonly else ["rw"]
    if mount.readonly and mount.source is not None and mount.source.is_dir():
        # Makes mounts below read-only too (Linux >= 5.12); crun rejects it for files.
        access.append("rro")
    options = ["rbind", "nodev", *access, *_inherited_flags(mount)]
    return _special_mount(mount.target, "bind", options, source=str(mount.source))


def _inherited_flags(mount: Mount) -> list[str]:
    """Return the restrictions of the file system that ``mount`` shows, which stay in force.

    A user namespace cannot lift them (mount_namespaces(7), locked flags), and runc before 1.2 fails
    if a mount does not name them again.
    """
    try:
        flags = os.statvfs(mount.source).f_flag if mount.source is not None else 0
    except OSError:  # the runtime reports that it is missing
        return []
    readonly = ["ro"] if flags & os.ST_RDONLY and not mount.readonly else []
    names = {os.ST_NOSUID: "nosuid", os.ST_NOEXEC: "noexec"}
    return [*readonly, *(name for flag, name in names.items() if flags & flag)]
