"""A repeated ``danlu build`` answers from its stamp only if nothing at all changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.cli import command_stamp
from danlu.cli.command_stamp import answer_repeated_build, write_stamp
from danlu.store import Store

BUILD = ["build", "-t", "demo"]


@pytest.fixture
def inputs(home: Path) -> list[Path]:
    """Two files that a build depended on, and one that did not exist."""
    for name in ("build.envd", "danlu.lock"):
        Path(name).write_text(f"the first text of {name}")
    return [Path("build.envd").absolute(), Path("danlu.lock").absolute(), home / "config.toml"]


@pytest.fixture
def stamp(home: Path, inputs: list[Path]) -> Callable[..., None]:
    """Write a stamp for a build that began ``later`` seconds from now."""

    def write(*arguments: str, later: float = 60) -> None:
        with Store.open(home / "store") as store:
            write_stamp(
                arguments or BUILD,
                depends_on=inputs,
                epoch=store.epoch(),
                started=time.time() + later,
                answer={"stdout": "", "stderr": "up to date in {milliseconds} ms\n"},
            )

    return write


def test_repeated_build_is_answered_without_loading_the_program(
    stamp: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not answer_repeated_build(BUILD)
    stamp()
    assert answer_repeated_build(BUILD)
    out, err = capsys.readouterr()
    assert (out, re.sub(r"\d+", "N", err)) == ("", "up to date in N ms\n")


def test_edit_that_restores_size_and_mtime_invalidates_the_stamp(
    stamp: Callable[..., None],
) -> None:
    file = Path("build.envd")
    before = file.stat()
    stamp()
    file.write_text("the other text of build.envd")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert not answer_repeated_build(BUILD)


def test_new_configuration_file_invalidates_the_stamp(
    stamp: Callable[..., None], home: Path
) -> None:
    stamp()
    (home / "config.toml").write_text("")
    assert not answer_repeated_build(BUILD)


def test_removed_input_invalidates_the_stamp(stamp: Callable[..., None]) -> None:
    stamp()
    Path("danlu.lock").unlink()
    assert not answer_repeated_build(BUILD)


@pytest.mark.parametrize("arguments", [["build"], ["build", "-t", "other"], ["-q", *BUILD]])
def test_other_arguments_have_their_own_stamp(
    stamp: Callable[..., None], arguments: list[str]
) -> None:
    stamp()
    assert not answer_repeated_build(arguments)


@pytest.mark.parametrize("variable", ["DANLU_RUNTIME", "NO_COLOR", "LC_ALL"])
def test_environment_variables_are_part_of_the_stamp(
    stamp: Callable[..., None], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    stamp()
    monkeypatch.setenv(variable, "C")
    assert not answer_repeated_build(BUILD)


def test_other_directory_has_its_own_stamp(
    stamp: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp()
    monkeypatch.chdir(tmp_path)
    assert not answer_repeated_build(BUILD)


def test_moved_name_invalidates_every_stamp(stamp: Callable[..., None], home: Path) -> None:
    stamp()
    with Store.open(home / "store") as store:
        store.put_image(b"{}", [], names=["demo"])
    assert not answer_repeated_build(BUILD)


def test_removed_image_invalidates_every_stamp(stamp: Callable[..., None], home: Path) -> None:
    with Store.open(home / "store") as store:
        store.put_image(b"{}", [], names=["demo"])
    stamp()
    with Store.open(home / "store") as store:
        assert store.remove_image("demo")
    assert not answer_repeated_build(BUILD)


def test_addition_to_the_store_invalidates_no_stamp(stamp: Callable[..., None], home: Path) -> None:
    stamp()
    with Store.open(home / "store") as store:
        store.put_record("key", {})
        store.put_blob(b"bytes")
        store.put_image(b"{}", [])
        store.sync()
    assert answer_repeated_build(BUILD)


def test_garbage_collection_invalidates_every_stamp(stamp: Callable[..., None], home: Path) -> None:
    stamp()
    with Store.open(home / "store") as store:
        store.collect(0)
    assert not answer_repeated_build(BUILD)


def test_file_that_changed_while_it_was_compared_leaves_no_stamp(
    stamp: Callable[..., None],
) -> None:
    stamp(later=-10)
    assert not answer_repeated_build(BUILD)


@pytest.mark.parametrize(
    ("change_time", "started", "unsure"),
    [
        (10_123_456_789, 10.13, True),
        (10_123_456_789, 10.2, False),
        (10_000_000_000, 11.5, True),
        (10_000_000_000, 12.1, False),
        (10_123_456_789, 10.0, True),
    ],
)
def test_files_that_changed_too_recently_to_tell(
    change_time: int, started: float, unsure: bool
) -> None:
    assert command_stamp._may_have_changed_since(started, change_time) is unsure


def test_stamp_of_an_earlier_boot_is_not_used(
    stamp: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp()
    monkeypatch.setattr(command_stamp, "_boot_id", lambda: "another boot")
    assert not answer_repeated_build(BUILD)


def test_old_stamp_is_not_used_and_removed_by_the_next_one(
    stamp: Callable[..., None], home: Path
) -> None:
    stamp()
    (old,) = (home / "stamps").iterdir()
    os.utime(old, (time.time() - 7200,) * 2)
    assert not answer_repeated_build(BUILD)
    stamp("build", "-q")
    assert old not in list((home / "stamps").iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "{}", '{"key": 1}', "\0" * 100])
def test_damaged_stamp_is_left_to_the_program(
    stamp: Callable[..., None], home: Path, text: str
) -> None:
    stamp()
    (path,) = (home / "stamps").iterdir()
    path.write_text(text)
    assert not answer_repeated_build(BUILD)


def test_last_use_does_not_change_the_epoch(home: Path) -> None:
    now = [1_700_000_000.0]
    with Store.open(home / "store", clock=lambda: now[0]) as store:
        store.put_record("key", {})
        epoch = store.epoch()
        now[0] += 3600
        assert store.record("key") == {}
    with Store.open(home / "store") as store:
        assert store.epoch() == epoch


def test_unwritable_stamp_does_not_fail_the_build(
    stamp: Callable[..., None], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise FileNotFoundError("the directory was removed")

    monkeypatch.setattr(os, "getcwd", fail)
    stamp()
    assert not (home / "stamps").exists()
