"""Programs that run through the command line of Docker or Podman."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.container import DockerContainer
from danlu.engine.docker.settings import DockerSettings
from danlu.engine.environment_directory import EnvironmentSpec
from danlu.engine.types import ExecRequest

pytestmark = pytest.mark.anyio

SPEC = EnvironmentSpec("digits", "sha256:1", datetime.now(UTC))
#: A command line whose program runs once `go` exists, and that counts the new sizes it gets.
COMMAND_LINE = """#!/bin/sh
cd {directory}
case $* in
*DANLU_EXEC=*)
  if [ -e running ]; then echo 7; fi
  echo >>searches
  exit ;;
esac
trap 'if [ -e running ]; then echo >>sizes; else echo >>early; fi' WINCH
echo >started
while [ ! -e go ]; do sleep 0.01; done
echo >running
while [ ! -e end ]; do sleep 0.01; done
"""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerContainer:
    program = tmp_path / "podman"
    program.write_text(COMMAND_LINE.format(directory=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    settings = DockerSettings("box:1", "0:0", {})
    return DockerContainer(DockerCommand("podman"), None, "danlu-digits-1", SPEC, settings)


async def wait_for_file(path: Path) -> None:
    while not path.exists():
        await anyio.sleep(0.01)


async def test_new_size_waits_until_the_program_runs(
    container: DockerContainer, tmp_path: Path
) -> None:
    null = subprocess.DEVNULL
    request = ExecRequest(("cat",), terminal=True)
    program = await container.start_exec(request, stdin=null, stdout=null, stderr=null)
    await wait_for_file(tmp_path / "started")
    async with anyio.create_task_group() as group:
        group.start_soon(program.notify_resize)
        await wait_for_file(tmp_path / "searches")
        (tmp_path / "go").touch()
    await wait_for_file(tmp_path / "sizes")
    searches = (tmp_path / "searches").read_text()
    (tmp_path / "sizes").unlink()
    await program.notify_resize()
    await wait_for_file(tmp_path / "sizes")
    assert not (tmp_path / "early").exists()
    assert (tmp_path / "searches").read_text() == searches
    (tmp_path / "end").touch()
    assert (await program.wait()).code == 0
