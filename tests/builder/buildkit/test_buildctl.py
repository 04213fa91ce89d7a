"""Reports of a solve: lines of output, exit codes, an unreachable daemon."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.builder.buildkit.buildctl import BuildctlClient, SolveFailure, SolveInputs
from danlu.errors import MachineError, OutsideError, TemporaryError
from danlu.util import process

MakeClient = Callable[..., BuildctlClient]


@pytest.fixture
def make_client(tmp_path: Path) -> MakeClient:
    """A client whose ``buildctl`` prints ``lines`` to stderr and exits with ``code``."""

    def make(*lines: str, code: int = 0, tls_directory: str = "") -> BuildctlClient:
        output = tmp_path / "stderr"
        output.write_text("".join(f"{line}\n" for line in lines))
        program = tmp_path / "buildctl"
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "args"))}\n'
            f"cat >/dev/null\ncat {shlex.quote(str(output))} >&2\nexit {code}\n"
        )
        program.chmod(0o755)
        host = "tcp://user:password@host:1"
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUILDKIT_HOST": host}
        return BuildctlClient(environ=environ, tls_directory=tls_directory)

    return make


def log(text: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return json.dumps({"logs": [{"vertex": "v", "stream": 1, "data": data}]})


def solve(client: BuildctlClient, *, step: str = "") -> tuple[SolveFailure | None, list[str]]:
    lines: list[str] = []

    async def run() -> SolveFailure | None:
        return await client.solve(b"", SolveInputs(), step=step, on_line=lines.append)

    return anyio.run(run), lines


def test_output_is_reported_in_whole_lines(make_client: MakeClient) -> None:
    client = make_client(log("one\ntw"), "a warning", log("o\rthree"))
    assert solve(client) == (None, ["one", "two", "three"])


def test_cached_step_is_reported(make_client: MakeClient) -> None:
    vertex = {"digest": "v", "name": "step", "cached": True}
    client = make_client(json.dumps({"vertexes": [vertex]}))
    assert solve(client, step="step")[1] == ["found in BuildKit's cache"]


def test_exit_code_of_a_failed_command_is_returned(make_client: MakeClient) -> None:
    error = 'error: failed to solve: process "/bin/sh" did not complete successfully: exit code: 7'
    failure, _ = solve(make_client(error, code=1))
    assert failure is not None
    assert failure.exit_code == 7


@pytest.mark.parametrize(
    "error",
    [
        'error: failed to list workers: Unavailable: connection error: desc = "transport: x"',
        "error: failed to receive status: rpc error: code = Unavailable desc = EOF",
    ],
)
def test_daemon_that_went_away_is_an_outside_error(make_client: MakeClient, error: str) -> None:
    with pytest.raises(OutsideError, match=r"cannot reach BuildKit at tcp://\S*@host:1") as caught:
        solve(make_client(error, code=1))
    assert "password" not in caught.value.message
    assert "BUILDKIT_HOST" in caught.value.hint


def test_other_failures_are_reported_with_the_daemons_message(make_client: MakeClient) -> None:
    failure, _ = solve(make_client("error: failed to solve: no such blob", code=1))
    assert failure == SolveFailure("no such blob", None)


def test_unreadable_progress_is_skipped(make_client: MakeClient) -> None:
    client = make_client('{"vertexes": 5}', "{", log("x\n"), json.dumps({"newer": True}))
    assert solve(client) == (None, ["x"])


def test_missing_buildctl_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="buildctl") as caught:
        BuildctlClient(environ={"PATH": str(tmp_path)})
    assert "--builder embedded" in caught.value.hint


def test_certificates_are_passed_to_every_command(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(tls_directory="/certificates")
    for run in (client.find_worker, partial(client.solve, b"", SolveInputs())):
        anyio.run(run)
        assert (tmp_path / "args").read_text().splitlines()[0] == "--tlsdir=/certificates"


def test_paths_with_commas_are_one_field(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client()
    inputs = SolveInputs(secrets={"s": Path('/a,b"c')})
    anyio.run(client.solve, b"", inputs)
    assert '--secret=id=s,"src=/a,b""c"' in (tmp_path / "args").read_text().splitlines()


@pytest.fixture
def stuck_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeClient:
    """A client whose ``buildctl build`` prints a line and stops for good."""
    monkeypatch.setattr(process, "STUCK_SECONDS", 2.0)

    def make(line: str, workers: str) -> BuildctlClient:
        program = tmp_path / "buildctl"
        program.write_text(
            f'#!/bin/sh\n[ "$1" = debug ] && {{ {workers}; exit; }}\ncat >/dev/null\n'
            f"echo {shlex.quote(line)} >&2\nexec sleep infinity\n"
        )
        program.chmod(0o755)
        return BuildctlClient(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})

    return make


RUNNING = json.dumps({"vertexes": [{"digest": "v", "name": "step", "started": "2026-01-01"}]})


def test_solve_that_stops_is_given_up(stuck_client: MakeClient) -> None:
    with pytest.raises(TemporaryError, match="buildctl did nothing for"):
        solve(stuck_client(RUNNING, "echo worker"), step="another step")


def test_daemon_that_stops_during_a_silent_step_is_given_up(stuck_client: MakeClient) -> None:
    with pytest.raises(TemporaryError, match="buildctl did nothing for"):
        solve(stuck_client(RUNNING, "sleep infinity"), step="step")


def test_silent_step_goes_on_as_long_as_the_daemon_answers(
    stuck_client: MakeClient, tmp_path: Path
) -> None:
    answer = f"echo >>{tmp_path}/asked; [ $(wc -l <{tmp_path}/asked) -lt 3 ] && echo worker"
    with pytest.raises(OutsideError, match="cannot reach BuildKit"):
        solve(stuck_client(RUNNING, f"{answer} || exit 1"), step="step")
    assert (tmp_path / "asked").read_text().count("\n") == 3
