"""The server of ``scp -O`` that runs inside, fed with what no client sends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.ssh import programs


def answer_input(data: bytes, directory: Path, *arguments: str) -> tuple[bytes, int]:
    """Return what the server answers, and its exit code."""
    program = programs.command_request("scp -t .", {}).args[-1]
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *arguments],
        input=data,
        capture_output=True,
        cwd=directory,
    )
    assert result.stderr == b""
    return result.stdout, result.returncode


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"C0644 1 ../x\n1\0", b"unexpected filename"),
        (b"C0644 1 /x\n1\0", b"unexpected filename"),
        (b"C0644 1 ..\n1\0", b"unexpected filename"),
        (b"D0755 0 .\n", b"unexpected filename"),
        (b"C0644 -1 x\n", b"unexpected line"),
        (b"C0999 1 x\n", b"unexpected line"),
        (b"T1 0\n", b"unexpected line"),
        (b"made up\n", b"unexpected line"),
        (b"C0644 1 x", b"line cut"),
        (b"C0644 3 x\n1", b"connection lost"),
        (b"D0755 0 x\nD0755 0 ..\n", b"unexpected filename"),
    ],
)
def test_invalid_input_ends_the_server_and_writes_nothing_outside(
    data: bytes, reason: bytes, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    output, code = answer_input(data, inside, "-r", "-t", ".")
    assert code == 1
    assert output.endswith(b"\2scp: protocol error: %s\n" % reason)
    assert list(tmp_path.iterdir()) == [inside]


def test_a_directory_is_received_with_r_only(tmp_path: Path) -> None:
    output, code = answer_input(b"D0755 0 x\nE\n", tmp_path, "-t", ".")
    assert (b"received a directory without -r" in output, code) == (True, 1)
    assert list(tmp_path.iterdir()) == []


def test_several_files_need_a_directory(tmp_path: Path) -> None:
    output, code = answer_input(b"C0644 1 x\n1\0", tmp_path, "-d", "-t", "--", "missing")
    assert (output, code) == (b"\2scp: missing: not a directory\n", 1)


def test_a_named_pipe_is_not_read(tmp_path: Path) -> None:
    subprocess.run(["mkfifo", tmp_path / "pipe"], check=True)
    output, code = answer_input(b"\0\0", tmp_path, "-f", "pipe")
    assert (output, code) == (b"\1scp: pipe: not a regular file\n", 1)


@pytest.mark.parametrize("command", ["scp -t .", "scp -v -r -p -d -t -- x y", "scp -rf '*.txt'"])
def test_the_client_of_an_image_without_scp_is_served(command: str) -> None:
    assert "DANLU_SCP_SERVER" in programs.command_request(command, {}).args[2]


@pytest.mark.parametrize("command", ["scp a host:b", "scpx -t .", "echo scp -t .", "scp -r x -t"])
def test_other_commands_are_for_the_shell(command: str) -> None:
    assert programs.command_request(command, {}).args[-1] == command
