from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.sandbox import userns
from danlu.util.id_maps import IdMaps, load_recorded_id_maps, suggest_usermod
from danlu.util.paths import Paths
from tests.sandbox.namespace_process import run_inside


def test_entering_with_threads_is_an_error(tmp_path: Path) -> None:
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
    ranges = [userns._IdRange(100000, 65536), userns._IdRange(300000, 10)]
    words = userns._map_arguments(1000, ranges)
    assert words == ["0", "1000", "1", "1", "100000", "65536", "65537", "300000", "10"]


def test_ranges_are_read_by_name_and_by_number(tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text(f"other:1:2\nme:100:5\n{os.geteuid()}:200:6\nme:broken\nme:x:y\n\n")
    assert userns._read_subid_file(str(file), "me") == [
        userns._IdRange(100, 5),
        userns._IdRange(200, 6),
    ]
    assert userns._read_subid_file(str(tmp_path / "absent"), "me") == []


def test_single_id_is_rejected_with_the_line_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = MachineError("/etc/subuid has no line for me", hint=suggest_usermod("me"))
    monkeypatch.setattr(userns, "_missing", missing)
    monkeypatch.setattr(userns, "has_single_id", lambda: True)
    with pytest.raises(MachineError, match="installing x needs subordinate user ids") as caught:
        userns.require_ids("installing x")
    assert caught.value.hint.startswith("sudo usermod --add-subuids ")
    assert caught.value.exit_code == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's directory")
def test_store_of_another_user_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    os.chown(tmp_path / "store", 12345, 12345)
    with pytest.raises(MachineError, match="belongs to user 12345") as caught:
        userns._check_owner(tmp_path / "store")
    assert "DANLU_HOME" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "message", "line"),
    [
        (
            "kernel/unprivileged_userns_clone",
            "0\n",
            "does not allow unprivileged users",
            "kernel.unprivileged_userns_clone=1",
        ),
        (
            "user/max_user_namespaces",
            "0\n",
            "does not allow unprivileged users",
            "user.max_user_namespaces=65536",
        ),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1\n",
            "AppArmor .*apparmor_restrict_unprivileged_userns=1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_sysctl_that_forbids_namespaces_is_named(
    name: str, value: str, message: str, line: str, tmp_path: Path
) -> None:
    proc = write_proc(tmp_path, name, value, uid_map="0 1000 1\n")
    error = userns.explain_namespace_error(OSError(1, "Operation not permitted"), proc=proc)
    assert re.search(message, error.message)
    assert f"echo '{line}' | sudo tee" in error.hint
    assert ("AppArmor profile" in error.hint) == ("AppArmor" in error.message)


@pytest.mark.parametrize("value", ["0\n", ""])
def test_setting_that_allows_namespaces_is_not_blamed(value: str, tmp_path: Path) -> None:
    name = "kernel/apparmor_restrict_unprivileged_userns"
    proc = write_proc(tmp_path, name, value, uid_map="0 1000 1\n")
    error = userns.explain_namespace_error(OSError(28, "No space left on device"), proc=proc)
    assert error.message == "cannot create namespaces: No space left on device"


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_root_is_not_blocked_by_settings_for_others(tmp_path: Path) -> None:
    name = "kernel/apparmor_restrict_unprivileged_userns"
    proc = write_proc(tmp_path, name, "1\n", uid_map="0 0 4294967295\n")
    error = userns.explain_namespace_error(OSError(1, "Operation not permitted"), proc=proc)
    assert error.message == "root is not allowed to mount here"


def write_proc(proc: Path, name: str, value: str, *, uid_map: str) -> Path:
    """Write what the kernel shows of a process and of a setting; an empty one does not exist."""
    for file, text in ((f"sys/{name}", value), ("self/uid_map", uid_map)):
        (proc / file).parent.mkdir(parents=True)
        if text:
            (proc / file).write_text(text)
    return proc


ROOTLESS = IdMaps(((0, 1000, 1), (1, 100000, 65536)), ((0, 1000, 1), (1, 100000, 65536)))
SINGLE = IdMaps(((0, 1000, 1),), ((0, 1000, 1),))
MOVED = IdMaps(((0, 1000, 1), (1, 300000, 65536)), ((0, 1000, 1), (1, 300000, 65536)))


def enter_with(monkeypatch: pytest.MonkeyPatch, maps: IdMaps, store: Path) -> None:
    monkeypatch.setattr(userns, "read_id_maps", lambda: maps)
    monkeypatch.setattr(userns, "has_single_id", lambda: maps is SINGLE)
    userns._keep_to_recorded_ids(store)


