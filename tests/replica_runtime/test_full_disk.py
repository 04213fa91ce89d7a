"""A return value on a full disk waits for space; one that cannot be written is kept elsewhere."""

from __future__ import annotations

import errno
import os
import pickle
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.replica_runtime import encoding, results


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("work", "results", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv(results.VALUE_FILE, str(tmp_path / "results" / "value"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    return tmp_path


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let writes of the value fail, the next ones if there is a number."""
    write = results.write_atomically

    def arrange(code: int, times: int = -1) -> None:
        left = [times]

        def write_or_fail(path: str, data: encoding.Encoded) -> None:
            left[0] -= 1
            if left[0] != -1:
                raise OSError(code, os.strerror(code))
            write(path, data)

        monkeypatch.setattr(results, "write_atomically", write_or_fail)

    return arrange


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_return_value_waits_for_space_and_says_so(
    code: int,
    place: Path,
    fail: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(results, "_SPACE_SECONDS", 0)
    fail(code, times=5)
    results.return_values({"x": [1, 2]}, 1 << 20)
    returned = encoding.decode((place / "results" / "value").read_bytes())
    assert returned["values"].keys() == {"x"}
    assert capsys.readouterr().err == (
        "danlu: no space for the return value (0 KiB) in the job's directory: "
        f"{os.strerror(code)}; waiting until there is\n"
    )


def test_a_value_for_which_there_is_only_an_error_is_kept_in_the_working_directory(
    place: Path, fail: Callable[..., None]
) -> None:
    fail(errno.EROFS)
    with pytest.raises(
        results.NotDelivered, match="Read-only file system; it is kept in "
    ) as error:
        results.return_values({"x": [1, 2]}, 1 << 20)
    (kept,) = (place / "work").iterdir()
    assert str(kept) in str(error.value)
    assert pickle.loads(kept.read_bytes()) == {"x": [1, 2]}


def test_a_process_that_is_stopped_while_it_waits_keeps_its_value(
    place: Path,
    fail: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    fail(errno.ENOSPC)
    monkeypatch.setattr(time, "sleep", interrupt)
    (place / "work" / "blocked").touch()
    monkeypatch.setattr(os, "getcwd", lambda: str(place / "missing"))
    with pytest.raises(KeyboardInterrupt):
        results.return_values({"x": 1}, 1 << 20)
    kept = re.search(r"it is kept in (\S+) \(", capsys.readouterr().err)
    assert kept is not None
    assert kept[1].startswith(str(place / "tmp"))
    assert pickle.loads(Path(kept[1]).read_bytes()) == {"x": 1}


def test_a_failed_write_leaves_nothing_that_takes_space(place: Path) -> None:
    class Parts(encoding.Encoded):
        def __init__(self) -> None:
            self.parts = [b"x", None]  # the second cannot be written
            self.size = 1

    with pytest.raises(TypeError):
        results.write_atomically(str(place / "results" / "value"), Parts())
    assert list((place / "results").iterdir()) == []


def test_an_exception_that_cannot_be_reported_is_not_replaced_by_another(
    place: Path,
    fail: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(results.ERROR_FILE, str(place / "results" / "raised"))
    fail(errno.ENOSPC)
    results.report_error(results.describe_error(ValueError("no"), "Traceback"))
    assert "cannot report the exception" in capsys.readouterr().err
