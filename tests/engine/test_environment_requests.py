"""Requests to environments, from the side of the client."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.exec_connection import ExecConnection
from danlu.engine.types import ExecRequest
from danlu.errors import OutsideError, UsageError

#: As Python decodes the byte 0xff of a command line (PEP 383).
NOT_UTF8 = "a\udcff"


@pytest.mark.parametrize(
    "program",
    [
        ExecRequest((NOT_UTF8,)),
        ExecRequest(("true",), directory=NOT_UTF8),
        ExecRequest(("true",), user=NOT_UTF8),
        ExecRequest(("true",), environment={"A": NOT_UTF8}),
    ],
)
def test_a_program_that_is_not_utf8_is_refused(program: ExecRequest) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        encode_exec(program)


def test_a_specification_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    spec = EnvironmentSpec("digits", "sha256:0", datetime.now(UTC), environment={"A": NOT_UTF8})
    with pytest.raises(UsageError, match="not valid UTF-8"):
        EnvironmentDirectory(tmp_path).write_spec(spec)
    assert not list(tmp_path.iterdir())


def test_a_supervisor_that_is_killed_before_it_reads_a_signal_is_one_error() -> None:
    ours, theirs = socket.socketpair()
    connection = ExecConnection(ours)
    connection.send_signal(15)
    theirs.close()
    with pytest.raises(OutsideError, match="the environment was stopped"):
        connection.read_exit()
    connection.close()


def test_clients_of_running_environments_load_little() -> None:
    modules = "danlu.cli.environment_stamp, danlu.engine.ssh.stdio_service"
    slow = {"asyncio", "dataclasses", "danlu.errors", "msgspec", "pathlib", "typing"}
    code = f"import sys, {modules}; print(*{slow} & sys.modules.keys())"
    loaded = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)
    assert loaded == "\n"
