"""Extract an untrusted layer into a tree in overlayfs's form, and nowhere else."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.errors import MachineError, StoreError
from danlu.oci.digest import DiffId
from danlu.oci.overlay import (
    META_PREFIX,
    OPAQUE_NAME,
    OPAQUE_XATTR,
    WHITEOUT_PREFIX,
    is_layer_xattr,
    is_whiteout,
    make_whiteout,
)
from danlu.oci.tar.layer_paths import LayerDirectories, LayerSummary, proc_fd_path, split_layer_path
from danlu.oci.tar.read import LayerError, Readable, TarEntry, TarReader, TypeFlag
from danlu.oci.tar.tar_split import TarSplit, TarSplitRecorder, rewrite_layer
from danlu.util.disk_full import disk_full_error, is_disk_full
from danlu.util.id_maps import account_name, suggest_usermod
from danlu.util.sanitize import escape_unprintable


class LayerLimits(msgspec.Struct, frozen=True):
    """The maximum number of entries and bytes of a layer's uncompressed tar."""

    entries: int = 2_000_000
    size: int = 1 << 40


class ExtractedLayer(msgspec.Struct, frozen=True):
    """A layer that was extracted, and how to write its tar again, if possible."""

    summary: LayerSummary
    recipe: TarSplit | None


class EntryReader(Protocol):
    """The entries of an archive; :meth:`content` yields the bytes of the last one."""

    def __iter__(self) -> Iterator[TarEntry]: ...

    def content(self) -> Iterator[bytes]:
        """Yield the content of the last entry in chunks."""
        ...


def extract_layer(
    stream: Readable, root: Path, *, limits: LayerLimits = LayerLimits()
) -> LayerSummary:
    """Extract the uncompressed tar ``stream`` below ``root``, an existing directory that we own.

    OCI whiteouts become overlayfs whiteouts. Modes, times and, as root, owners are kept. The
    returned diff ID covers all bytes of ``stream``; the caller must compare it.

    Raises :class:`LayerError` for a damaged tar and for anything a layer must not contain: absolute
    names, ``..``, links that lead out of ``root``, devices, more than ``limits``. Raises
    :class:`StoreError` if the disk is full, and :class:`MachineError` if this machine cannot
    represent the layer (unmapped owners, extended attributes).
    """
    return _extract_layer_tar(stream, root, limits, None).summary


def extract_with_tar_split(
    stream: Readable, root: Path, *, limits: LayerLimits = LayerLimits()
) -> ExtractedLayer:
    """Extract like :func:`extract_layer`, and record how to write the tar again.

    The result has been verified. It is None for a tar so unusual that it could not be reproduced.
    """
    extracted = _extract_layer_tar(stream, root, limits, TarSplitRecorder())
    summary, recipe = extracted.summary, extracted.recipe
    try:
        works = recipe is not None and rewrite_layer(root, None, recipe) == summary
    except StoreError:
        works = False
    return ExtractedLayer(summary, recipe if works else None)


def extract_entries(
    reader: EntryReader,
    root: Path,
    *,
    limits: LayerLimits = LayerLimits(),
    recorder: TarSplitRecorder | None = None,
) -> int:
    """Extract the entries of ``reader`` below ``root`` like :func:`extract_layer`.

    Returns their number. ``recorder`` records what was written, to write the same tar again.
    """
    entries = 0
    with _translate_disk_errors(root), LayerDirectories(os.fsencode(root)) as paths:
        extractor = _LayerExtractor(reader, paths, recorder)
        for entry in reader:
            entries += 1
            if entries > limits.entries or entry.size > limits.size:
                raise LayerError(
                    f"the layer exceeds the limit of {limits.entries} entries or "
                    f"{limits.size} bytes"
                )
            extractor.extract_entry(entry)
        extractor.finish_directories()
    return entries


def _extract_layer_tar(
    stream: Readable, root: Path, limits: LayerLimits, recorder: TarSplitRecorder | None
) -> ExtractedLayer:
    reader = TarReader(
        stream, limit=limits.size, literal=recorder.add_literal if recorder else None
    )
    entries = extract_entries(reader, root, limits=limits, recorder=recorder)
    summary = LayerSummary(DiffId(reader.digest()), reader.size, entries)
    recipe = None if recorder is None else recorder.finish(entries)
    return ExtractedLayer(summary, recipe)


@contextmanager
def _translate_disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise disk_full_error(str(root)) from error
        # Names that this file system cannot store are the layer's fault, not the disk's.
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise LayerError(
                f"the layer contains an invalid file name: {escape_unprintable(str(error))}"
            ) from error
        raise StoreError(f"cannot extract a layer to {root}: {error}") from error


