"""System calls for namespaces and mounts that Python has no functions for."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
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
# New system calls have the same number on every architecture (Linux >= 5.12).
_NR_MOVE_MOUNT, _NR_FSOPEN, _NR_FSCONFIG, _NR_FSMOUNT, _NR_MOUNT_SETATTR = 429, 430, 431, 432, 442

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_errno(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """Move this process (or thread) into new namespaces. Raises :class:`OSError`."""
    _raise_errno(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Move the calling thread into a namespace of type ``flags``. Raises :class:`OSError`."""
    _raise_errno(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system; ``options`` must be shorter than a page. Raises :class:`OSError`."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )
    _raise_errno(result, target)


def umount(target: str, flags: int = 0) -> None:
    """Unmount ``target``. Raises :class:`OSError`."""
    _raise_errno(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), target)


def mount_overlay(
    target: str, *, lower: Iterable[str], upper: str, work: str, flags: Iterable[str]
) -> None:
    """Mount an overlay with ``nodev`` at ``target``; ``lower`` lists the topmost layer first.

    The new mount API has no limit of one page for all options, but a parameter per layer
    (``lowerdir+``) only since Linux 6.7, and each path must be shorter than 256 bytes. Raises
    :class:`OSError`, with nothing mounted.
    """
    context = _syscall_fd(_NR_FSOPEN, b"overlay", ctypes.c_uint(_CLOEXEC))
    try:
        for flag in flags:
            _fsconfig(context, _FSCONFIG_SET_FLAG, flag)
        _fsconfig(context, _FSCONFIG_SET_STRING, "index", "off")
        for layer in lower:
            _fsconfig(context, _FSCONFIG_SET_STRING, "lowerdir+", layer)
        _fsconfig(context, _FSCONFIG_SET_STRING, "upperdir", upper)
        _fsconfig(context, _FSCONFIG_SET_STRING, "workdir", work)
        _fsconfig(context, _FSCONFIG_CMD_CREATE)
        mount_descriptor = _syscall_fd(
            _NR_FSMOUNT,
            ctypes.c_int(context),
            ctypes.c_uint(_CLOEXEC),
            # An image may contain device nodes, with which a program could open the machine's.
            ctypes.c_uint(_MOUNT_ATTR_NODEV),
        )
    finally:
        os.close(context)
    try:
        result = _libc.syscall(
            ctypes.c_long(_NR_MOVE_MOUNT),
            *(ctypes.c_int(mount_descriptor), b"", ctypes.c_int(_AT_FDCWD), os.fsencode(target)),
            ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
        )
        _raise_errno(result, target)
    finally:
        # A mount that was not moved into place disappears with its descriptor (fsmount(2)).
        os.close(mount_descriptor)


def _fsconfig(context: int, command: int, name: str = "", value: str | None = None) -> None:
    result = _libc.syscall(
        ctypes.c_long(_NR_FSCONFIG),
        ctypes.c_int(context),
        ctypes.c_uint(command),
        os.fsencode(name) if name else None,
        None if value is None else os.fsencode(value),
        ctypes.c_int(0),
    )
    _raise_errno(result, value or name)


def _syscall_fd(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    _raise_errno(min(result, 0), "overlay")
    return result


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def set_readonly(target: str) -> None:
    """Make the mount at ``target`` and all mounts below it read-only. Raises :class:`OSError`."""
    # mount_setattr(2) because it can include the mounts below; a remount changes only one.
    attributes = _MountAttr(set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_NR_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _raise_errno(result, target)
