"""Services that cannot be started."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import anyio
import pytest

from danlu.engine.environment_directory import EnvironmentDirectory, ServiceSpec
from danlu.engine.service_runner import ServiceRunner
from danlu.engine.types import EnvironmentProgram


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EAGAIN, errno.EMFILE])
def test_a_service_that_the_machine_cannot_start_is_tried_again(
    tmp_path: Path, number: int
) -> None:
    environment = EnvironmentDirectory(tmp_path)
    environment.logs.mkdir()
    tries = 0

    async def fail_to_start(service: ServiceSpec, output: int) -> EnvironmentProgram:
        nonlocal tries
        tries += 1
        raise OSError(number, os.strerror(number))

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(runner.run)
            with anyio.fail_after(60):
                while tries < 2:
                    await anyio.sleep(0.01)
            await runner.stop(grace=0)

    runner = ServiceRunner(
        ServiceSpec("counter", ("true",)), environment, fail_to_start, changed=lambda: None
    )
    anyio.run(run)
    assert runner.state.reason == os.strerror(number)
    assert (
        f"could not be started: {os.strerror(number)}"
        in environment.log_file("counter").read_text()
    )