def test_ids_of_a_new_store_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for maps in (ROOTLESS, SINGLE):
        store = tmp_path / f"{len(maps.users)}" / "store"
        enter_with(monkeypatch, maps, store)
        assert load_recorded_id_maps(store) == maps


def test_store_with_subordinate_ids_is_rejected_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_with(monkeypatch, ROOTLESS, tmp_path / "store")
    missing = MachineError("newuidmap is not installed", hint="install it")
    monkeypatch.setattr(userns, "_missing", missing)
    with pytest.raises(MachineError, match="not available now") as caught:
        enter_with(monkeypatch, SINGLE, tmp_path / "store")
    assert caught.value.hint == "install it"
    assert caught.value.details == ("newuidmap is not installed",)
    assert load_recorded_id_maps(tmp_path / "store") == ROOTLESS
    enter_with(monkeypatch, ROOTLESS, tmp_path / "store")


def test_store_with_other_subordinate_ids_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_with(monkeypatch, ROOTLESS, tmp_path / "store")
    with pytest.raises(MachineError, match="not available now") as caught:
        enter_with(monkeypatch, MOVED, tmp_path / "store")
    assert "100000-165535" in caught.value.hint
    assert caught.value.exit_code == 4


def test_more_ids_than_before_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_with(monkeypatch, SINGLE, tmp_path / "store")
    enter_with(monkeypatch, ROOTLESS, tmp_path / "store")
    assert load_recorded_id_maps(tmp_path / "store") == ROOTLESS


def test_single_id_is_not_recorded_for_an_existing_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    enter_with(monkeypatch, SINGLE, tmp_path / "store")
    assert load_recorded_id_maps(tmp_path / "store") is None
    enter_with(monkeypatch, ROOTLESS, tmp_path / "store")
    assert load_recorded_id_maps(tmp_path / "store") == ROOTLESS


@pytest.mark.parametrize("ids", [True, False])
def test_ordinary_account_is_root_in_a_namespace_of_its_own(home: Path, ids: bool) -> None:
    def act() -> tuple[tuple[int, int], bool, bool, int]:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        count = sum(int(line.split()[2]) for line in lines)
        return (os.getuid(), os.getgid()), userns.is_rootless(), userns.has_single_id(), count

    try:
        owner, rootless, single, count = run_inside(act, home=home, ordinary=True, ids=ids)
    except AssertionError as error:
        if os.geteuid() != 0 and "MachineError" in str(error):
            pytest.skip("needs user namespaces")
        raise
    assert owner == (0, 0)
    assert rootless
    assert single is (count == 1)
    if os.geteuid() == 0:
        assert count == (65537 if ids and shutil.which("newuidmap") else 1)


def test_failure_of_newuidmap_is_reported_with_its_output(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home / "newuidmap"
    program.write_text("#!/bin/sh\necho not setuid >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(userns, "_subordinate_maps", lambda: [[str(program), "0", "1", "1"]])

    with pytest.raises(AssertionError, match="cannot map the subordinate ids"):
        run_inside(lambda: None, home=home, ordinary=True)


def test_subordinate_ids_are_mapped_by_the_programs_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges = {"/etc/subuid": [userns._IdRange(100000, 5)], "/etc/subgid": [userns._IdRange(7, 6)]}
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(userns, "_read_subid_file", lambda file, name: ranges[file])
    assert userns._subordinate_maps() == [
        ["/bin/newuidmap", "0", str(os.geteuid()), "1", "1", "100000", "5"],
        ["/bin/newgidmap", "0", str(os.getegid()), "1", "1", "7", "6"],
    ]
    ranges["/etc/subgid"] = []
    monkeypatch.setattr(userns, "_query_getsubids", lambda name, flag: [])
    with pytest.raises(MachineError, match="/etc/subgid has no line for"):
        userns._subordinate_maps()


@pytest.mark.parametrize(
    ("account", "message"),
    [(0, "root is not allowed to mount"), (1000, "cannot create namespaces")],
)
def test_refusal_is_explained_for_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: int, message: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: account)
    refusal = OSError(errno.EPERM, "Operation not permitted")
    proc = write_proc(tmp_path, "user/max_user_namespaces", "9\n", uid_map="0 1000 1\n")
    assert message in userns.explain_namespace_error(refusal, proc=proc).message
    other = OSError(errno.ENOSPC, "No space left on device")
    assert "No space left" in userns.explain_namespace_error(other, proc=proc).message


def test_setting_is_named_to_an_ordinary_account_outside_any_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    proc = write_proc(tmp_path, "user/max_user_namespaces", "0\n", uid_map="0 0 4294967295\n")
    error = userns.explain_namespace_error(OSError(errno.ENOSPC, "No space left"), proc=proc)
    assert "does not allow unprivileged users" in error.message
