"""Check a whole store: its index first, then everything that it lists.

A damaged index is rebuilt from the rows that can still be read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from danlu.errors import StoreError
from danlu.store.errors import ErrorTranslator, is_corruption
from danlu.store.index import EPOCH, INDEX, choose_journal
from danlu.store.schema import migrate
from danlu.store.store import Store
from danlu.store.types import StoreInconsistency
from danlu.util.epoch import bump_epoch
from danlu.util.locks import file_lock

#: The new index while it is being filled.
_REBUILT_INDEX = "rescued.sqlite"

_SQLITE_SUFFIXES = ("", "-journal", "-wal", "-shm")

#: The tables, each with the reverse of the order in which its rows are stored.
_TABLES = {
    "layers": "diff_id DESC",
    "blobs": "digest DESC",
    "records": "key DESC",
    "record_needs": "key DESC, kind DESC, need DESC",
    "images": "rowid DESC",
    "image_needs": "image DESC, kind DESC, position DESC",
    "names": "name DESC",
    "compressed": "diff_id DESC, kind DESC",
}


def check_store(root: Path, *, repair: bool = False) -> list[StoreInconsistency]:
    """Check the store at ``root``, starting with its index; see :meth:`Store.check`.

    With ``repair`` a damaged index is replaced by a new one with the rows that could be read; the
    check that follows finds layers whose rows were lost, and removes rows that are not valid. No
    build may run at the same time.
    """
    findings: list[StoreInconsistency] = []
    with ErrorTranslator(root):
        damage = _find_corruption(root, repair=repair)
    if damage:
        findings.append(StoreInconsistency("index-damaged", INDEX, damage, repair))
        if not repair:
            return findings
        with ErrorTranslator(root):
            _rebuild_index(root)
    with Store.open(root, frees_space=repair) as store:
        return findings + store.check(repair)


def _find_corruption(root: Path, *, repair: bool) -> str:
    """Return what is wrong with the index; empty if nothing is."""
    try:
        Store.open(root, frees_space=repair).close()
        with closing(sqlite3.connect(root / INDEX)) as connection:
            for table in _TABLES:
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
            result = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except (StoreError, sqlite3.Error) as error:
        if is_corruption(error) or is_corruption(error.__cause__):
            return str(error)
        raise
    return "" if result == [("ok",)] else str(result[0][0])


def _rebuild_index(root: Path) -> None:
    """Replace the damaged index by a rebuilt one, atomically and only once it is complete.

    If this is killed or runs out of space midway, the damaged index is still there to be read
    again. An empty index would turn every layer into garbage.
    """
    with file_lock(root / "rescue.lock"):
        _remove_index(root / _REBUILT_INDEX)
        with (
            closing(sqlite3.connect(root / INDEX)) as old,
            closing(sqlite3.connect(root / _REBUILT_INDEX, isolation_level=None)) as new,
        ):
            migrate(new)
            for table in _TABLES:
                _copy_rows(old, new, table)
        # The journal of the old index must not be replayed into the new one.
        for suffix in _SQLITE_SUFFIXES[1:]:
            (root / (INDEX + suffix)).unlink(missing_ok=True)
        os.replace(root / _REBUILT_INDEX, root / INDEX)
        bump_epoch(root / EPOCH)
        with closing(sqlite3.connect(root / INDEX)) as connection:
            choose_journal(connection, root)


def _remove_index(path: Path) -> None:
    for suffix in _SQLITE_SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _copy_rows(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    """Copy the readable rows of a table, except those that violate the schema."""
    new.execute("BEGIN")
    for row in _readable_rows(old, table):
        marks = ", ".join("?" * len(row))
        try:
            new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
        except (sqlite3.IntegrityError, sqlite3.OperationalError) as error:
            # A different number of columns is damage as well; a full disk is not.
            if not (isinstance(error, sqlite3.IntegrityError) or is_corruption(error)):
                raise
    new.execute("COMMIT")


def _readable_rows(old: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    # SQLite stops at a damaged page, so the rows after it are read from the other end.
    for order in ("", f" ORDER BY {_TABLES[table]}"):
        try:
            yield from old.execute(f"SELECT * FROM {table}{order}")
        except sqlite3.DatabaseError as error:
            if not is_corruption(error):
                raise
        else:
            return
