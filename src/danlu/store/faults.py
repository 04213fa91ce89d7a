"""The store's failures in the user's words: full disk, no permission, damage, a long wait."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from types import TracebackType

from danlu.errors import StoreError
from danlu.util.space import full_disk, is_full

__all__ = ["Faults", "busy", "is_damage", "translate"]

_DAMAGED = "`danlu image check --repair` removes what is broken; the next build makes it again"


def translate(error: BaseException, root: Path) -> StoreError | None:
    """``error`` as a :class:`StoreError`, or None where it is none of the store's."""
    if isinstance(error, OSError):
        return _from_system(error, root)
    if isinstance(error, sqlite3.Error):
        return _from_index(error, root)
    return None


def _from_system(error: OSError, root: Path) -> StoreError:
    if is_full(error):
        return full_disk(f"the store ({root})")
    if error.errno == errno.EROFS:
        return StoreError(f"the store lies on a read-only file system ({root})")
    if error.errno == errno.EBUSY:
        return StoreError(f"in use by a mount: {error.filename}", hint="unmount it, then try again")
    if isinstance(error, PermissionError):
        return StoreError(
            f"not allowed to use the store: {error}",
            hint=f"{root} must belong to the user who builds; what a rootless build made can only"
            " be read and removed inside its user namespace, as danlu's commands do",
        )
    return StoreError(f"the store cannot be used: {error}")


def _from_index(error: sqlite3.Error, root: Path) -> StoreError:
    # Extended codes carry the primary one in their low byte (sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full_disk(f"the store ({root})")
    if is_damage(error):
        return StoreError(f"the store's index is damaged ({root}): {error}", hint=_DAMAGED)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return busy(root)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(
            f"the store cannot be written ({root}): {error}",
            hint=f"{root} and all below it must belong to the user who builds",
        )
    return StoreError(f"the store's index failed ({root}): {error}", hint=_DAMAGED)


def is_damage(error: BaseException | None) -> bool:
    """Whether ``error`` says that the index is no longer a sound database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # SQLITE_ERROR: our statements are right, so tables or columns are gone.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def busy(root: Path) -> StoreError:
    """Another process holds what should be held for a moment only."""
    return StoreError(
        f"another danlu has been writing to the store for too long ({root})",
        hint="try again; a stopped danlu process may hold it",
    )


class Faults:
    """A context that turns system and index errors raised inside it into store errors."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        clear = translate(error, self._root)
        if clear is not None:
            raise clear from error
