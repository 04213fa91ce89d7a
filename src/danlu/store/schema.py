"""The index's tables, the store's version, and how an older store becomes a present one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

__all__ = ["MIGRATIONS", "VERSION", "migrate"]

#: The version of tables and directories that this danlu reads and writes.
VERSION = 1

_FIRST = """
CREATE TABLE layers (
    diff_id TEXT PRIMARY KEY, tree TEXT NOT NULL UNIQUE, size INTEGER NOT NULL,
    files INTEGER NOT NULL, created_by TEXT NOT NULL, normalise TEXT NOT NULL,
    boot TEXT NOT NULL, used REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE blobs (
    digest TEXT PRIMARY KEY, size INTEGER NOT NULL, boot TEXT NOT NULL, used REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE records (
    key TEXT PRIMARY KEY, value TEXT NOT NULL, used REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE record_needs (
    key TEXT NOT NULL, kind TEXT NOT NULL, need TEXT NOT NULL, PRIMARY KEY (key, kind, need)
) WITHOUT ROWID;
CREATE INDEX record_needs_by_need ON record_needs (kind, need);
CREATE TABLE images (
    digest TEXT PRIMARY KEY, config BLOB NOT NULL, metadata TEXT NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL
);
CREATE TABLE image_needs (
    image TEXT NOT NULL, kind TEXT NOT NULL, position INTEGER NOT NULL, need TEXT NOT NULL,
    PRIMARY KEY (image, kind, position)
) WITHOUT ROWID;
CREATE INDEX image_needs_by_need ON image_needs (kind, need);
CREATE TABLE names (
    name TEXT PRIMARY KEY, image TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX names_by_image ON names (image);
CREATE TABLE compressed (
    diff_id TEXT NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (diff_id, kind)
) WITHOUT ROWID
"""


def _first(connection: sqlite3.Connection) -> None:
    for statement in _FIRST.split(";"):
        connection.execute(statement)


#: How a store of version N becomes one of version N + 1; version 0 is an empty index.
MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {0: _first}


def migrate(
    connection: sqlite3.Connection,
    migrations: Mapping[int, Callable[[sqlite3.Connection], None]] = MIGRATIONS,
    version: int = VERSION,
) -> None:
    """Bring the index to ``version``, one transaction a step; a killed migration starts again.

    The caller excludes other processes.
    """
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (present,) = connection.execute("PRAGMA user_version").fetchone()
            if present >= version:
                connection.execute("COMMIT")
                return
            migrations[present](connection)
            connection.execute(f"PRAGMA user_version = {present + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
