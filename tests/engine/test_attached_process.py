"""Starting a stopped container before the supervisor is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.attached_process import record_start, start_attached, start_recorded
from danlu.engine.first_process import FirstProcess


def make_engine(directory: Path, script: str) -> str:
    program = directory / "engine"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.anyio
async def test_a_recorded_container_is_started_once(tmp_path: Path) -> None:
    program = make_engine(
        tmp_path, f'echo "$@" >{tmp_path}/args; echo danlu: ready; cat >/dev/null'
    )
    record_start(tmp_path, "digest", (program, "start", "a name"))
    attached = start_recorded(str(tmp_path))
    assert attached is not None
    assert attached.digest == "digest"
    assert start_recorded(str(tmp_path)) is None
    first = FirstProcess(attached)
    assert await first.wait_until_ready() is None
    assert (tmp_path / "args").read_text() == "start a name\n"
    first.end_input()
    await first.wait()
    assert first.returncode == 0


@pytest.mark.anyio
async def test_errors_of_a_container_that_does_not_start_are_read(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "echo started; echo no such container >&2; exit 3")
    first = FirstProcess(start_attached((program, "start")))
    assert await first.wait_until_ready() == "no such container\n"
    assert first.returncode == 3
    await first.wait()


@pytest.mark.anyio
async def test_no_descriptor_is_left(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "exit 0")
    before = os.listdir("/proc/self/fd")
    first = FirstProcess(start_attached((program, "start")))
    assert await first.wait_until_ready() == ""
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("text", ["", "digest", "digest\0/missing/engine\0start"])
def test_other_records_are_ignored_and_removed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "start-command"
    path.write_text(text)
    assert start_recorded(str(tmp_path)) is None
    assert not path.exists()


def test_the_start_waits_for_few_modules() -> None:
    code = "import sys, danlu.engine.supervisor_process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"anyio", "asyncio", "msgspec", "typing"}.isdisjoint(done.stdout.split())
