"""A ``/dev`` of a few harmless devices, the same for root and for an ordinary user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from danlu.sandbox import _linux, userns

__all__ = ["mounted"]

_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_DIRECTORIES = ("mqueue", "pts", "shm")
_LINKS = {
    "core": "/proc/kcore",
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stderr": "/proc/self/fd/2",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
}


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """Give a directory below ``place`` to bind as ``/dev``: nodes made in it later are dead."""
    place.mkdir()
    with _nodes(place / "nodes") as nodes, _memory(place / "dev", _linux.MS_NODEV) as here:
        for name in _DEVICES:
            (here / name).touch()
            _linux.mount(str(nodes / name), str(here / name), flags=_linux.MS_BIND)
        for name in _DIRECTORIES:
            (here / name).mkdir()
        for name, target in _LINKS.items():
            (here / name).symlink_to(target)
        yield here


@contextmanager
def _nodes(place: Path) -> Iterator[Path]:
    """Give a directory with the devices to bind.

    Root makes its own: a bind shows the inode, and root inside may change the machine's modes.
    """
    if userns.unprivileged():
        yield Path("/dev")
        return
    with _memory(place) as here:
        for name in _DEVICES:
            os.mknod(here / name, stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)
            (here / name).chmod(0o666)
        yield here


@contextmanager
def _memory(place: Path, flags: int = 0) -> Iterator[Path]:
    place.mkdir()
    _linux.mount("tmpfs", str(place), "tmpfs", _linux.MS_NOSUID | flags, "mode=755,size=1m")
    try:
        yield place
    finally:
        _linux.umount(str(place), _linux.MNT_DETACH)
        place.rmdir()