class _LayerExtractor:
    def __init__(
        self, reader: EntryReader, paths: LayerDirectories, recorder: TarSplitRecorder | None
    ) -> None:
        self._reader = reader
        self._recorder = recorder
        self._paths = paths
        self._is_root = os.geteuid() == 0
        #: Directories whose metadata is set at the end: writing into them would change their times.
        self._directories: dict[tuple[bytes, ...], TarEntry] = {}
        self._entry_writers: dict[bytes, Callable[[int, tuple[bytes, ...], TarEntry], None]] = {
            TypeFlag.OLD_REGULAR: self._write_file,
            TypeFlag.REGULAR: self._write_file,
            TypeFlag.CONTIGUOUS: self._write_file,
            TypeFlag.HARD_LINK: self._make_hard_link,
            TypeFlag.SYMLINK: self._make_symlink,
            TypeFlag.FIFO: self._make_fifo,
        }

    def extract_entry(self, entry: TarEntry) -> None:
        """Create one entry."""
        parts = split_layer_path(entry.name)
        if not parts:
            if entry.kind != TypeFlag.DIRECTORY:
                raise LayerError("the layer tries to replace its root directory")
            self._directories[()] = entry
            return
        parent = self._paths.ensure_directory(parts[:-1])
        base = parts[-1]
        if base.startswith(WHITEOUT_PREFIX):
            self._apply_whiteout(parent, base)
        # Tars from before POSIX mark a directory only by its trailing slash.
        elif entry.kind == TypeFlag.DIRECTORY or (
            entry.kind == TypeFlag.OLD_REGULAR and entry.name.endswith(b"/")
        ):
            self._make_directory(parent, parts, entry)
        elif entry.kind in self._entry_writers:
            self._remove_existing(parent, parts)
            self._entry_writers[entry.kind](parent, parts, entry)
        else:
            raise LayerError(
                f"the layer contains a device: /{escape_unprintable(entry.name)}",
                hint="danlu does not create devices; build the image without it",
            )

    def finish_directories(self) -> None:
        """Set modes, owners and times of directories, the deepest first."""
        # At the end and from the bottom up: creating an entry changes its directory's time, and the
        # final mode may forbid creating any.
        for parts in sorted(self._directories, key=len, reverse=True):
            entry = self._directories[parts]
            descriptor = self._paths.open_directory(parts)
            if descriptor is None:
                continue
            self._set_owner(descriptor, entry)
            os.fchmod(descriptor, entry.mode)
            self._set_attributes(descriptor, entry)
            os.utime(descriptor, ns=_entry_times(entry))

    def _make_directory(self, parent: int, parts: tuple[bytes, ...], entry: TarEntry) -> None:
        base = parts[-1]
        status = _lstat_entry(parent, base)
        if status is None or not stat.S_ISDIR(status.st_mode):
            deleted = status is not None and is_whiteout(proc_fd_path(parent, base), status)
            self._remove_existing(parent, parts)
            # Its own mode is set at the end: it might keep even us from writing into it.
            os.mkdir(base, 0o700, dir_fd=parent)
            if deleted:
                self._make_opaque(self._paths.ensure_directory(parts))
        self._directories[parts] = entry

    def _apply_whiteout(self, parent: int, base: bytes) -> None:
        """Delete what lower layers have, but never what this layer has."""
        if base == OPAQUE_NAME:
            self._make_opaque(parent)
            return
        # Files of AUFS itself, such as `.wh..wh.plnk`, hide nothing.
        if base.startswith(META_PREFIX):
            return
        name = base[len(WHITEOUT_PREFIX) :]
        if name in (b"", b".", b".."):
            raise LayerError(f"the layer has an invalid whiteout: {base!r}")
        status = _lstat_entry(parent, name)
        if status is None:
            make_whiteout(name, directory=parent)
        elif stat.S_ISDIR(status.st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                self._make_opaque(descriptor)
            finally:
                os.close(descriptor)

    def _remove_existing(self, parent: int, parts: tuple[bytes, ...]) -> None:
        """Remove what an earlier entry created at this path."""
        base = parts[-1]
        status = _lstat_entry(parent, base)
        if status is None:
            return
        if self._recorder is not None:
            self._recorder.save_replaced_content(parts, parent)
        if stat.S_ISREG(status.st_mode):
            os.unlink(base, dir_fd=parent)
            return
        # Cached descriptors may be of paths through this link or directory.
        self._paths.forget(keep=parent)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(base, dir_fd=parent)
            for replaced in [known for known in self._directories if known[: len(parts)] == parts]:
                del self._directories[replaced]
        else:
            os.unlink(base, dir_fd=parent)

    def _write_file(self, parent: int, parts: tuple[bytes, ...], entry: TarEntry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(parts[-1], flags, 0o600, dir_fd=parent)
        if self._recorder is not None:
            self._recorder.add_file(parts, entry.size)
        try:
            for piece in self._reader.content():
                # os.write may write less than requested.
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            self._set_owner(descriptor, entry)
            os.fchmod(descriptor, entry.mode)
            # After chown, because chown removes security.capability.
            self._set_attributes(descriptor, entry)
            os.utime(descriptor, ns=_entry_times(entry))
        finally:
            os.close(descriptor)

    def _make_hard_link(self, parent: int, parts: tuple[bytes, ...], entry: TarEntry) -> None:
        target = split_layer_path(entry.link)
        missing = LayerError(
            f"/{escape_unprintable(entry.name)} is a hard link to "
            f"/{escape_unprintable(entry.link)}, which the layer does not contain"
        )
        if not target:
            raise missing
        source = self._paths.open_directory(target[:-1])
        if source is None:
            raise missing
        status = _lstat_entry(source, target[-1])
        if (
            status is None
            or stat.S_ISDIR(status.st_mode)
            or is_whiteout(proc_fd_path(source, target[-1]), status)
        ):
            raise missing
        # Without follow_symlinks=False a hard link to a symlink would reach its target.
        os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _make_symlink(self, parent: int, parts: tuple[bytes, ...], entry: TarEntry) -> None:
        if not entry.link:
            raise LayerError(
                f"/{escape_unprintable(entry.name)} is a symbolic link without a target"
            )
        os.symlink(entry.link, parts[-1], dir_fd=parent)
        self._set_metadata(parent, parts[-1], entry)

    def _make_fifo(self, parent: int, parts: tuple[bytes, ...], entry: TarEntry) -> None:
        os.mkfifo(parts[-1], 0o600, dir_fd=parent)
        self._set_metadata(parent, parts[-1], entry)

    def _set_metadata(self, parent: int, base: bytes, entry: TarEntry) -> None:
        # The owner first: chown(2) clears the set-user-ID and set-group-ID bits of programs.
        self._set_owner(base, entry, parent)
        if entry.kind != TypeFlag.SYMLINK:
            os.chmod(base, entry.mode, dir_fd=parent)
        os.utime(base, ns=_entry_times(entry), dir_fd=parent, follow_symlinks=False)

    def _set_owner(self, place: int | bytes, entry: TarEntry, parent: int | None = None) -> None:
        if not self._is_root:
            return
        try:
            if isinstance(place, int):
                os.fchown(place, entry.uid, entry.gid)
            else:
                os.chown(place, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        except (OSError, OverflowError) as error:
            # EINVAL: the id has no mapping in this user namespace (user_namespaces(7)).
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise MachineError(
                f"/{escape_unprintable(entry.name)} belongs to {entry.uid}:{entry.gid}, "
                "ids that are not mapped for this account",
                hint=suggest_usermod(account_name()),
            ) from error

    def _set_attributes(self, descriptor: int, entry: TarEntry) -> None:
        for name, value in sorted(entry.attributes.items()):
            if is_layer_xattr(name):
                _set_attribute(descriptor, name, value)

    def _make_opaque(self, descriptor: int) -> None:
        _set_attribute(descriptor, OPAQUE_XATTR, b"y")


def _set_attribute(descriptor: int, name: str, value: bytes) -> None:
    try:
        os.setxattr(descriptor, name, value)
    except OSError as error:
        # ext4 has 4 KiB for all attributes of a file, and reports ENOSPC when they don't fit.
        too_big = error.errno == errno.E2BIG or (error.errno == errno.ENOSPC and len(value) > 1024)
        if too_big or error.errno in (errno.EOPNOTSUPP, errno.EPERM):
            raise MachineError(
                f"the store's file system cannot store the extended attribute "
                f"{escape_unprintable(name)}",
                hint="move the store to ext4, xfs or btrfs with DANLU_HOME",
            ) from error
        if error.errno == errno.EINVAL:
            raise LayerError(
                f"the layer has an invalid value for the extended attribute "
                f"{escape_unprintable(name)}"
            ) from error
        raise


def _lstat_entry(parent: int, base: bytes) -> os.stat_result | None:
    try:
        return os.stat(base, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _entry_times(entry: TarEntry) -> tuple[int, int]:
    if abs(entry.mtime) > (1 << 63) - 1:
        raise LayerError(f"/{escape_unprintable(entry.name)} has an invalid modification time")
    return entry.mtime, entry.mtime
