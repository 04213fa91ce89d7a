"""Files written whole or not at all, and trees removed whatever their modes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from contextlib import suppress
from pathlib import Path

__all__ = ["mounts_below", "private_directory", "remove_tree", "spread_below", "write_atomic"]

# linux/fs.h: the attribute T of chattr(1), and the calls that read and write attributes.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x00020000


def private_directory(parent: Path, name: str) -> Path:
    """A new directory ``name.…`` below ``parent`` that only its owner may enter.

    As :func:`tempfile.mkdtemp`, whose module costs more to import than a start may take.
    """
    path = parent / f"{name}.{os.urandom(6).hex()}"
    path.mkdir(mode=0o700)
    return path


def spread_below(directory: Path) -> None:
    """Have the file system place what is made in each directory below ``directory`` apart.

    ext4 looks for a new file's inode near its directory, one by one past all that were removed
    there in the last minutes, so in a place where trees come and go a file costs 25 times what it
    costs elsewhere. Where the attribute is not understood nothing changes, for it is only speed.
    """
    with suppress(OSError):
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(opened, _FS_IOC_GETFLAGS, b"\0" * 8))
            if not flags & _FS_TOPDIR_FL:
                fcntl.ioctl(opened, _FS_IOC_SETFLAGS, struct.pack("l", flags | _FS_TOPDIR_FL))
        finally:
            os.close(opened)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write ``data`` to ``path`` so that a reader, or a crash, sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.parent / f".{path.name[:200]}.{os.urandom(6).hex()}"
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def mounts_below(path: Path) -> list[str]:
    """What is mounted at or below ``path`` in this process's view (proc(5), mountinfo)."""
    place = os.path.realpath(path)
    with open("/proc/self/mountinfo", "rb") as file:
        targets = [_unescaped(line.split(b" ")[4]) for line in file]
    return [one for one in targets if one == place or one.startswith(place.rstrip("/") + "/")]


def _unescaped(target: bytes) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), target)
    return os.fsdecode(plain)


def remove_tree(path: Path) -> None:
    """Remove ``path`` and all below it, also directories without permissions; nothing if absent.

    Raises :class:`OSError` (``EBUSY``), and removes nothing, where something is mounted at or
    below it: a project directory may hang there.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink(missing_ok=True)
        return
    if mounts := mounts_below(path):
        raise OSError(errno.EBUSY, "something is mounted there", mounts[0])
    try:
        _remove(path)
    except (OSError, RecursionError):
        # Closed directories, or more levels than the stack or the table of open files holds.
        _remove_from_the_top(path)


def _remove(path: Path) -> None:
    import shutil

    for _ in range(3):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            # Another process is removing the same tree.
            if os.path.lexists(path):
                continue
        return


def _remove_from_the_top(root: Path) -> None:
    """Remove level by level: what lies deeper is first moved up, so nothing is ever deep."""
    os.chmod(root, stat.S_IRWXU)
    count = 0
    while names := os.listdir(root):
        for name in names:
            place = root / name
            if not _is_directory(place):
                os.unlink(place)
                continue
            os.chmod(place, stat.S_IRWXU)
            for below in os.listdir(place):
                if _is_directory(place / below):
                    # A directory's own write permission is needed to give it another parent.
                    os.chmod(place / below, stat.S_IRWXU)
                    count += 1
                    os.rename(place / below, root / f".{count}.{os.urandom(6).hex()}")
                else:
                    os.unlink(place / below)
            os.rmdir(place)
    os.rmdir(root)


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
