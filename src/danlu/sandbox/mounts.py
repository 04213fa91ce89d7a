"""Mounts in memory: tmpfs directories, and a ``/dev`` with a few harmless devices.

They belong to this process's mount namespace. Require :func:`danlu.sandbox.userns.enter`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.sandbox import _linux, userns

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
def mount_devices(place: Path) -> Iterator[Path]:
    """Yield a directory below ``place`` to bind as ``/dev``, the same for root and rootless.

    Device nodes that are created in it later do not work (nodev).
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
            _linux.mount(str(nodes / name), str(here / name), flags=_linux.MS_BIND)
        for name in _DIRECTORIES:
            (here / name).mkdir()
        for name, target in _LINKS.items():
            (here / name).symlink_to(target)
        yield here


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
