"""Translate failures of disk and index into :class:`StoreError`: full disk, permissions, damage."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from types import TracebackType

from danlu.errors import StoreError
from danlu.util.disk_full import disk_full_error, is_disk_full, ran_out_of_space

_REPAIR_HINT = (
    "run `danlu image check --repair` to remove damaged data; the next build recreates its own"
)


def to_store_error(error: BaseException, root: Path) -> StoreError | None:
    """Return an OS or SQLite error as a :class:`StoreError`; None for other errors."""
    if isinstance(error, OSError):
        return _from_os_error(error, root)
    if isinstance(error, sqlite3.Error):
        return _from_sqlite_error(error, root)
    return None


def _from_os_error(error: OSError, root: Path) -> StoreError:
    if is_disk_full(error):
        return disk_full_error(f"the store ({root})")
    if error.errno == errno.EROFS:
        return _read_only_error(root)
    if error.errno == errno.EBUSY:
        return StoreError(
            f"{error.filename} is a mount point or in use by a mount",
            hint="unmount it and try again",
        )
    if isinstance(error, PermissionError):
        return StoreError(
            f"cannot access the store: {error}",
            hint=f"{root} must be owned by the user who builds; files of a rootless build can only"
            " be read and removed inside its user namespace, as danlu's own commands do",
        )
    hint = ""
    if error.errno == errno.EIO:
        hint = "the disk or the file system may be failing: check the kernel log (dmesg)"
    return StoreError(f"cannot use the store: {error}", hint=hint)


def _is_read_only(root: Path) -> bool:
    try:
        return bool(os.statvfs(root).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _read_only_error(root: Path) -> StoreError:
    return StoreError(
        f"the store is on a read-only file system ({root})",
        hint="mount it writable, or move danlu's data with DANLU_HOME",
    )


def _from_sqlite_error(error: sqlite3.Error, root: Path) -> StoreError:
    # Extended codes carry the primary one in their low byte (sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return disk_full_error(f"the store ({root})")
    if code == sqlite3.SQLITE_IOERR:
        # Also for an exhausted quota, and for a file that it cannot extend (SQLITE_IOERR_SHMSIZE).
        if ran_out_of_space(root):
            return disk_full_error(f"the store ({root})")
        return StoreError(
            f"cannot use the store's index ({root}): {error}",
            hint="the disk may be failing: check the kernel log (dmesg)",
        )
    if is_corruption(error):
        return StoreError(f"the store's index is damaged ({root}): {error}", hint=_REPAIR_HINT)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return lock_timeout_error(root)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        if _is_read_only(root):
            return _read_only_error(root)
        # It could not create its journal.
        if code == sqlite3.SQLITE_CANTOPEN and ran_out_of_space(root):
            return disk_full_error(f"the store ({root})")
        return StoreError(
            f"cannot write to the store ({root}): {error}",
            hint=f"{root} and everything in it must be owned by the user who builds",
        )
    return StoreError(f"cannot use the store's index ({root}): {error}", hint=_REPAIR_HINT)


def is_corruption(error: BaseException | None) -> bool:
    """Return whether ``error`` means that the index is not a valid database any more."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # SQLITE_ERROR: our statements are correct, so tables or columns must be missing.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def lock_timeout_error(root: Path) -> StoreError:
    """Return the error for a lock that another process has held for too long."""
    return StoreError(
        f"timed out waiting for another danlu process to release the store ({root})",
        hint="try again; a suspended danlu process may be holding the lock",
    )


class ErrorTranslator:
    """A context manager that raises OS and SQLite errors as :class:`StoreError`."""

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
        store_error = to_store_error(error, self._root)
        if store_error is not None:
            raise store_error from error
