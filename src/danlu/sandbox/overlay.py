"""Merge a stack of layers into one directory: by an overlay mount, or by copying where none works.

Copying gives the same result. It compares the directory before and after, and records the changes
in overlayfs's form.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import MachineError
from danlu.oci.overlay import OPAQUE_XATTR, is_opaque, is_whiteout, make_whiteout
from danlu.sandbox import _linux
from danlu.sandbox.types import RootFilesystem
from danlu.util.files import private_directory, remove_tree

# index=off: an upper can be reused immediately after another mount of it.
# volatile (Linux >= 5.10): an upper is discarded after a crash, so fsync would be wasted.
_OPTIONS = ("userxattr,index=off,volatile", "userxattr,index=off", "userxattr")
_UNSUPPORTED_ERRNOS = (
    errno.EINVAL,
    errno.ENODEV,
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ELOOP,
    errno.ENOSYS,
)

# Changes whenever an entry is changed: unlike mtime, ctime cannot be set back.
Signature = tuple[int, int, int, int]
# Set on every copied directory: a new one may reuse the inode number of a removed one.
_COPIED_XATTR = "user.danlu.copied"


@contextmanager
def mount_root(root: RootFilesystem, work: Path) -> Iterator[Path]:
    """Yield the merged directory of ``root``.

    ``work`` is a private directory on the file system of ``root.upper``. Afterwards the upper
    contains the changes, in overlayfs's form; without an upper they are discarded. Device nodes in
    the layers do not work. If the kernel refuses the mount (for example because the upper is itself
    on an overlay), layers are copied. Requires :func:`danlu.sandbox.userns.enter`.
    """
    place = private_directory(work, "root")
    try:
        upper = root.upper if root.upper is not None else _make_directory(place / "upper")
        _set_root_metadata(upper)
        merged = _make_directory(place / "merged")
        # The kernel refuses a layer that is mounted twice. All it has is in the upper one.
        layers = tuple(reversed(dict.fromkeys(reversed(root.layers))))
        if _mount_layers(layers, upper=upper, merged=merged, place=place, durable=root.durable):
            try:
                yield merged
            finally:
                _unmount_overlay(merged)
        else:
            with copy_and_mount(layers, merged, upper=root.upper):
                yield merged
    finally:
        remove_tree(place)


def supports_overlay(work: Path) -> bool:
    """Return whether the kernel mounts overlays with an upper in ``work``, by trying it."""
    place = private_directory(work, "try")
    try:
        upper, merged = _make_directory(place / "upper"), _make_directory(place / "merged")
        if not _mount_layers((), upper=upper, merged=merged, place=place):
            return False
        _unmount_overlay(merged)
        return True
    finally:
        remove_tree(place)


def _make_directory(path: Path) -> Path:
    path.mkdir()
    return path


def _set_root_metadata(upper: Path) -> None:
    # The upper's mode becomes that of "/" inside, and staging directories are private.
    os.chown(upper, 0, 0)
    os.chmod(upper, 0o755)


def _mount_layers(
    layers: Sequence[Path], *, upper: Path, merged: Path, place: Path, durable: bool = False
) -> bool:
    """Mount the overlay and return whether the kernel supports it."""
    lowest = [_make_directory(place / "empty")] if not layers else []
    stack = [*lowest, *layers]
    workdir = _make_directory(place / "work")
    try:
        _linux.mount_overlay(
            str(merged),
            lower=[str(layer.absolute()) for layer in reversed(stack)],
            upper=str(upper),
            work=str(workdir),
            flags=("userxattr",) if durable else ("userxattr", "volatile"),
        )
    except OSError:
        # An older kernel, a long path, or no overlay support at all: the older call will tell.
        return _mount_by_options(stack, upper=upper, merged=merged, place=place, durable=durable)
    return True


def _mount_by_options(
    stack: Sequence[Path], *, upper: Path, merged: Path, place: Path, durable: bool = False
) -> bool:
    """Mount like :func:`_mount_layers` by mount(2), whose options are limited to one page.

    So layers are named by short links in one directory.
    """
    names = _make_directory(place / "l")
    for number, layer in enumerate(stack):
        (names / _short_name(number)).symlink_to(layer.absolute())
    (names / "upper").symlink_to(upper.absolute())
    (names / "work").symlink_to(place / "work")
    lower = ":".join(_short_name(number) for number in reversed(range(len(stack))))
    for options in _OPTIONS[durable:]:
        data = f"{options},lowerdir={lower},upperdir=upper,workdir=work"
        try:
            _mount_from_directory(names, str(merged), data)
            return True
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRNOS:
                raise MachineError(
                    f"cannot mount the layers: {error.strerror}",
                    hint="run `danlu doctor`; `dmesg | tail` may show the kernel's reason",
                ) from error
    return False


def _short_name(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[number] if number < 36 else _short_name(number // 36) + digits[number % 36]


def _mount_from_directory(directory: Path, target: str, data: str) -> None:
    """Mount an overlay whose options name entries of ``directory``.

    The directory becomes the working directory of a single thread (unshare(2), CLONE_FS), which
    avoids changing it for the process or forking.
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


