"""A store whose index is damaged: what can still be read of it is moved to a new one."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from danlu.errors import StoreError
from danlu.store.core import INDEX
from danlu.store.faults import Faults, is_damage
from danlu.store.store import Store
from danlu.store.types import Finding
from danlu.util.locks import file_lock

__all__ = ["check_store"]

_ASIDE = "damaged.sqlite"

_BESIDE = ("", "-wal", "-shm")

_TABLES = (
    "layers",
    "blobs",
    "records",
    "record_needs",
    "images",
    "image_needs",
    "names",
    "compressed",
)


def check_store(root: Path, *, repair: bool = False) -> list[Finding]:
    """Check the store at ``root``, its index first; see :meth:`Store.check`.

    With ``repair`` a damaged index is replaced by a new one that holds what could be read of it;
    the check that follows says which of that still stands. No build must run meanwhile.
    """
    findings: list[Finding] = []
    with Faults(root):
        damage = _damage(root)
    if damage:
        findings.append(Finding("index-damaged", INDEX, damage, repair))
        if not repair:
            return findings
        with Faults(root):
            _replace(root)
    with Store.open(root) as store:
        return findings + store.check(repair)


def _damage(root: Path) -> str:
    """What is wrong with the index; empty where nothing is."""
    try:
        Store.open(root).close()
        with closing(sqlite3.connect(root / INDEX)) as connection:
            for table in _TABLES:
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
            found = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except (StoreError, sqlite3.Error) as error:
        if is_damage(error) or is_damage(error.__cause__):
            return str(error)
        raise
    return "" if found == [("ok",)] else str(found[0][0])


def _replace(root: Path) -> None:
    with file_lock(root / "rescue.lock"):
        for suffix in _BESIDE:
            with suppress(FileNotFoundError):
                os.replace(root / (INDEX + suffix), root / (_ASIDE + suffix))
        Store.open(root).close()
        with (
            closing(sqlite3.connect(root / _ASIDE)) as old,
            closing(sqlite3.connect(root / INDEX)) as new,
        ):
            for table in _TABLES:
                _move(old, new, table)
        for suffix in _BESIDE:
            (root / (_ASIDE + suffix)).unlink(missing_ok=True)


def _move(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    """Copy the rows of one table until the first that cannot be read, or that no longer fit."""
    with new, suppress(sqlite3.DatabaseError):
        for row in old.execute(f"SELECT * FROM {table}"):
            places = ", ".join("?" * len(row))
            with suppress(sqlite3.IntegrityError):
                new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)
