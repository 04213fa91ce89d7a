"""Environments of other machines, in lists."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from danlu.errors import OutsideError
from danlu.remote.environment_list import list_remote_environments, parse_environments
from danlu.remote.program_transfer import MISSING_PROGRAM
from danlu.remote.remote_host import RemoteHost

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

CACHE = Path("/cache")


class FakeHost(RemoteHost):
    """A machine that gives one answer."""

    def __init__(self, stdout: bytes = b"", code: int = 0, stderr: bytes = b"") -> None:
        super().__init__("ssh://box")
        self.answer(stdout, code, stderr)

    def answer(self, stdout: bytes = b"", code: int = 0, stderr: bytes = b"") -> None:
        self._answer = subprocess.CompletedProcess([], code, stdout, stderr)

    def run(self, script: str, *, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return self._answer


def test_environments_have_the_context_and_why_they_stopped() -> None:
    rows = list_remote_environments("box", FakeHost(json.dumps([ROW]).encode()), CACHE)
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
        list_remote_environments("box", FakeHost(answer), CACHE)


def test_failures_are_explained() -> None:
    with pytest.raises(OutsideError, match="disk is full"):
        list_remote_environments("box", FakeHost(code=3, stderr=b"error: disk is full\n"), CACHE)


def test_danlu_is_copied_to_a_machine_that_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(code=MISSING_PROGRAM)

    def copy(to: RemoteHost, cache: Path) -> None:
        assert (to, cache) == (host, CACHE)
        host.answer(json.dumps([ROW]).encode())

    monkeypatch.setattr("danlu.remote.program_transfer.copy_program", copy)
    assert len(list_remote_environments("box", host, CACHE)) == 1