def _unmount_overlay(merged: Path) -> None:
    try:
        _linux.umount(str(merged))
    except OSError:
        # A process still uses it: a lazy unmount takes effect when that exits.
        _linux.umount(str(merged), _linux.MNT_DETACH)


@contextmanager
def copy_and_mount(layers: Sequence[Path], target: Path, *, upper: Path | None) -> Iterator[None]:
    """Fill ``target`` with copies of ``layers``, and move changes to ``upper`` at the end.

    What ``upper`` contains already counts as changed.
    """
    for layer in layers:
        copy_layer(layer, target)
    before = take_snapshot(target)
    if upper is not None:
        copy_layer(upper, target)
        for entry in list(upper.iterdir()):
            remove_tree(entry)
    target.chmod(0o755)
    # Flags belong to mounts, so the directory must be one. The first call only binds and ignores
    # other flags (mount(2)), hence the second.
    _linux.mount(str(target), str(target), flags=_linux.MS_BIND)
    try:
        flags = _linux.MS_BIND | _linux.MS_REMOUNT | _linux.MS_NODEV
        _linux.mount("none", str(target), flags=flags)
        yield
    finally:
        _linux.umount(str(target), _linux.MNT_DETACH)
    if upper is not None:
        move_changes(target, before, upper)


def copy_layer(layer: Path, target: Path) -> None:
    """Copy ``layer`` over ``target``, applying its whiteouts."""
    _copy_tree(str(layer), str(target), {})


def _copy_tree(source: str, target: str, links: dict[tuple[int, int], str]) -> None:
    with os.scandir(source) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        status = entry.stat(follow_symlinks=False)
        destination = f"{target}/{entry.name}"
        if is_whiteout(entry.path, status):
            remove_tree(Path(destination))
        elif stat.S_ISDIR(status.st_mode):
            _copy_directory(entry.path, destination, status, links)
        else:
            remove_tree(Path(destination))
            key = (status.st_dev, status.st_ino)
            if status.st_nlink > 1 and key in links:
                os.link(links[key], destination, follow_symlinks=False)
                continue
            links[key] = destination
            _copy_file(entry.path, destination, status)


def _copy_directory(
    source: str, target: str, status: os.stat_result, links: dict[tuple[int, int], str]
) -> None:
    plain = os.path.isdir(target) and not os.path.islink(target)
    if not plain or is_opaque(source):
        remove_tree(Path(target))
        os.mkdir(target)
    _copy_tree(source, target, links)
    _copy_metadata(source, target, status)


