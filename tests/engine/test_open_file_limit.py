"""The limit of open files: the supervisor's, that of programs inside, and what happens at it."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine import environment_control
from danlu.engine.environment_control import StopRequest, request_from_supervisor
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.errors import MachineError
from danlu.sandbox.runtime_spec import render_process
from danlu.sandbox.types import ProcessSpec
from danlu.store import Store
from tests.jobs.containers.engine_rig import image, paths_of


def test_a_client_without_free_descriptors_does_not_take_the_environment_for_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_connect(*arguments: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(environment_control, "send_request", fail_to_connect)
    environment = EnvironmentDirectory(tmp_path / "digits")
    environment.write_spec(EnvironmentSpec("digits", "sha256:0", datetime.now(UTC)))
    with pytest.raises(MachineError, match="too many open files: danlu may open") as caught:
        request_from_supervisor(environment, StopRequest(0))
    assert "ulimit -n" in caught.value.hint


def test_a_program_gets_the_limit_that_it_asks_for() -> None:
    process = ProcessSpec(("true",), open_files=(200, 4000))
    (limit,) = render_process(process)["rlimits"]
    assert limit == {"type": "RLIMIT_NOFILE", "soft": 200, "hard": 4000}
    assert "rlimits" not in render_process(ProcessSpec(("true",)))


@pytest.mark.real
@pytest.mark.needs("busybox")
@pytest.mark.timeout(120)
def test_the_supervisor_may_open_more_files_than_the_programs_inside(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", image(home))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def run_danlu(*words: str, limit: str = "-S -n 200") -> subprocess.CompletedProcess[str]:
        command = shlex.join((sys.executable, "-m", "danlu", *words))
        return subprocess.run(
            ["sh", "-c", f"ulimit {limit}; exec {command}"],
            cwd=tmp_path,
            env={**os.environ, "DANLU_HOME": str(home), "DANLU_SSH_CONFIG": "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run_danlu("up", "-d", "--image", "box:1", "--name", "digits", limit="-n 24")
    assert refused.returncode == 4
    assert "error: too many open files: danlu may open 24" in refused.stderr
    started = run_danlu("up", "-d", "--image", "box:1", "--name", "digits")
    assert started.returncode == 0, started.stderr
    try:
        inside = run_danlu("exec", "-n", "digits", "sh", "-c", "ulimit -Sn; ulimit -Hn")
        soft_inside, hard_inside = map(int, inside.stdout.split())
        # Older versions of runc raise the soft limit themselves, whatever the process asks for.
        assert soft_inside in (200, hard)
        assert hard_inside == hard
        lock = EnvironmentDirectory(paths_of(home).environments / "digits").lock
        limits = Path(f"/proc/{lock.read_text()}/limits").read_text()
        assert re.search(rf"Max open files +{hard} +{hard} ", limits)
    finally:
        run_danlu("down", "--grace", "0", "digits")
