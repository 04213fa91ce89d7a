from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.sandbox import userns
from danlu.util.paths import Paths


def test_entering_with_threads_is_a_mistake(tmp_path: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="before threads"):
            userns.enter(Paths.of({"DANLU_HOME": str(tmp_path)}))
    finally:
        stop.set()
        thread.join()


def test_ranges_follow_the_caller() -> None:
    ranges = [userns._Range(100000, 65536), userns._Range(300000, 10)]
    words = userns._map_words(1000, ranges)
    assert words == ["0", "1000", "1", "1", "100000", "65536", "65537", "300000", "10"]


def test_ranges_are_read_by_name_and_by_number(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text(f"other:1:2\nme:100:5\n{os.geteuid()}:200:6\nme:broken\nme:x:y\n\n")
    assert userns._ranges(str(file), "me") == [userns._Range(100, 5), userns._Range(200, 6)]
    assert userns._ranges(str(tmp_path / "absent"), "me") == []


def test_one_id_is_refused_with_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = MachineError("/etc/subuid has no line for me", hint=userns._line_to_add("me"))
    monkeypatch.setattr(userns, "_missing", missing)
    monkeypatch.setattr(userns, "single_id", lambda: True)
    with pytest.raises(MachineError, match="installing x needs subordinate user ids") as caught:
        userns.require_ids("installing x")
    assert caught.value.hint.startswith("sudo usermod --add-subuids ")
    assert caught.value.exit_code == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's directory")
def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    os.chown(tmp_path / "store", 12345, 12345)
    with pytest.raises(MachineError, match="belongs to user 12345") as caught:
        userns._check_owner(tmp_path / "store")
    assert "DANLU_HOME" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0\n", "user.max_user_namespaces=65536"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(
    name: str, value: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(value)
    monkeypatch.setattr(userns, "_PROC_SYS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = userns._forbidden(OSError(1, "Operation not permitted"))
    assert line in error.hint
