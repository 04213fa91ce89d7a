"""A store on a read-only file system: the error says so, whether a file or the index noticed it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from danlu.store.errors import to_store_error


def cannot_open() -> sqlite3.OperationalError:
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect("/nonexistent/index.sqlite")
    return caught.value


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "Read-only"), cannot_open()])
def test_a_read_only_file_system_is_named(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_flag=os.ST_RDONLY))
    found = to_store_error(error, tmp_path)
    assert found is not None
    assert found.message == f"the store is on a read-only file system ({tmp_path})"
    assert "DANLU_HOME" in found.hint


def test_an_index_that_cannot_be_opened_elsewhere_is_about_its_owner(tmp_path: Path) -> None:
    found = to_store_error(cannot_open(), tmp_path)
    assert found is not None
    assert "must be owned by the user who builds" in found.hint
