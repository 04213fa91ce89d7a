"""Mount points that a root lacks, in a layer of their own, so that no other layer shows them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from danlu.sandbox.union import Union

__all__ = ["MountPoint", "build"]


class MountPoint(msgspec.Struct, frozen=True):
    """An absolute path that must exist, as a directory or as a file."""

    target: str
    directory: bool


def build(union: Union, points: Iterable[MountPoint], layer: Path) -> bool:
    """Make what ``points`` lack below ``layer``, which is to lie on top; gives whether any did.

    Directories that the root has are repeated with its own mode, owner and time, because the
    topmost layer's are those that show. ``union`` sees the new entries afterwards.
    """
    made = False
    union.add((), str(layer))
    for point in points:
        parts = union.resolve(point.target)
        if not parts or union.entry(parts) is not None:
            continue
        made = True
        _make_parents(union, parts[:-1], layer)
        path = layer.joinpath(*parts)
        if point.directory:
            _make_directory(path)
            union.add(parts, str(path))
        else:
            path.touch(mode=0o644)
    return made


def _make_parents(union: Union, parts: tuple[str, ...], layer: Path) -> None:
    for count in range(1, len(parts) + 1):
        path = layer.joinpath(*parts[:count])
        if path.exists():
            continue
        model = union.entry(parts[:count])
        _make_directory(path)
        if model is not None:
            status = os.lstat(model)
            # An owner that has no id here cannot be given, and shows as nobody either way.
            with contextlib.suppress(OSError):
                os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, status.st_mode & 0o7777)
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
        union.add(parts[:count], str(path))


def _make_directory(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)
