"""Job cells of notebooks in JupyterLab of an environment, through its server and real kernel."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.jobs.local.file_exchange import may_unpickle
from danlu.jobs.local.job_directory import JobDirectory
from danlu.sandbox.procfs import find_namespace_members, read_command
from danlu.util.danlu_program import CONTEXT_VARIABLE
from danlu.util.locks import lock_is_held
from tests.conftest import Danlu, missing_for_real, program_in
from tests.engines import engine_variables
from tests.notebook.gateways import GatewayKernel, start_kernel
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing_for_real()), reason=missing_for_real()),
]

BUILD = """\
def build():
    base("debian12")
    install.python()
    install.python_packages(["numpy"])
    config.jupyter()
"""
TRAIN = """\
%%distributed --framework pytorch --worker {workers} --send x --return rank,total,where
import os
rank, where = int(os.environ["RANK"]), os.getcwd()
total = x.sum() + Path("sent").stat().st_size
"""
NAME = "cells"


@dataclass
class CellOutcome:
    """How a cell ended: its error's name, streams and traceback, and its displays by identity."""

    error: str = ""
    text: str = ""
    displays: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """What the cell shows at the end."""
        return "\n".join(self.displays.values())


@dataclass(frozen=True)
class NotebookEnvironment:
    """A running environment with a Jupyter server."""

    danlu: Danlu
    home: Path
    project: Path
    url: str
    token: str

    @property
    def directory(self) -> EnvironmentDirectory:
        """Where danlu keeps it."""
        return EnvironmentDirectory(self.home / "environments" / NAME)

    @asynccontextmanager
    async def kernel(self) -> AsyncIterator[GatewayKernel]:
        """A kernel of the server that has loaded the extension."""
        async with start_kernel(self.url, "python3", {}, token=self.token) as kernel:
            assert await kernel.run("%load_ext danlu.notebook") == ("ok", "")
            yield kernel

    def job_states(self) -> dict[str, str]:
        """The states of jobs by name, the newest first."""
        output = self.danlu("jobs", "ls", "--format", "json", cwd=self.project).stdout
        return {job["name"]: job["state"] for job in msgspec.json.decode(output)}


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("docker", marks=pytest.mark.needs("docker", "dockerd"))],
)
def environment(
    request: pytest.FixtureRequest, real_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NotebookEnvironment]:
    if request.param == "embedded":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CONTEXT_VARIABLE, "local")
            yield from start_environment(real_home, tmp_path_factory.mktemp("jupyter"))
        return
    with engine_variables("docker") as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, CONTEXT_VARIABLE: "docker"}.items():
            patch.setenv(name, value)
        yield from start_environment(real_home, tmp_path_factory.mktemp("jupyter"))


def start_environment(home: Path, project: Path) -> Iterator[NotebookEnvironment]:
    """Start the environment, and remove it afterwards."""
    (project / "build.envd").write_text(BUILD)
    (project / "sent").write_bytes(b"12345")
    danlu = program_in(home)
    output = danlu("up", "-d", "-n", NAME, cwd=project, timeout=280).stderr
    try:
        found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\S+)", output)
        assert found, output
        yield NotebookEnvironment(danlu, home, project, found[1], found[2])
    finally:
        danlu("down", "--grace", "0", NAME, cwd=project)


async def run(kernel: GatewayKernel, code: str, *, interrupt_at: str = "") -> CellOutcome:
    """Run a cell; interrupt it when it has displayed ``interrupt_at``."""
    outcome = CellOutcome()
    async for message in kernel.messages_of(await kernel.begin(code)):
        add_message(outcome, message)
        if interrupt_at and interrupt_at in outcome.shown:
            interrupt_at = ""
            await kernel.interrupt()
    return outcome


def add_message(outcome: CellOutcome, message: dict[str, Any]) -> None:
    content = message["content"]
    match message["msg_type"]:
        case "stream":
            outcome.text += content["text"]
        case "error":
            outcome.error = content["ename"]
            outcome.text += "\n".join(content["traceback"])
        case "display_data" | "update_display_data":
            outcome.displays[content["transient"]["display_id"]] = content["data"]["text/plain"]


