"""A stranger's layer, unpacked into a tree in overlayfs's form, and nowhere else."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import MachineError, StoreError
from danlu.oci.digest import DiffId
from danlu.oci.overlay import (
    META_PREFIX,
    OPAQUE_NAME,
    OPAQUE_XATTR,
    WHITEOUT_PREFIX,
    is_whiteout,
    make_whiteout,
    travels,
)
from danlu.oci.tar.places import Places, path_in, split
from danlu.oci.tar.read import Entry, LayerError, Readable, TarReader
from danlu.oci.tar.recipe import Recipe, Recorder, rewrite_layer
from danlu.oci.tar.summary import LayerSummary
from danlu.oci.text import printable
from danlu.util.space import full_disk, is_full

__all__ = ["Extracted", "Limits", "extract_layer", "extract_with_recipe"]


class Limits(msgspec.Struct, frozen=True):
    """What a layer may ask for at most: entries, and bytes of its uncompressed tar."""

    entries: int = 2_000_000
    size: int = 1 << 40


class Extracted(msgspec.Struct, frozen=True):
    """A layer that was unpacked, and how to write its tar again, where that is known."""

    summary: LayerSummary
    recipe: Recipe | None


def extract_layer(stream: Readable, root: Path, *, limits: Limits = Limits()) -> LayerSummary:
    """Unpack the uncompressed tar ``stream`` below ``root``, an existing directory of ours.

    OCI whiteouts become overlayfs's. Modes, times and, as root, owners are kept. The diff id
    returned is that of all bytes of ``stream``; comparing it is the caller's.

    Raises :class:`LayerError` for a damaged tar and for what no layer may hold: absolute names,
    ``..``, ways out of ``root`` through links, devices, more than ``limits``;
    :class:`StoreError` where the disk is full; :class:`MachineError` where this machine cannot
    hold what the layer has (owners that are not mapped, extended attributes).
    """
    return _extract(stream, root, limits, None).summary


def extract_with_recipe(stream: Readable, root: Path, *, limits: Limits = Limits()) -> Extracted:
    """Unpack as :func:`extract_layer` does, and learn how to write the tar again.

    The recipe has been tried; there is none for a tar so odd that it did not work.
    """
    extracted = _extract(stream, root, limits, Recorder())
    summary, recipe = extracted.summary, extracted.recipe
    try:
        works = recipe is not None and rewrite_layer(root, None, recipe) == summary
    except StoreError:
        works = False
    return Extracted(summary, recipe if works else None)


def _extract(stream: Readable, root: Path, limits: Limits, recorder: Recorder | None) -> Extracted:
    reader = TarReader(stream, limit=limits.size, literal=recorder.literal if recorder else None)
    entries = 0
    with _disk_errors(root), Places(os.fsencode(root)) as places:
        extractor = _Extractor(reader, places, recorder)
        for entry in reader:
            entries += 1
            if entries > limits.entries or entry.size > limits.size:
                raise LayerError(
                    "the layer is bigger than any layer may be, "
                    f"{limits.entries} entries and {limits.size} bytes"
                )
            extractor.add(entry)
        extractor.finish()
    summary = LayerSummary(DiffId(reader.digest()), reader.size, entries)
    recipe = None if recorder is None else recorder.recipe(entries)
    return Extracted(summary, recipe)


@contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full_disk(str(root)) from error
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise LayerError(
                f"the layer holds a name that no file can have: {printable(str(error))}"
            ) from error
        raise StoreError(f"cannot unpack a layer below {root}: {error}") from error


class _Extractor:
    def __init__(self, reader: TarReader, places: Places, recorder: Recorder | None) -> None:
        self._reader = reader
        self._recorder = recorder
        self._places = places
        self._root_user = os.geteuid() == 0
        #: Directories whose mode and time are set when nothing more is written into them.
        self._directories: dict[tuple[bytes, ...], Entry] = {}
        self._makers: dict[bytes, Callable[[int, tuple[bytes, ...], Entry], None]] = {
            b"\0": self._file,
            b"0": self._file,
            b"7": self._file,
            b"1": self._hard_link,
            b"2": self._symlink,
            b"6": self._fifo,
        }

    def add(self, entry: Entry) -> None:
        """Make one entry."""
        parts = split(entry.name)
        if not parts:
            if entry.kind != b"5":
                raise LayerError("the layer wants to replace its own root")
            self._directories[()] = entry
            return
        parent = self._places.directory(parts[:-1])
        base = parts[-1]
        if base.startswith(WHITEOUT_PREFIX):
            self._whiteout(parent, base)
        elif entry.kind == b"5" or (entry.kind == b"\0" and entry.name.endswith(b"/")):
            self._directory(parent, parts, entry)
        elif entry.kind in self._makers:
            self._clear(parent, parts)
            self._makers[entry.kind](parent, parts, entry)
        else:
            raise LayerError(
                f"the layer holds a device, /{printable(entry.name)}",
                hint="danlu makes no devices; whoever builds the image can leave it out",
            )

    def finish(self) -> None:
        """Give directories their modes, owners and times: the deepest first."""
        for parts in sorted(self._directories, key=len, reverse=True):
            entry = self._directories[parts]
            descriptor = self._places.find(parts)
            if descriptor is None:
                continue
            self._chown(descriptor, entry)
            os.fchmod(descriptor, entry.mode)
            self._set_attributes(descriptor, entry)
            os.utime(descriptor, ns=_times(entry))

    def _directory(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        base = parts[-1]
        status = _status(parent, base)
        if status is None or not stat.S_ISDIR(status.st_mode):
            deleted = status is not None and is_whiteout(path_in(parent, base), status)
            self._clear(parent, parts)
            os.mkdir(base, 0o700, dir_fd=parent)
            if deleted:
                self._make_opaque(self._places.directory(parts))
        self._directories[parts] = entry

    def _whiteout(self, parent: int, base: bytes) -> None:
        """A deletion of what lower layers have, never of what this layer has."""
        if base == OPAQUE_NAME:
            self._make_opaque(parent)
            return
        if base.startswith(META_PREFIX):
            return
        name = base[len(WHITEOUT_PREFIX) :]
        if name in (b"", b".", b".."):
            raise LayerError(f"the layer deletes a name that no file can have: {base!r}")
        status = _status(parent, name)
        if status is None:
            make_whiteout(name, directory=parent)
        elif stat.S_ISDIR(status.st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                self._make_opaque(descriptor)
            finally:
                os.close(descriptor)

    def _clear(self, parent: int, parts: tuple[bytes, ...]) -> None:
        """Remove what an earlier entry put in this place."""
        base = parts[-1]
        status = _status(parent, base)
        if status is None:
            return
        if self._recorder is not None:
            self._recorder.replacing(parts, parent)
        if stat.S_ISREG(status.st_mode):
            os.unlink(base, dir_fd=parent)
            return
        # A way that led through a link or directory leads elsewhere now.
        self._places.forget(keep=parent)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(base, dir_fd=parent)
            for one in [known for known in self._directories if known[: len(parts)] == parts]:
                del self._directories[one]
        else:
            os.unlink(base, dir_fd=parent)

    def _file(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(parts[-1], flags, 0o600, dir_fd=parent)
        if self._recorder is not None:
            self._recorder.file(parts, entry.size)
        try:
            for piece in self._reader.content():
                view = memoryview(piece)
                while view:
                    view = view[os.write(descriptor, view) :]
            self._chown(descriptor, entry)
            os.fchmod(descriptor, entry.mode)
            # After chown, which drops capabilities.
            self._set_attributes(descriptor, entry)
            os.utime(descriptor, ns=_times(entry))
        finally:
            os.close(descriptor)

    def _hard_link(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        target = split(entry.link)
        missing = LayerError(
            f"/{printable(entry.name)} is a link to /{printable(entry.link)}, "
            "which the layer does not have"
        )
        if not target:
            raise missing
        source = self._places.find(target[:-1])
        if source is None:
            raise missing
        status = _status(source, target[-1])
        if (
            status is None
            or stat.S_ISDIR(status.st_mode)
            or is_whiteout(path_in(source, target[-1]), status)
        ):
            raise missing
        os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)

    def _symlink(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        if not entry.link:
            raise LayerError(f"/{printable(entry.name)} is a link to nothing")
        os.symlink(entry.link, parts[-1], dir_fd=parent)
        self._own(parent, parts[-1], entry)

    def _fifo(self, parent: int, parts: tuple[bytes, ...], entry: Entry) -> None:
        os.mkfifo(parts[-1], 0o600, dir_fd=parent)
        self._own(parent, parts[-1], entry)

    def _own(self, parent: int, base: bytes, entry: Entry) -> None:
        self._chown(base, entry, parent)
        if entry.kind != b"2":
            os.chmod(base, entry.mode, dir_fd=parent)
        os.utime(base, ns=_times(entry), dir_fd=parent, follow_symlinks=False)

    def _chown(self, place: int | bytes, entry: Entry, parent: int | None = None) -> None:
        if not self._root_user:
            return
        try:
            if isinstance(place, int):
                os.fchown(place, entry.uid, entry.gid)
            else:
                os.chown(place, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise MachineError(
                f"/{printable(entry.name)} belongs to {entry.uid}:{entry.gid}, "
                "which this account has no ids for",
                hint="give it more subordinate ids in /etc/subuid and /etc/subgid",
            ) from error

    def _set_attributes(self, descriptor: int, entry: Entry) -> None:
        for name, value in sorted(entry.attributes.items()):
            if travels(name):
                _set_attribute(descriptor, name, value)

    def _make_opaque(self, descriptor: int) -> None:
        _set_attribute(descriptor, OPAQUE_XATTR, b"y")


def _set_attribute(descriptor: int, name: str, value: bytes) -> None:
    try:
        os.setxattr(descriptor, name, value)
    except OSError as error:
        # ext4 has 4 KiB for all attributes of a file, and says that the disk is full.
        too_big = error.errno == errno.E2BIG or (error.errno == errno.ENOSPC and len(value) > 1024)
        if too_big or error.errno in (errno.EOPNOTSUPP, errno.EPERM):
            raise MachineError(
                f"the store's file system cannot hold the extended attribute {printable(name)}",
                hint="move the store to ext4, xfs or btrfs with DANLU_HOME",
            ) from error
        raise


def _status(parent: int, base: bytes) -> os.stat_result | None:
    try:
        return os.stat(base, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _times(entry: Entry) -> tuple[int, int]:
    if abs(entry.mtime) > (1 << 63) - 1:
        raise LayerError(f"/{printable(entry.name)} has a time that no file can have")
    return entry.mtime, entry.mtime
