"""apt on a full disk, and apt that is stuck: one message, and never a wait without end."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from danlu.errors import StoreError, TemporaryError
from danlu.sources.apt import private_apt
from danlu.sources.apt.archive import AptArchive, find_release
from danlu.sources.apt.private_apt import PrivateApt

NO_SPACE = "E: Write error - write (28: No space left on device)"


class FakeStatvfs:
    f_bsize = f_frsize = 4096
    f_files, f_favail = 1000, 500

    def __init__(self, free: int) -> None:
        self.f_bavail = free // 4096


@pytest.fixture
def apt(tmp_path: Path) -> PrivateApt:
    return PrivateApt(AptArchive(find_release("debian12"), "amd64", ()), tmp_path)


def run_apt(apt: PrivateApt, script: str) -> int:
    program = apt.directory / "apt-get"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return anyio.run(apt.run, str(program), "update").code


@pytest.mark.parametrize("output", [f"echo '{NO_SPACE}' >&2; exit 100", "exit 100"])
def test_apt_that_fails_on_a_full_disk_is_not_another_error(
    apt: PrivateApt, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda place: FakeStatvfs(4096))
    with pytest.raises(StoreError, match=r"no space left .* package lists of debian12"):
        run_apt(apt, output)


def test_apt_needs_no_space_in_tmp(apt: PrivateApt) -> None:
    temporary = apt.directory / "tmp"
    temporary.mkdir()
    assert run_apt(apt, f'[ "$(dirname "$(mktemp)")" = {temporary} ]') == 0


def test_apt_that_succeeds_on_a_full_disk_is_fine(
    apt: PrivateApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda place: FakeStatvfs(4096))
    assert run_apt(apt, "exit 0") == 0


def test_apt_that_is_stuck_is_given_up(apt: PrivateApt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_apt, "STUCK_SECONDS", 0.5)
    with pytest.raises(TemporaryError, match="apt-get did nothing for "):
        run_apt(apt, "sleep 1000")


def test_apt_that_waits_without_end_on_a_full_disk_has_run_out_of_space(
    apt: PrivateApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes what it could not write, so some space may be free."""
    monkeypatch.setattr(os, "statvfs", lambda place: FakeStatvfs(2 << 20))
    monkeypatch.setattr(private_apt, "LOW_DISK_STUCK_SECONDS", 0.5)
    with pytest.raises(StoreError, match="no space left"):
        run_apt(apt, "sleep 1000")
