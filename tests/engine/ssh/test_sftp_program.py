"""The SFTP server that runs inside, fed with packets that no client sends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.ssh import programs
from danlu.engine.ssh.session import select_variables

INIT, OPEN, CLOSE, READ, REALPATH, EXTENDED = 1, 3, 4, 5, 16, 200
VERSION, STATUS, NAME = 2, 101, 104
BAD_MESSAGE, OP_UNSUPPORTED = 5, 8


def pack_packet(kind: int, *parts: bytes) -> bytes:
    body = bytes([kind]) + b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def pack_string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def exchange_packets(data: bytes, directory: Path) -> tuple[list[bytes], int]:
    """Return the packets that the server answers with, and its exit code."""
    program = programs.sftp_request().args[-1]
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], input=data, capture_output=True, cwd=directory
    )
    answers, rest = [], result.stdout
    while rest:
        size = int.from_bytes(rest[:4], "big")
        answers.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return answers, result.returncode


NUMBER = (7).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (pack_packet(OPEN, NUMBER), BAD_MESSAGE),
        (pack_packet(OPEN, NUMBER, b"\xff\xff\xff\xff"), BAD_MESSAGE),
        (pack_packet(CLOSE, NUMBER, pack_string(b"9")), BAD_MESSAGE),
        (pack_packet(READ, NUMBER, pack_string(b"9"), bytes(12)), BAD_MESSAGE),
        (pack_packet(EXTENDED, NUMBER, pack_string(b"made-up@example.org")), OP_UNSUPPORTED),
        (pack_packet(99, NUMBER), OP_UNSUPPORTED),
    ],
)
def test_invalid_request_is_answered_and_the_next_one_served(
    packet: bytes, code: int, tmp_path: Path
) -> None:
    where = pack_packet(REALPATH, NUMBER, pack_string(b""))
    (version, status, name), exit_code = exchange_packets(
        pack_packet(INIT, NUMBER) + packet + where, tmp_path
    )
    assert version[0] == VERSION
    assert status[:9] == bytes([STATUS]) + NUMBER + code.to_bytes(4, "big")
    assert name[0] == NAME
    assert str(tmp_path).encode() in name
    assert exit_code == 0


def test_packet_over_the_limit_ends_the_server(tmp_path: Path) -> None:
    answers, exit_code = exchange_packets(b"\x7f\xff\xff\xff", tmp_path)
    assert (answers, exit_code) == ([], 1)


def test_variables_of_the_loader_and_the_shell_are_dropped() -> None:
    sent = {"LC_ALL": "C", "VSCODE_IPC": "x", "LD_PRELOAD": "/x", "PATH": "/x", "LC_É": "x"}
    assert select_variables(sent) == {"LC_ALL": "C", "VSCODE_IPC": "x"}
    assert select_variables({"LANG": "x" * 5000}) == {}
    assert len(select_variables({f"LC_{number}": "x" for number in range(500)})) == 100
