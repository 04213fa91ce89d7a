"""The store's SQLite index, and what all operations on the store share: locks, pins, transactions.

Two locks protect the store. Writers, and readers under a lease, hold ``gate`` shared; garbage
collection holds it exclusively for the moment in which it decides. Within a process, an ``RLock``
serialises all threads, because they share one connection and one lock descriptor.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from danlu.errors import StoreError
from danlu.store.errors import ErrorTranslator, lock_timeout_error
from danlu.store.schema import VERSION, migrate
from danlu.util.epoch import bump_epoch, read_epoch
from danlu.util.files import filesystem_type, write_atomic
from danlu.util.locks import file_lock

Kind = Literal["layers", "blobs", "records", "images"]

#: File name of the index.
INDEX = "index.sqlite"

#: A file that changes with every removal. ``danlu build`` reads it without opening the store, to
#: learn whether the result of the last build can still be there.
EPOCH = "epoch"

#: Stored in place of a boot ID when an object is known to have reached the disk.
SYNCED = ""

#: Granularity of the time of last use: a build within a minute of the last one writes nothing.
_USE_GRANULARITY_SECONDS = 60.0

#: How long to wait for a transaction or for ``gate``; both are normally held for milliseconds.
_LOCK_TIMEOUT_SECONDS = 60.0

_COPY_ON_WRITE = ("bcachefs", "btrfs")

_KEY_COLUMNS = {"layers": "diff_id", "blobs": "digest", "records": "key", "images": "digest"}


@cache
def read_boot_id() -> str:
    """Return the ID of this boot of the machine.

    Data written under another boot ID may not have reached the disk before the machine went down.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def choose_journal(connection: sqlite3.Connection, root: Path) -> None:
    """Let the index of the store ``root`` have a write-ahead log, if its file system allows.

    SQLite maps a part of it (``-shm``) into memory. Where each write needs new blocks, writing to
    such memory on a full disk ends the process with SIGBUS, and with it even the commands that free
    space. There the index keeps SQLite's rollback journal, whose transactions take longer.
    """
    if filesystem_type(root) not in _COPY_ON_WRITE:
        connection.execute("PRAGMA journal_mode = WAL")


@dataclass
class LeaseFile:
    """The lease file of an open store, shared by all its leases."""

    path: Path
    descriptor: int
    holders: int = 0
    shared: bool = False


