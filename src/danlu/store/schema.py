"""The tables of the index, the version of the store format, and its migrations."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

#: The version of the tables and directories that this danlu reads and writes.
VERSION = 1

_SCHEMA_V1 = """
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


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA_V1.split(";"):
        connection.execute(statement)


#: Migrations from version N to N + 1; version 0 is an empty index.
MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {0: _create_tables}


def migrate(
    connection: sqlite3.Connection,
    migrations: Mapping[int, Callable[[sqlite3.Connection], None]] = MIGRATIONS,
    version: int = VERSION,
) -> None:
    """Migrate the index to ``version``, one transaction per step; a killed migration can be
    repeated.

    The caller must exclude other processes.
    """
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (current,) = connection.execute("PRAGMA user_version").fetchone()
            if current >= version:
                connection.execute("COMMIT")
                return
            migrations[current](connection)
            connection.execute(f"PRAGMA user_version = {current + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
