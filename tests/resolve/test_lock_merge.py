"""Two branches that both changed the lock: conflict markers, and git's merge driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock, Lock, LockedBase, LockedPackage, LockedPython
from danlu.errors import LockError
from danlu.lang.functions.steps import LockedHttp
from danlu.resolve.lock_merge import merge_conflicted_text, merge_lock_texts
from danlu.resolve.lockfile import read_lock, write_lock

HASH = "0123456789abcdef" * 4


def wheel(name: str, version: str = "1.0") -> LockedPackage:
    return LockedPackage(name, version, "index", f"{name}-{version}-py3-none-any.whl", HASH, 7)


def lock_of(*packages: LockedPackage, inputs: str = "", http: tuple[str, ...] = ()) -> Lock:
    return Lock(
        {
            "build": FunctionLock(
                "linux/amd64",
                LockedBase("sha256:b", 1, "debian", "bookworm", "glibc 2.36"),
                python=LockedPython("sha256:p", "3.11.2", "/usr/bin/python3.11", "apt"),
                packages_inputs=inputs or f"sha256:{','.join(item.name for item in packages)}",
                packages=packages,
                sections={"http": tuple(LockedHttp(url, HASH, 3) for url in http)} if http else {},
            )
        }
    )


BASE = lock_of(wheel("b"), wheel("m", "2.0"), wheel("y"))
OURS = lock_of(wheel("a"), wheel("b"), wheel("m", "3.0"), wheel("y"), http=("https://o.test/a",))
THEIRS = lock_of(wheel("b"), wheel("m", "2.0"), wheel("y", "1.5"), wheel("z"))


def git(directory: Path, *words: str, code: int = 0) -> str:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def branches(tmp_path: Path) -> Path:
    """A repository whose branches ``main`` (checked out) and ``other`` both changed the lock."""
    git(tmp_path, "init", "-q", "-b", "main")
    file = tmp_path / "danlu.lock"
    for branch, lock in (("main", BASE), ("other", THEIRS), ("main", OURS)):
        if lock is not BASE:
            git(tmp_path, "checkout", "-q", *(["-b"] if branch == "other" else []), branch)
        file.write_text(write_lock(lock))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", branch)
    return tmp_path


def versions(lock: Lock) -> dict[str, str]:
    return {package.name: package.version for package in lock.functions["build"].packages}


@pytest.mark.parametrize("style", ["merge", "diff3", "zdiff3"])
def test_conflict_markers_are_merged_with_the_pins_of_both_sides(
    branches: Path, style: str
) -> None:
    git(branches, "-c", f"merge.conflictStyle={style}", "merge", "other", code=1)
    text = (branches / "danlu.lock").read_text()
    with pytest.raises(LockError, match="merge conflicts") as caught:
        read_lock(text, "danlu.lock")
    assert "danlu lock" in caught.value.hint
    assert "delete" not in caught.value.hint
    merged = merge_conflicted_text(text, "danlu.lock")
    assert versions(merged) == {"a": "1.0", "b": "1.0", "m": "3.0", "y": "1.5", "z": "1.0"}
    section = merged.functions["build"]
    assert section.packages_inputs == ""
    assert section.base == OURS.functions["build"].base
    assert [pin.url for pin in section.sections["http"]] == ["https://o.test/a"]  # type: ignore[attr-defined]
    assert read_lock(write_lock(merged), "danlu.lock") == merged


def test_gits_merge_driver_leaves_no_conflict(branches: Path) -> None:
    danlu = f"'{sys.executable}' -m danlu"
    git(branches, "config", "merge.danlu.driver", f"{danlu} lock --merge %O %A %B")
    (branches / ".git" / "info" / "attributes").write_text("danlu.lock merge=danlu\n")
    git(branches, "merge", "other", "-m", "merged")
    merged = read_lock((branches / "danlu.lock").read_text(), "danlu.lock")
    assert versions(merged) == {"a": "1.0", "b": "1.0", "m": "3.0", "y": "1.5", "z": "1.0"}


def test_a_version_that_one_side_lowered_stays_low() -> None:
    lowered = lock_of(wheel("b"), wheel("m", "1.0"), wheel("y"))
    texts = [write_lock(BASE), write_lock(lowered), write_lock(THEIRS)]
    assert versions(merge_lock_texts(*texts, file="danlu.lock"))["m"] == "1.0"
    assert versions(merge_lock_texts(texts[0], texts[2], texts[1], file="danlu.lock"))["m"] == "1.0"


def test_the_higher_version_wins_if_both_sides_changed_it() -> None:
    newer = lock_of(wheel("b"), wheel("m", "10.0"), wheel("y"))
    texts = [write_lock(BASE), write_lock(OURS), write_lock(newer)]
    assert versions(merge_lock_texts(*texts, file="danlu.lock"))["m"] == "10.0"


def test_functions_of_either_side_are_kept_and_removed_ones_stay_removed() -> None:
    section = BASE.functions["build"]
    base = Lock({"build": section, "old": section})
    ours = Lock({"build": section, "old": section, "mine": section})
    theirs = Lock({"build": section, "yours": replace(section, packages_inputs="sha256:x")})
    texts = [write_lock(base), write_lock(ours), write_lock(theirs)]
    assert set(merge_lock_texts(*texts, file="danlu.lock").functions) == {"build", "mine", "yours"}


def test_conflicts_in_another_file_are_refused_without_a_change(tmp_path: Path) -> None:
    text = "<<<<<<< ours\nnot a lock\n=======\nneither\n>>>>>>> theirs\n"
    with pytest.raises(LockError, match="a side of the conflicts") as caught:
        merge_conflicted_text(text, "danlu.lock")
    assert "git checkout --ours danlu.lock" in caught.value.hint


def test_a_side_that_is_no_lockfile_is_not_replaced_by_the_other() -> None:
    text = f"<<<<<<< ours\n{write_lock(Lock())}=======\nnot a lock\n>>>>>>> theirs\n"
    with pytest.raises(LockError, match="a side of the conflicts"):
        merge_conflicted_text(text, "danlu.lock")
