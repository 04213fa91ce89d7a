"""The store's shared ground: directories, index, the gate before collection, leases, last use."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from danlu.errors import StoreError
from danlu.store import reserve
from danlu.store.faults import Faults, busy
from danlu.store.schema import VERSION, migrate
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

if TYPE_CHECKING:
    from danlu.store.leases import Held

__all__ = ["INDEX", "SETTLED", "Core", "Kind", "boot_id"]

Kind = Literal["layers", "blobs", "records", "images"]

#: The file of the index.
INDEX = "index.sqlite"

#: In place of a boot's id: known to have reached the disk.
SETTLED = ""

#: Last use is known this exactly; a build that follows another within it writes nothing.
_GRAIN_SECONDS = 60.0

_BUSY_SECONDS = 60.0

_IDENTITY = {"layers": "diff_id", "blobs": "digest", "records": "key", "images": "digest"}


@cache
def boot_id() -> str:
    """This boot of the machine; what an earlier boot wrote may not have reached the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class Core:
    """One open store: used by many threads, one at a time; never across ``fork``."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        root = root.absolute()
        self.root = root
        self.clock = clock
        self.boot = boot_id()
        self.layers = root / "layers"
        self.blobs = root / "blobs"
        self.staging = root / "tmp"
        self.leases = root / "leases"
        self.faults = Faults(root)
        self.lock = threading.RLock()
        self.pinned: set[tuple[Kind, str]] = set()
        self.lease: Held | None = None
        self._gate_depth = 0
        self._used: dict[tuple[Kind, str], float] = {}
        if not self._is_prepared():
            self._prepare()
        self.connection = self._connect()
        self._gate = os.open(root / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_prepared(self) -> bool:
        places = (self.layers, self.blobs, self.staging, self.leases, self.root / INDEX)
        return self._version() == VERSION and all(os.path.exists(place) for place in places)

    def _version(self) -> int:
        try:
            text = (self.root / "version").read_text()
        except FileNotFoundError:
            return 0
        try:
            version = int(text)
        except ValueError:
            raise StoreError(f"not a danlu store: {self.root} (its version is {text!r})") from None
        if version > VERSION:
            raise StoreError(
                f"the store at {self.root} was written by a newer danlu"
                f" (version {version}, this one knows {VERSION})",
                hint="upgrade danlu, or set DANLU_HOME to another directory",
            )
        return version

    def _prepare(self) -> None:
        """Create the store, or bring an older one up to date, one process at a time."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with file_lock(self.root / "prepare.lock"):
            if self._is_prepared():
                return
            for directory in (self.layers, self.blobs, self.staging, self.leases):
                directory.mkdir(exist_ok=True, mode=0o700)
            connection = sqlite3.connect(self.root / INDEX, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                migrate(connection)
            finally:
                connection.close()
            write_atomic(self.root / "version", f"{VERSION}\n".encode())
            reserve.take(self)

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError:
            # On a full disk the index cannot even be opened to free some of it.
            if not reserve.release(self):
                raise
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.root / INDEX,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        # In WAL mode this never damages the index; a power cut may lose the last transactions.
        try:
            connection.execute("PRAGMA synchronous = NORMAL")
            # The first read opens the files beside the index and finds it damaged or not.
            connection.execute("SELECT 1 FROM layers LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Write pending last uses and let go of everything; again is nothing."""
        with self.lock:
            if self._gate < 0:
                return
            self.flush_uses()
            self.connection.close()
            os.close(self._gate)
            self._gate = -1

    def rows(self, query: str, arguments: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self.connection.execute(query, tuple(arguments)).fetchall()

    def row(self, query: str, arguments: Iterable[Any] = ()) -> tuple[Any, ...] | None:
        """The first row of a query."""
        found: tuple[Any, ...] | None = self.connection.execute(query, tuple(arguments)).fetchone()
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Exclude this process's other threads and, under a lease, collection.

        Under a lease, what is pinned and then found inside one such block stays.
        """
        with self.lock, self.faults:
            if self.lease is None:
                yield
                return
            with self._gated(fcntl.LOCK_SH):
                yield

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction during which nothing is collected; nothing of it stays on an error."""
        with self.lock, self.faults, self._gated(fcntl.LOCK_SH), self.transaction() as connection:
            yield connection

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Exclude every reader under a lease and every writer, of all processes."""
        with self.lock, self.faults, self._gated(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _gated(self, how: int) -> Iterator[None]:
        # One descriptor a process: an inner block must not let go of what an outer one holds.
        if self._gate_depth == 0:
            self._pass_gate(how)
        self._gate_depth += 1
        try:
            yield
        finally:
            self._gate_depth -= 1
            if self._gate_depth == 0:
                fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _pass_gate(self, how: int) -> None:
        """Lock, waiting no longer than for a transaction: whoever holds it may be stopped."""
        end = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                fcntl.flock(self._gate, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise busy(self.root) from None
                time.sleep(0.001)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A short write transaction; waits for those of other processes."""
        # IMMEDIATE: a read that becomes a write could fail at once instead of waiting.
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def pin(self, kind: Kind, identities: Iterable[str]) -> None:
        """Keep these from collection for as long as the present lease, if there is one."""
        if self.lease is None:
            return
        new = [one for one in identities if (kind, one) not in self.pinned]
        if new:
            # A newline first: on a full disk the write before may have ended within a line.
            lines = memoryview("".join(f"\n{kind} {one}" for one in new).encode() + b"\n")
            while lines:
                lines = lines[os.write(self.lease.descriptor, lines) :]
            self.pinned.update((kind, one) for one in new)

    def used(self, kind: Kind, identity: str, last: float) -> None:
        """Note a use; written in batches and only when it says something new."""
        now = self.clock()
        if now - last > _GRAIN_SECONDS:
            self._used[kind, identity] = now

    def flush_uses(self) -> None:
        """Write the noted uses; they are not worth an error."""
        if not self._used:
            return
        try:
            with self.transaction() as connection:
                for (kind, identity), when in self._used.items():
                    connection.execute(
                        f"UPDATE {kind} SET used = ? WHERE {_IDENTITY[kind]} = ?",
                        (when, identity),
                    )
        except sqlite3.Error:
            pass
        self._used.clear()