class StoreIndex:
    """An open store's index and locks. Threads take turns; must not be used across ``fork``."""

    def __init__(
        self, root: Path, *, clock: Callable[[], float] = time.time, frees_space: bool = False
    ) -> None:
        root = root.absolute()
        self.root = root
        self.clock = clock
        self.boot = read_boot_id()
        self.layers = root / "layers"
        self.blobs = root / "blobs"
        self.staging = root / "tmp"
        self.leases = root / "leases"
        self.translated_errors = ErrorTranslator(root)
        self.lock = threading.RLock()
        self.pinned: set[tuple[Kind, str]] = set()
        self.lease: LeaseFile | None = None
        self._gate_depth = 0
        self._pending_uses: dict[tuple[Kind, str], float] = {}
        if not self._is_ready():
            self._initialize()
        self._has_borrowed_space = False
        self.connection = self._connect_or_free_space(0 if frees_space else _KEPT_RESERVE_BYTES)
        self._gate = os.open(root / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_ready(self) -> bool:
        paths = (self.layers, self.blobs, self.staging, self.leases, self.root / INDEX)
        return self._read_version() == VERSION and all(os.path.exists(path) for path in paths)

    def _read_version(self) -> int:
        try:
            text = (self.root / "version").read_text()
        except FileNotFoundError:
            return 0
        try:
            version = int(text)
        except ValueError:
            raise StoreError(f"not a danlu store: {self.root} (version {text!r})") from None
        if version > VERSION:
            raise StoreError(
                f"the store at {self.root} was written by a newer danlu"
                f" (version {version}; this danlu supports up to {VERSION})",
                hint="upgrade danlu, or set DANLU_HOME to another directory",
            )
        return version

    def _initialize(self) -> None:
        """Create the store or migrate an older one, one process at a time."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file_lock(self.root / "prepare.lock"):
            if self._is_ready():
                return
            for directory in (self.layers, self.blobs, self.staging, self.leases):
                directory.mkdir(exist_ok=True, mode=0o700)
            # What checking and cleaning a full disk would otherwise create.
            for name in ("collect.lock", "gate"):
                (self.root / name).touch(mode=0o600)
            connection = sqlite3.connect(self.root / INDEX, isolation_level=None)
            try:
                choose_journal(connection, self.root)
                migrate(connection)
            finally:
                connection.close()
            # Last: without this file the next process prepares the store again, so one that is
            # killed before leaves nothing half made.
            write_atomic(self.root / "version", f"{VERSION}\n".encode())
            reserve_space(self)

    def _connect_or_free_space(self, kept_reserve: int) -> sqlite3.Connection:
        try:
            return self._open_connection()
        except sqlite3.OperationalError:
            # On a full disk SQLite cannot create its journal, so not even a command
            # that frees space could open the index.
            if not release_space(self, keep=kept_reserve):
                raise
            self._has_borrowed_space = True
            return self._open_connection()

    def _open_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.root / INDEX,
            timeout=_LOCK_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        # With a write-ahead log NORMAL never corrupts the index; a power failure may lose the last
        # transactions (sqlite.org/pragma.html#pragma_synchronous).
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            # The first read opens the -wal and -shm files and reveals a damaged index.
            connection.execute("SELECT 1 FROM layers LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Write pending times of last use and close everything; closing twice is allowed."""
        with self.lock:
            if self._gate < 0:
                return
            self.flush_uses()
            self.connection.close()
            if self._has_borrowed_space:
                reserve_space(self)
            os.close(self._gate)
            self._gate = -1

    def query(self, query: str, arguments: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self.connection.execute(query, tuple(arguments)).fetchall()

    def query_row(self, query: str, arguments: Iterable[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        row: tuple[Any, ...] | None = self.connection.execute(query, tuple(arguments)).fetchone()
        return row

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Block other threads of this process and, under a lease, garbage collection.

        An object that is pinned and then found in the same block stays until the lease ends.
        """
        with self.lock, self.translated_errors:
            # What is read without a lease may be collected a moment later anyway: no need to wait.
            if self.lease is None:
                yield
                return
            with self._gc_lock(fcntl.LOCK_SH):
                yield

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that excludes garbage collection; rolled back on error."""
        with (
            self.lock,
            self.translated_errors,
            self._gc_lock(fcntl.LOCK_SH),
            self.transaction() as connection,
        ):
            yield connection

    @contextmanager
    def adding(self) -> Iterator[sqlite3.Connection]:
        """Like :meth:`writing`, for changes that remove nothing: the epoch stays the same."""
        with (
            self.lock,
            self.translated_errors,
            self._gc_lock(fcntl.LOCK_SH),
            self._plain_transaction() as connection,
        ):
            yield connection

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Exclude all writers and all readers under a lease, in every process."""
        with self.lock, self.translated_errors, self._gc_lock(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _gc_lock(self, how: int) -> Iterator[None]:
        # flock belongs to the descriptor, and there is one per process: only the outermost block
        # may lock and unlock it.
        if self._gate_depth == 0:
            self._acquire_gc_lock(how)
        self._gate_depth += 1
        try:
            yield
        finally:
            self._gate_depth -= 1
            if self._gate_depth == 0:
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _acquire_gc_lock(self, how: int) -> None:
        """Lock ``gate`` with a timeout: the process that holds it may be stopped (SIGSTOP)."""
        end = time.monotonic() + _LOCK_TIMEOUT_SECONDS
        while True:
            try:
                fcntl.flock(self._gate, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise lock_timeout_error(self.root) from None
                # flock(2) has no time limit, so it is tried again and again.
                time.sleep(0.001)

    def epoch(self) -> str:
        """Return a text that changes when anything is removed from the store or renamed in it."""
        with self.translated_errors:
            if not (epoch := read_epoch(self.root / EPOCH)):  # created by an older danlu
                bump_epoch(self.root / EPOCH)
                epoch = read_epoch(self.root / EPOCH)
            return epoch

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a short write transaction; waits for those of other processes."""
        # Before and after: a reader that looked at the index in between must find another epoch
        # the next time.
        bump_epoch(self.root / EPOCH)
        with self._plain_transaction() as connection:
            yield connection
        bump_epoch(self.root / EPOCH)

    @contextmanager
    def _plain_transaction(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE takes the write lock now. A deferred transaction that turns from reading to
        # writing can fail with SQLITE_BUSY at once, without waiting.
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def pin(self, kind: Kind, identities: Iterable[str]) -> None:
        """Protect objects from garbage collection for the duration of the current lease, if any."""
        if self.lease is None:
            return
        new = [identity for identity in identities if (kind, identity) not in self.pinned]
        if new:
            # Start with a newline: on a full disk the previous write may have stopped mid-line.
            lines = memoryview("".join(f"\n{kind} {identity}" for identity in new).encode() + b"\n")
            while lines:
                lines = lines[os.write(self.lease.descriptor, lines) :]
            self.pinned.update((kind, identity) for identity in new)

    def record_use(self, kind: Kind, identity: str, last: float) -> None:
        """Note that an object was used; written in batches, and only if it is news."""
        now = self.clock()
        if now - last > _USE_GRANULARITY_SECONDS:
            self._pending_uses[kind, identity] = now

    def flush_uses(self) -> None:
        """Write the noted times of last use; failing to is not an error."""
        if not self._pending_uses:
            return
        try:
            with self._plain_transaction() as connection:
                for (kind, identity), when in self._pending_uses.items():
                    connection.execute(
                        f"UPDATE {kind} SET used = ? WHERE {_KEY_COLUMNS[kind]} = ?",
                        (when, identity),
                    )
        except sqlite3.Error:
            pass
        self._pending_uses.clear()


#: Enough for SQLite's journal and a transaction that deletes rows.
_RESERVE_BYTES = 4 << 20

#: What is left to commands that free space: others could fill what they get with something else.
_KEPT_RESERVE_BYTES = 2 << 20


def reserve_space(index: StoreIndex) -> None:
    """Allocate the reserve, so that a full disk can still be cleaned, if there is room."""
    try:
        descriptor = os.open(index.root / "reserve", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    size = os.fstat(descriptor).st_size
    try:
        # Real blocks. A sparse file (ftruncate) would free nothing when it is removed.
        os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def release_space(index: StoreIndex, *, keep: int = 0) -> bool:
    """Free the reserve except ``keep`` bytes; return whether that freed anything.

    Removing objects starts with a write to the index, which needs some space itself.
    """
    path = index.root / "reserve"
    try:
        if path.stat().st_size <= keep:
            return False
        try:
            os.truncate(path, keep)
        except OSError:
            # A quota of btrfs can forbid that, but not a removal.
            path.unlink()
    except OSError:
        return False
    return True
