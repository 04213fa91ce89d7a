"""Logs of limited size, and reading them while they grow."""

from __future__ import annotations

from pathlib import Path

from danlu.util.rotating_log import LogFollower, RotatingLog


def test_a_log_keeps_the_newest_output(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RotatingLog(path, limit=20)
    for number in range(10):
        log.write(b"line %d\n" % number)
    log.close()
    assert path.read_bytes() == b"line 8\nline 9\n"
    assert (tmp_path / "log.1").read_bytes() == b"line 6\nline 7\n"


def test_a_follower_reads_each_byte_once_across_rotations(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, follower = RotatingLog(path, limit=20), LogFollower(path)
    data = b""
    for number in range(10):
        log.write(b"line %d\n" % number)
        data += follower.read()
    assert data == b"".join(b"line %d\n" % number for number in range(10))


def test_a_tail_spans_both_files(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", limit=20)
    for number in range(10):
        log.write(b"line %d\n" % number)
    assert LogFollower(tmp_path / "log", tail=3).read() == b"line 7\nline 8\nline 9\n"
    assert LogFollower(tmp_path / "log", tail=0).read() == b""


def test_a_log_that_does_not_exist_yet_is_followed(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path / "log")
    assert follower.read() == b""
    RotatingLog(tmp_path / "log", limit=20).write(b"first\n")
    assert follower.read() == b"first\n"
