"""A store where a quota is exhausted, or where overwriting a file needs new blocks."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from danlu.store import Store, index
from danlu.store.errors import to_store_error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_WRITE])
def test_an_index_that_a_quota_stops_is_reported_as_a_full_disk(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has no code for EDQUOT, and statvfs(3) does not know quotas."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code

    def refuse(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    found = to_store_error(error, tmp_path)
    assert found is not None
    assert found.message.startswith("no space left on the disk that holds the store")


@pytest.mark.parametrize(("filesystem", "mode"), [("btrfs", "delete"), ("ext4", "wal")])
def test_memory_is_mapped_only_where_writing_to_it_needs_no_space(
    filesystem: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.store.index.filesystem_type", lambda path: filesystem)
    with Store.open(tmp_path / "store") as store:
        store.put_record("key", {"x": "y"})
        assert (store.root / "index.sqlite-shm").exists() is (mode == "wal")
    with closing(sqlite3.connect(tmp_path / "store/index.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    with Store.open(tmp_path / "store") as store:
        record = store.record("key")
        assert record is not None


def test_the_reserve_is_removed_if_it_cannot_be_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on btrfs, where a quota forbids that, but not a removal."""
    with Store.open(tmp_path / "store") as store:

        def refuse(*_: object) -> None:
            raise OSError(122, "Disk quota exceeded")

        monkeypatch.setattr(os, "truncate", refuse)
        assert index.release_space(store._index, keep=1)
        assert not (store.root / "reserve").exists()
        assert not index.release_space(store._index)
