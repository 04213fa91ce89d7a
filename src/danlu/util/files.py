"""Write files atomically, and remove trees whatever their modes and depth."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import struct
from contextlib import suppress
from pathlib import Path

from danlu.errors import UsageError

_DISK_FAILURES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})

# linux/fs.h: the attribute T of chattr(1), and the calls that read and write attributes.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x00020000

_CHUNK_SIZE = 1 << 16


def is_disk_failure(error: OSError) -> bool:
    """Return whether a write failed because the disk is full, over quota, read-only or broken."""
    return error.errno in _DISK_FAILURES


def private_directory(parent: Path, name: str) -> Path:
    """Create and return a directory ``name.…`` below ``parent`` that only its owner may enter.

    Like :func:`tempfile.mkdtemp`, whose module takes longer to import than a container start may.
    """
    path = parent / f"{name}.{os.urandom(6).hex()}"
    path.mkdir(mode=0o700)
    return path


def set_topdir_flag(directory: Path) -> None:
    """Set ext4's top-directory attribute, which spreads out the inodes of subdirectories.

    ext4 looks for a new file's inode near its directory, one by one past all that were deleted
    there in the last minutes. In a directory where trees come and go, creating a file therefore
    costs 25 times as much. File systems without the attribute are left as they are: it only affects
    speed.
    """
    with suppress(OSError):
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("l", fcntl.ioctl(opened, _FS_IOC_GETFLAGS, b"\0" * 8))
            if not flags & _FS_TOPDIR_FL:
                fcntl.ioctl(opened, _FS_IOC_SETFLAGS, struct.pack("l", flags | _FS_TOPDIR_FL))
        finally:
            os.close(opened)


def is_special_file(path: Path) -> bool:
    """Return whether ``path`` is, or links to, a device, pipe or socket, such as ``/dev/stdout``.

    :func:`write_atomic` would replace it with a regular file, for every program of the machine.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_parent_directory(path: Path) -> None:
    """Raise :class:`UsageError` if the directory of the output file ``path`` does not exist.

    For outputs that the user names: a directory that is created could be a typing error.
    """
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}: {path.parent} is not a directory",
            hint="create the directory, or choose another file",
        )


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write ``data`` to ``path``; readers see the old file or the new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, because a rename cannot cross file systems; cut, because names are limited
    # to 255 bytes.
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
    """Return the mount points at or below ``path`` in this mount namespace (proc(5), mountinfo)."""
    real = os.path.realpath(path)
    with open("/proc/self/mountinfo", "rb") as file:
        targets = [_decode_mount_path(line.split(b" ")[4]) for line in file]
    return [
        target for target in targets if target == real or target.startswith(real.rstrip("/") + "/")
    ]


def filesystem_type(path: Path) -> str:
    """Return the type of the file system that holds ``path``, such as ``ext4``; empty if unknown.

    The device number does not tell: each subvolume of btrfs has its own.
    """
    real = os.path.realpath(path)
    longest, name = "", ""
    with suppress(FileNotFoundError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            mount, _, source = line.partition(b" - ")
            target = _decode_mount_path(mount.split(b" ")[4])
            holds = real == target or real.startswith(target.rstrip("/") + "/")
            # The last one is on top of others with the same mount point.
            if holds and len(target) >= len(longest):
                longest, name = target, os.fsdecode(source.split(b" ")[0])
    return name


def _decode_mount_path(target: bytes) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), target)
    return os.fsdecode(plain)


def read_existing_file(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_regular_file(path: Path, limit: int) -> bytes | None:
    """Return up to ``limit`` bytes of a regular file; None if there is something else, or nothing.

    What an untrusted program has put there may be a link, or a pipe, at which open(2) would wait.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(limit)


def have_same_content(first: str | Path, second: str | Path) -> bool:
    """Return whether two regular files have the same bytes. Raises :class:`OSError`."""
    # Not filecmp.cmp(): it remembers its answer for a path, a size and a time, and the times of
    # layers are all the same.
    with open(first, "rb") as one, open(second, "rb") as other:
        if os.fstat(one.fileno()).st_size != os.fstat(other.fileno()).st_size:
            return False
        while chunk := one.read(_CHUNK_SIZE):
            if chunk != other.read(_CHUNK_SIZE):
                return False
        return not other.read(1)


def remove_tree(path: Path) -> None:
    """Remove ``path`` and everything below it, including directories without permissions.

    Does nothing if it does not exist. Raises :class:`OSError` (``EBUSY``) and removes nothing if
    something is mounted at or below it: that could be the user's project.
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
        _remove_with_shutil(path)
    except (OSError, RecursionError):
        # Unreadable directories, or more levels than the stack or the file table can hold.
        _remove_level_by_level(path)


def _remove_with_shutil(path: Path) -> None:
    for _ in range(3):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            # Another process may be removing the same tree.
            if os.path.lexists(path):
                continue
        return


def _remove_level_by_level(root: Path) -> None:
    """Remove a tree of any depth by first moving deeper directories up to the root."""
    os.chmod(root, stat.S_IRWXU)
    count = 0
    while names := os.listdir(root):
        for name in names:
            path = root / name
            if not _is_directory(path):
                os.unlink(path)
                continue
            os.chmod(path, stat.S_IRWXU)
            for below in os.listdir(path):
                if _is_directory(path / below):
                    # Moving a directory needs write permission on it, because `..` changes.
                    os.chmod(path / below, stat.S_IRWXU)
                    count += 1
                    os.rename(path / below, root / f".{count}.{os.urandom(6).hex()}")
                else:
                    os.unlink(path / below)
            os.rmdir(path)
    os.rmdir(root)


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
