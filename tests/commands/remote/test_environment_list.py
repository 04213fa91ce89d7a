"""Environments of other machines, in lists."""

from __future__ import annotations

import json
import subprocess

import pytest

from danlu.commands.remote.environment_list import list_remote_environments, parse_environments
from danlu.commands.remote.program_transfer import MISSING_PROGRAM
from danlu.commands.remote.remote_host import RemoteHost
from danlu.errors import OutsideError

ROW = {
    "name": "digits",
    "phase": "Stopped",
    "reason": "supervisor killed: SIGKILL",
    "project": "/home/me/digits",
    "engine": "embedded",
    "started": "2026-11-24T10:00:00+00:00",
    "services": [{"name": "jupyter", "running": False}],
    "ports": [{"port": 80, "address": "127.0.0.1", "host_port": 8080, "service": ""}],
}


class FakeHost(RemoteHost):
    """A machine that gives one answer."""

    def __init__(self, stdout: bytes = b"", code: int = 0, stderr: bytes = b"") -> None:
        super().__init__("ssh://box")
        self._answer = subprocess.CompletedProcess([], code, stdout, stderr)

    def run(self, script: str, *, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self._answer


def test_environments_have_the_context_and_why_they_stopped() -> None:
    rows = list_remote_environments("box", FakeHost(json.dumps([ROW]).encode()))
    (environment,) = parse_environments(rows)
    assert environment.context == "box"
    assert environment.state == "Stopped (supervisor killed)"
    assert environment.ports[0].host_port == 8080
    assert [row["project"] for row in rows] == ["/home/me/digits"]


@pytest.mark.parametrize(
    "answer",
    [
        b"not JSON",
        b"{}",
        b"[1]",
        json.dumps([{**ROW, "name": "../x"}]).encode(),
        json.dumps([{**ROW, "ports": "many"}]).encode(),
    ],
)
def test_answers_of_another_machine_are_checked(answer: bytes) -> None:
    with pytest.raises(OutsideError, match="cannot list the environments of box"):
        list_remote_environments("box", FakeHost(answer))


def test_failures_are_explained() -> None:
    with pytest.raises(OutsideError, match="disk is full"):
        list_remote_environments("box", FakeHost(code=3, stderr=b"error: disk is full\n"))
    with pytest.raises(OutsideError, match="does not have this version") as caught:
        list_remote_environments("box", FakeHost(code=MISSING_PROGRAM))
    assert "danlu ps --on box" in caught.value.hint
