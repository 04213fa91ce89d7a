"""Parse the untrusted paths of a layer, and open them without leaving its root."""

from __future__ import annotations

import os

import msgspec

from danlu.oci.digest import DiffId
from danlu.oci.overlay import OPAQUE_XATTR, is_whiteout
from danlu.oci.tar.read import LayerError
from danlu.util.safe_paths import MAX_DEPTH, DirectoryResolver, Problem, enter_directory
from danlu.util.sanitize import escape_unprintable

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerSummary(msgspec.Struct, frozen=True):
    """A layer's diff ID, the size of its uncompressed tar, and its number of entries."""

    diff_id: DiffId
    size: int
    files: int


def split_layer_path(name: bytes) -> tuple[bytes, ...]:
    """Return the components of a path; raise :class:`LayerError` if it leads outside."""
    if name.startswith(b"/"):
        raise LayerError(f"the layer contains an absolute path: {escape_unprintable(name)!r}")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in name:
        raise LayerError(
            f"the layer contains a path that leads outside: {escape_unprintable(name)!r}"
        )
    if len(parts) > MAX_DEPTH:
        raise LayerError(f"the layer contains a path that is {len(parts)} directories deep")
    return parts


def proc_fd_path(directory: int, name: bytes) -> bytes:
    """Return a path of the entry ``name`` in an open directory, for calls without a dir_fd."""
    return b"/proc/self/fd/%d/%s" % (directory, name)


class LayerDirectories(DirectoryResolver):
    """Open directories below a layer's root, which is what ``/`` means in absolute links.

    A symbolic link that an earlier entry created is resolved; one that leads out of the root raises
    :class:`LayerError`.
    """

    def __enter__(self) -> LayerDirectories:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def ensure_directory(self, parts: tuple[bytes, ...]) -> int:
        """Return a descriptor of the directory ``parts``, created with mode 0755 if missing."""
        opened = self._find_or_open(parts, _enter_or_create)
        assert opened is not None
        return opened[0]

    def _path_error(
        self, problem: Problem, path: tuple[bytes, ...], link: bytes = b"", target: bytes = b""
    ) -> Exception:
        shown = "/" + escape_unprintable(b"/".join(path))
        if problem == "deep":
            return LayerError(f"the layer is nested too deeply at {shown}")
        if problem == "ring":
            return LayerError(f"the layer has a symbolic link loop at {shown}")
        return LayerError(f"the layer leads outside its root at {shown}")


def _enter_or_create(parent: int, name: bytes) -> int | bytes | None:
    """Open the directory ``name``, creating it if missing; return a link's target instead."""
    opened = enter_directory(parent, name)
    if opened is not None:
        return opened
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return _create_directory(parent, name)
    if not is_whiteout(proc_fd_path(parent, name), status):
        raise LayerError(f"the layer uses a file as a directory: {escape_unprintable(name)!r}")
    # The layer deletes the directory below and creates a new one: it must not merge with that.
    os.unlink(name, dir_fd=parent)
    created = _create_directory(parent, name)
    os.setxattr(created, OPAQUE_XATTR, b"y")
    return created


def _create_directory(parent: int, name: bytes) -> int:
    """Create a directory that the layer uses but does not list; our umask must not matter."""
    os.mkdir(name, 0o755, dir_fd=parent)
    descriptor = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    os.fchmod(descriptor, 0o755)
    return descriptor