def test_a_cell_runs_on_replicas_in_the_environments_image(
    environment: NotebookEnvironment,
) -> None:
    async def act() -> None:
        async with environment.kernel() as kernel:
            await run(kernel, "import numpy; x = numpy.arange(4.0); workers = 2")
            code = TRAIN.replace("import os\n", "import os\nfrom pathlib import Path\n")
            result = await run(kernel, code)
            assert (result.error, result.text) == ("", "")
            assert "worker-1  Succeeded" in result.shown
            found = await run(kernel, "print(rank, total, type(total).__name__, where)")
            assert found.text.split() == ["0", "11.0", "float64", "/workspace"]

    asyncio.run(act())
    name = next(iter(environment.job_states()))
    submission = JobDirectory(environment.home / "jobs" / name).read_submission()
    image = environment.directory.read_spec().image
    assert {item.digest for item in submission.images.values()} == {image}
    assert submission.directory == environment.project
    assert submission.trusted
    assert not may_unpickle(submission)


def test_an_error_of_a_replica_names_the_line_of_the_cell(environment: NotebookEnvironment) -> None:
    async def act() -> None:
        async with environment.kernel() as kernel:
            lines = ("%%distributed --framework pytorch --worker 2", "", "x = 1", "x / 0")
            result = await run(kernel, "\n".join(lines))
            assert result.error == "CellFailed"
            assert "ZeroDivisionError: division by zero (line 4 of the cell)" in result.text
            wrong = await run(kernel, "%%distributed --framework pytorch --wroker 2\npass")
            assert wrong.error == "UsageError"
            assert "did you mean --worker?" in wrong.text
            lost = await run(kernel, "%%distributed --framework pytorch --send y\npass")
            assert "variable y is not defined" in lost.text
            image = await run(kernel, "%%distributed --framework pytorch --image debian\npass")
            assert "--image cannot be used in an environment's notebook" in image.text

    asyncio.run(act())


def test_an_interrupted_cell_stops_its_job(environment: NotebookEnvironment) -> None:
    async def act() -> None:
        async with environment.kernel() as kernel:
            result = await run(kernel, sleeping("interrupted"), interrupt_at="begun")
            assert result.error == "KeyboardInterrupt"
            assert (await run(kernel, "print(6 * 7)")).text == "42\n"
            while environment.job_states()["interrupted"] == "Running":
                await asyncio.sleep(0.1)

    asyncio.run(act())


def test_a_job_stops_when_its_kernel_is_killed(environment: NotebookEnvironment) -> None:
    async def act() -> None:
        async with environment.kernel() as kernel:
            async for message in kernel.messages_of(await kernel.begin(sleeping("lost"))):
                if "begun" in str(message["content"].get("data")):
                    break
            kill_kernels(environment)
            while environment.job_states()["lost"] == "Running":
                await asyncio.sleep(0.1)

    asyncio.run(act())


def sleeping(name: str) -> str:
    """Return a cell whose job sleeps."""
    return (
        f"%%distributed --framework pytorch --worker 2 --name {name}\n"
        "import time\nprint('begun', flush=True)\ntime.sleep(1000)"
    )


def kill_kernels(environment: NotebookEnvironment) -> None:
    """Kill the kernels, which are processes of this machine in every engine."""
    container = environment.directory.read_state().container
    assert container is not None
    for pid in find_namespace_members(container):
        if "ipykernel_launcher" in read_command(pid):
            os.kill(pid, signal.SIGKILL)


def test_jobs_of_others_do_not_exist_for_a_notebook(environment: NotebookEnvironment) -> None:
    script = environment.project / "other.py"
    script.write_text("print('other')")
    words = ("train", "other.py", "--framework", "pytorch", "--host-python", "--name", "other")
    environment.danlu(*words, cwd=environment.project)

    async def act() -> None:
        async with environment.kernel() as kernel:
            for line in ("show other", "logs other", "rm other", "stop other"):
                assert "job 'other' not found" in (await run(kernel, f"%jobs {line}")).text
            same = sleeping("other")
            assert "job other already exists" in (await run(kernel, same)).text
            assert "other" not in (await run(kernel, "%jobs")).shown

    asyncio.run(act())


def test_the_bridge_ends_with_the_environment_and_is_started_again(
    environment: NotebookEnvironment,
) -> None:
    lock = environment.directory.directory / "notebook.lock"
    environment.danlu("stop", "--grace", "0", NAME, cwd=environment.project)
    environment.danlu("start", NAME, cwd=environment.project)
    assert lock_is_held(lock)
    assert lock.read_text() == environment.directory.lock.read_text()
    environment.danlu("stop", "--grace", "0", NAME, cwd=environment.project)
    wait_for(lambda: not lock_is_held(lock))
    environment.danlu("start", NAME, cwd=environment.project)
    assert lock_is_held(lock)
