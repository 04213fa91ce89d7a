"""Mounts in memory: tmpfs directories, and a ``/dev`` with a few harmless devices.

They belong to this process's mount namespace. Require :func:`danlu.sandbox.userns.enter`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import MachineError
from danlu.sandbox import _linux, userns
from danlu.sandbox.types import DeviceNode

_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_DEV_OPTIONS = "mode=755,size=1m"
_DIRECTORIES = ("mqueue", "pts", "shm")
_LINKS = {
    "core": "/proc/kcore",
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stderr": "/proc/self/fd/2",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
}


def mount_tmpfs(place: Path, *, size: int | None = None) -> None:
    """Mount a tmpfs of ``size`` bytes (default: half of the memory) at ``place``.

    Raises :class:`OSError`.
    """
    options = "mode=755" if size is None else f"mode=755,size={size}"
    _linux.mount("tmpfs", str(place), "tmpfs", _linux.MS_NOSUID | _linux.MS_NODEV, options)


def unmount(place: Path) -> None:
    """Unmount ``place``, lazily if it is still in use. Raises :class:`OSError`."""
    _linux.umount(str(place), _linux.MNT_DETACH)


@contextmanager
def mount_devices(place: Path, devices: Sequence[DeviceNode] = ()) -> Iterator[Path]:
    """Yield a directory below ``place`` to bind as ``/dev``, the same for root and rootless.

    It contains ``devices`` too. Device nodes that are created in it later do not work (nodev).
    Raises :class:`MachineError` for a device that cannot be provided.
    """
    place.mkdir()
    with (
        _provide_nodes(place / "nodes") as nodes,
        temporary_tmpfs(
            place / "dev", options=_DEV_OPTIONS, flags=_linux.MS_NOSUID | _linux.MS_NODEV
        ) as here,
    ):
        for name in _DEVICES:
            (here / name).touch()
            # A bind mount has the flags of its source: these nodes work although the directory is
            # nodev, where nodes that are created later do not.
            _linux.mount(str(nodes / name), str(here / name), flags=_linux.MS_BIND)
        for name in _DIRECTORIES:
            (here / name).mkdir()
        # runc 1.1 gives the tmpfs that it mounts here the mode of the mount point.
        (here / "shm").chmod(0o1777)
        for name, target in _LINKS.items():
            (here / name).symlink_to(target)
        for number, device in enumerate(devices):
            _add_device(device, here, nodes / f"device{number}")
        yield here


def _add_device(device: DeviceNode, directory: Path, copy: Path) -> None:
    """Bind a device below ``directory``; for root a new node at ``copy`` with the same number."""
    parts = device.path.removeprefix("/dev/").split("/")
    is_reserved = parts[0] in {*_DEVICES, *_DIRECTORIES, *_LINKS}
    if not device.path.startswith("/dev/") or is_reserved or {"", ".", ".."} & {*parts}:
        raise MachineError(f"cannot provide a device at {device.path}", hint="use /dev/NAME")
    try:
        status = device.source.stat()
        if not stat.S_ISCHR(status.st_mode) and not stat.S_ISBLK(status.st_mode):
            raise MachineError(f"{device.source} is not a device node")
        source = device.source
        if not userns.is_rootless():
            source = copy
            # A new node of the same device, so that a container's chmod(2) does not change the
            # machine's.
            os.mknod(copy, stat.S_IFMT(status.st_mode), status.st_rdev)
            os.chown(
                copy,
                status.st_uid if device.uid is None else device.uid,
                status.st_gid if device.gid is None else device.gid,
            )
            # mknod(2) applies the umask.
            copy.chmod(stat.S_IMODE(status.st_mode) if device.mode is None else device.mode)
        target = directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        _linux.mount(str(source), str(target), flags=_linux.MS_BIND)
    except OSError as error:
        raise MachineError(
            f"cannot provide the device {device.source}: {error.strerror}"
        ) from error


@contextmanager
def _provide_nodes(place: Path) -> Iterator[Path]:
    """Yield a directory with the device nodes to bind.

    Root creates its own, because a bind mount shares the inode: root in the container could change
    the modes of the machine's devices.
    """
    if userns.is_rootless():
        yield Path("/dev")
        return
    with temporary_tmpfs(place, options=_DEV_OPTIONS, flags=_linux.MS_NOSUID) as here:
        for name in _DEVICES:
            os.mknod(here / name, stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)
            (here / name).chmod(0o666)
        yield here


@contextmanager
def temporary_tmpfs(place: Path, *, options: str, flags: int) -> Iterator[Path]:
    """Create the directory ``place``, mount a tmpfs there, and remove both afterwards."""
    place.mkdir(mode=0o700)
    _linux.mount("tmpfs", str(place), "tmpfs", flags, options)
    try:
        yield place
    finally:
        unmount(place)
        place.rmdir()
