"""Directories in memory, for those who make them outside of a sandbox and show them in one."""

from __future__ import annotations

from pathlib import Path

from danlu.sandbox import _linux

__all__ = ["mount_memory", "unmount"]


def mount_memory(place: Path, *, size: int | None = None) -> None:
    """Have the directory ``place`` be empty memory of ``size`` bytes (half of the machine's).

    Needs :func:`danlu.sandbox.userns.enter`. Raises :class:`OSError`.
    """
    options = "mode=755" if size is None else f"mode=755,size={size}"
    _linux.mount("tmpfs", str(place), "tmpfs", _linux.MS_NOSUID | _linux.MS_NODEV, options)


def unmount(place: Path) -> None:
    """Take the mount at ``place`` away, also while somebody looks at it; raises OSError."""
    _linux.umount(str(place), _linux.MNT_DETACH)
