"""The system calls Python has no names for: namespaces and mounts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

__all__ = [
    "CLONE_FS",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWUSER",
    "MNT_DETACH",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOSUID",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "MS_SLAVE",
    "mount",
    "mount_overlay",
    "set_readonly",
    "setns",
    "umount",
    "unshare",
]

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
MNT_DETACH = 2

_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NODEV = 4
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4
# The same on every architecture (Linux >= 5.12).
_NR_MOVE_MOUNT, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT, _NR_MOUNT_SETATTR = 429, 430, 431, 432, 442

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones; raises :class:`OSError`."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespace that ``descriptor`` stands for, of kind ``flags``; of this thread.

    Raises :class:`OSError`.
    """
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system; ``options`` are shorter than a page. Raises :class:`OSError`."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )
    _check(result, target)


def umount(target: str, flags: int = 0) -> None:
    """Take the mount at ``target`` away; raises :class:`OSError`."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), target)


def mount_overlay(
    target: str, *, lower: Iterable[str], upper: str, work: str, flags: Iterable[str]
) -> None:
    """Mount an overlay without device nodes at ``target``; ``lower`` has the topmost layer first.

    Nothing has to fit in a page here, but each layer has its own parameter only since Linux 6.7,
    and a path is shorter than 256 bytes. Raises :class:`OSError`, with nothing mounted.
    """
    context = _descriptor(_NR_FSOPEN, b"overlay", ctypes.c_uint(_CLOEXEC))
    try:
        for flag in flags:
            _configure(context, _FSCONFIG_SET_FLAG, flag)
        _configure(context, _FSCONFIG_SET_STRING, "index", "off")
        for layer in lower:
            _configure(context, _FSCONFIG_SET_STRING, "lowerdir+", layer)
        _configure(context, _FSCONFIG_SET_STRING, "upperdir", upper)
        _configure(context, _FSCONFIG_SET_STRING, "workdir", work)
        _configure(context, _FSCONFIG_CMD_CREATE)
        made = _descriptor(
            _NR_FSMOUNT,
            ctypes.c_int(context),
            ctypes.c_uint(_CLOEXEC),
            ctypes.c_uint(_MOUNT_ATTR_NODEV),
        )
    finally:
        os.close(context)
    try:
        result = _libc.syscall(
            ctypes.c_long(_NR_MOVE_MOUNT),
            *(ctypes.c_int(made), b"", ctypes.c_int(_AT_FDCWD), os.fsencode(target)),
            ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
        )
        _check(result, target)
    finally:
        os.close(made)


def _configure(context: int, command: int, name: str = "", value: str | None = None) -> None:
    result = _libc.syscall(
        ctypes.c_long(_NR_FSCONFIG),
        ctypes.c_int(context),
        ctypes.c_uint(command),
        os.fsencode(name) if name else None,
        None if value is None else os.fsencode(value),
        ctypes.c_int(0),
    )
    _check(result, value or name)


def _descriptor(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    _check(min(result, 0), "overlay")
    return result


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def set_readonly(target: str) -> None:
    """Make the mount at ``target`` and all below it read-only; raises :class:`OSError`."""
    attributes = _MountAttr(set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_NR_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, target)
