"""A stack of layers as one directory: an overlay mount, or copies where there can be none."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import MachineError
from danlu.sandbox import _linux
from danlu.sandbox.types import Root
from danlu.util.files import private_directory, remove_tree

__all__ = ["mounted", "supported"]

# index=off: an upper that another mount has just left may be used again at once.
# volatile (Linux >= 5.10): nothing here outlives a crash, so fsync has nothing to do.
_OPTIONS = ("userxattr,index=off,volatile", "userxattr,index=off", "userxattr")
_REFUSED = (errno.EINVAL, errno.ENODEV, errno.EPERM, errno.EOPNOTSUPP, errno.ELOOP, errno.ENOSYS)


@contextmanager
def mounted(root: Root, work: Path) -> Iterator[Path]:
    """Give the merged directory of ``root`` while the context lasts.

    ``work`` is a private directory on the file system of ``root.upper``. Afterwards the upper
    holds the changes, in overlayfs's form; an upper of None is dropped. Device nodes in the
    layers are dead. Where the kernel refuses the mount (an upper on an overlay, for one), layers
    are copied, and the changes found by comparing. Needs :func:`danlu.sandbox.userns.enter`.
    """
    place = private_directory(work, "root")
    try:
        upper = root.upper if root.upper is not None else _directory(place / "upper")
        _show_as_root(upper)
        merged = _directory(place / "merged")
        if _mount(root.layers, upper=upper, merged=merged, place=place):
            try:
                yield merged
            finally:
                _unmount(merged)
        else:
            from danlu.sandbox import copied

            with copied.merged(root.layers, merged, upper=root.upper):
                yield merged
    finally:
        remove_tree(place)


def supported(work: Path) -> bool:
    """Whether the kernel mounts overlays whose upper lies in ``work``; tries it."""
    place = private_directory(work, "try")
    try:
        upper, merged = _directory(place / "upper"), _directory(place / "merged")
        if not _mount((), upper=upper, merged=merged, place=place):
            return False
        _unmount(merged)
        return True
    finally:
        remove_tree(place)


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def _show_as_root(upper: Path) -> None:
    # The upper's own mode is that of "/" inside, and staging directories are private.
    os.chown(upper, 0, 0)
    os.chmod(upper, 0o755)


def _mount(layers: Sequence[Path], *, upper: Path, merged: Path, place: Path) -> bool:
    """Mount, and say whether the kernel did."""
    lowest = [_directory(place / "empty")] if not layers else []
    stack = [*lowest, *layers]
    workdir = _directory(place / "work")
    try:
        _linux.mount_overlay(
            str(merged),
            lower=[str(layer.absolute()) for layer in reversed(stack)],
            upper=str(upper),
            work=str(workdir),
            flags=("userxattr", "volatile"),
        )
    except OSError:
        # An older kernel, a long path, or no overlay at all: the older call tells which.
        return _mount_by_options(stack, upper=upper, merged=merged, place=place)
    return True


def _mount_by_options(stack: Sequence[Path], *, upper: Path, merged: Path, place: Path) -> bool:
    """As :func:`_mount`, by mount(2); options hold one page, so names are short links."""
    names = _directory(place / "l")
    for number, layer in enumerate(stack):
        (names / _short(number)).symlink_to(layer.absolute())
    (names / "upper").symlink_to(upper.absolute())
    (names / "work").symlink_to(place / "work")
    lower = ":".join(_short(number) for number in reversed(range(len(stack))))
    for options in _OPTIONS:
        data = f"{options},lowerdir={lower},upperdir=upper,workdir=work"
        try:
            _mount_from(names, str(merged), data)
            return True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise MachineError(
                    f"the layers could not be mounted: {error.strerror}",
                    hint="`danlu doctor` says what this machine lacks; `dmesg | tail` the reason",
                ) from error
    return False


def _short(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[number] if number < 36 else _short(number // 36) + digits[number % 36]


def _mount_from(directory: Path, target: str, data: str) -> None:
    """Mount an overlay whose options name entries of ``directory``.

    The directory becomes the working directory of one thread only (unshare(2), CLONE_FS), so
    that neither the process nor a fork of it is needed.
    """
    failure: list[OSError] = []

    def inside() -> None:
        try:
            _linux.unshare(_linux.CLONE_FS)
            os.chdir(directory)
            _linux.mount("danlu", target, "overlay", _linux.MS_NODEV, data)
        except OSError as error:
            failure.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def _unmount(merged: Path) -> None:
    try:
        _linux.umount(str(merged))
    except OSError:
        # Somebody still looks at it: it goes when they do.
        _linux.umount(str(merged), _linux.MNT_DETACH)
