"""Directories below one root, found without ever leaving it."""

from __future__ import annotations

import os
import stat

from danlu.oci.overlay import OPAQUE_XATTR, is_whiteout
from danlu.oci.tar.read import LayerError
from danlu.oci.text import printable

__all__ = ["Places", "path_in", "split"]

_MAX_LINKS = 40
#: What removes trees may recurse; nobody's directories are a tenth as deep.
_MAX_DEPTH = 400
_KEPT = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def split(name: bytes) -> tuple[bytes, ...]:
    """The components of a name in a layer; raises :class:`LayerError` for one that leads out."""
    if name.startswith(b"/"):
        raise LayerError(f"the layer holds the absolute name {printable(name)!r}")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in name:
        raise LayerError(f"the layer holds a name that leads out of it: {printable(name)!r}")
    if len(parts) > _MAX_DEPTH:
        raise LayerError(f"the layer holds a name {len(parts)} directories deep")
    return parts


def path_in(directory: int, name: bytes) -> bytes:
    """A path of the entry ``name`` of an open directory, for calls that take no descriptor."""
    return b"/proc/self/fd/%d/%s" % (directory, name)


class Places:
    """Opens directories below ``root`` step by step, each without following links.

    A symbolic link that an earlier entry of the layer put in the way is resolved by us, as if
    ``root`` were ``/``; one that leads out of ``root`` is refused. Descriptors of the directories
    found last are kept, for neighbours come one after the other; each is good for many calls.
    """

    def __init__(self, root: bytes) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._known: dict[tuple[bytes, ...], int] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *raised: object) -> None:
        self.forget()
        os.close(self._root)

    def forget(self, *, keep: int = -1) -> None:
        """Forget all directories but ``keep``, for their names may mean others now."""
        kept = {parts: one for parts, one in self._known.items() if one == keep}
        for one in self._known.values():
            if one != keep:
                os.close(one)
        self._known = kept

    def directory(self, parts: tuple[bytes, ...]) -> int:
        """A descriptor of the directory ``parts``, which is made (0755) where it is missing."""
        found = self._lookup(parts, make=True)
        assert found is not None
        return found

    def find(self, parts: tuple[bytes, ...]) -> int | None:
        """A descriptor of the directory ``parts``; ``None`` where there is none."""
        return self._lookup(parts, make=False)

    def _lookup(self, parts: tuple[bytes, ...], *, make: bool) -> int | None:
        if not parts:
            return self._root
        found = self._known.get(parts)
        if found is None:
            found = self._walk(parts, make=make)
            if found is None:
                return None
            if len(self._known) >= _KEPT:
                os.close(self._known.pop(next(iter(self._known))))
            self._known[parts] = found
        return found

    def _walk(self, parts: tuple[bytes, ...], *, make: bool) -> int | None:
        """A new descriptor: one component after the other, from the root again after a link."""
        pending = list(reversed(parts))
        real: list[bytes] = []
        links = 0
        at = os.dup(self._root)
        try:
            while pending:
                part = pending.pop()
                if part != b"..":
                    below = _open(at, part, make=make)
                    if below is None:
                        os.close(at)
                        return None
                    if isinstance(below, int):
                        os.close(at)
                        at = below
                        real.append(part)
                        if len(real) > _MAX_DEPTH:
                            raise LayerError(f"the layer leads too deep at {_shown(parts)}")
                        continue
                    links += 1
                    if links > _MAX_LINKS:
                        raise LayerError(f"the layer has links in a ring at {_shown(parts)}")
                    pending += reversed(
                        [one for one in below.split(b"/") if one not in (b"", b".")]
                    )
                    if below.startswith(b"/"):
                        real.clear()
                elif not real:
                    raise LayerError(f"the layer leads out of its root at {_shown(parts)}")
                else:
                    real.pop()
                pending += reversed(real)
                real.clear()
                os.close(at)
                at = os.dup(self._root)
        except BaseException:
            os.close(at)
            raise
        return at


def _open(parent: int, name: bytes, *, make: bool) -> int | bytes | None:
    """The directory ``name``, or the target of the link that it is; ``None`` if not there."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            return None
        return _make(parent, name)
    except NotADirectoryError:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(name, dir_fd=parent)
    if not make:
        return None
    if not is_whiteout(path_in(parent, name), status):
        raise LayerError(f"the layer needs a directory where it has a file: {printable(name)!r}")
    # What lower layers have here is deleted, and this is a new directory.
    os.unlink(name, dir_fd=parent)
    made = _make(parent, name)
    os.setxattr(made, OPAQUE_XATTR, b"y")
    return made


def _make(parent: int, name: bytes) -> int:
    """A directory that the layer needs and does not describe: as it would be on another machine."""
    os.mkdir(name, 0o755, dir_fd=parent)
    made = os.open(name, _DIRECTORY, dir_fd=parent)
    os.fchmod(made, 0o755)
    return made


def _shown(parts: tuple[bytes, ...]) -> str:
    return "/" + printable(b"/".join(parts))