def _copy_file(source: str, target: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    else:
        os.mknod(target, status.st_mode, status.st_rdev)
    _copy_metadata(source, target, status)


def _copy_metadata(source: str, target: str, status: os.stat_result) -> None:
    # The owner first: chown(2) clears the set-user-ID and set-group-ID bits of programs.
    os.lchown(target, status.st_uid, status.st_gid)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, status.st_mode & 0o7777)
    for name in os.listxattr(source, follow_symlinks=False):
        # These describe how the layer is stacked, and are not content of the merged tree.
        if not name.startswith(("user.overlay.", "trusted.overlay.", _COPIED_XATTR)):
            value = os.getxattr(source, name, follow_symlinks=False)
            os.setxattr(target, name, value, follow_symlinks=False)
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(target, ns=times, follow_symlinks=False)


def take_snapshot(root: Path) -> dict[str, Signature]:
    """Return the signature of every entry below ``root``, by its relative path.

    Marks the directories with an extended attribute so that they can be recognised later.
    """
    for path, status in _walk_entries(str(root), ""):
        if stat.S_ISDIR(status.st_mode):
            os.setxattr(root / path, _COPIED_XATTR, b"y")
    # After the marks were set, which changes the ctime of the directories.
    return {path: _entry_signature(status) for path, status in _walk_entries(str(root), "")}


def _entry_signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_mode


def _walk_entries(root: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(f"{root}/{below}") as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        path = f"{below}/{entry.name}" if below else entry.name
        status = entry.stat(follow_symlinks=False)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk_entries(root, path)


def move_changes(root: Path, before: dict[str, Signature], upper: Path) -> None:
    """Move what changed in ``root`` since ``before`` to ``upper``, in overlayfs's form."""
    now = dict(_walk_entries(str(root), ""))
    fresh = _fresh_directories(root, now, before)
    for path, status in now.items():
        if before.get(path) != _entry_signature(status) or _parent_path(path) in fresh:
            _move_entry(root, path, now, upper)
            if path in fresh and path in before and _parent_path(path) not in fresh:
                os.setxattr(upper / path, OPAQUE_XATTR, b"y")
    for path in before:
        above = _parent_path(path)
        if path not in now and above not in fresh and _is_directory(above, now):
            _copy_up_parents(root, path, now, upper)
            _put_whiteout(upper / path)
    # Adding entries changes a directory's time, so times are set last.
    for path, status in now.items():
        if stat.S_ISDIR(status.st_mode) and (upper / path).is_dir():
            os.utime(upper / path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _fresh_directories(
    root: Path, now: dict[str, os.stat_result], before: dict[str, Signature]
) -> set[str]:
    """Return the directories that replaced those of the layers and so hide them."""
    fresh: set[str] = set()
    for path, status in now.items():
        if not stat.S_ISDIR(status.st_mode):
            continue
        old = before.get(path)
        same = (
            old is not None
            and old[0] == status.st_ino
            and _COPIED_XATTR in os.listxattr(root / path)
        )
        if _parent_path(path) in fresh or not same:
            fresh.add(path)
    return fresh


def _is_directory(path: str, now: dict[str, os.stat_result]) -> bool:
    return path == "" or (path in now and stat.S_ISDIR(now[path].st_mode))


def _parent_path(path: str) -> str:
    return path.rpartition("/")[0]


def _move_entry(root: Path, path: str, now: dict[str, os.stat_result], upper: Path) -> None:
    _copy_up_parents(root, path, now, upper)
    status = now[path]
    if stat.S_ISDIR(status.st_mode):
        _copy_up_directory(root, path, status, upper)
    else:
        os.rename(root / path, upper / path)


def _copy_up_parents(root: Path, path: str, now: dict[str, os.stat_result], upper: Path) -> None:
    parts = path.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        parent = "/".join(parts[:count])
        _copy_up_directory(root, parent, now[parent], upper)


def _copy_up_directory(root: Path, path: str, status: os.stat_result, upper: Path) -> None:
    if not (upper / path).exists():
        (upper / path).mkdir()
        _copy_metadata(str(root / path), str(upper / path), status)


def _put_whiteout(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        make_whiteout(path.name, directory=directory)
    finally:
        os.close(directory)
