"""A kernel that is killed in mid-job: its replicas go with it, unless the job is detached."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.processes import find_processes_in, list_living_processes, until

pytestmark = pytest.mark.notebook

#: Seconds within which no process of a replica may be left (issue 5).
ENDED = 10.0
WORKERS = 2

#: Each worker writes its pid and that of a child, then waits.
CODE = """\
import os, pathlib, subprocess, time
place = pathlib.Path(place)
child = subprocess.Popen(["sleep", "600"])
rank = os.environ["RANK"]
told = place / f"{rank}.new"
told.write_text(f"{os.getpid()} {child.pid}")
told.rename(place / f"{rank}.pids")
print("before", flush=True)
while not (place / "go").exists():
    time.sleep(0.05)
child.kill()
child.wait()
print("after", flush=True)
losses = [float(rank), 0.5]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The test's directory; workers that a failed test leaves there are killed afterwards."""
    yield tmp_path
    (tmp_path / "go").touch()
    until(lambda: not find_processes_in(tmp_path), limit=ENDED)


def test_replicas_stop_when_the_kernel_is_killed(place: Path) -> None:
    with start_child_kernel(place) as kernel:
        kernel.start(cell(""))
        pids = list_cell_processes(place)
        kernel.kill()
        until(lambda: not list_living_processes(pids) and not find_processes_in(place), limit=ENDED)


def test_detached_job_can_be_attached_from_another_kernel(place: Path) -> None:
    with start_child_kernel(place) as kernel:
        kernel.run(cell("--detach"))
        pids = list_cell_processes(place)
        kernel.kill()
    assert list_living_processes(pids) == pids
    with start_child_kernel(place) as other:
        other.start("%jobs attach left")
        (place / "go").touch()
        output = other.wait_for_end()
        assert "after" in output
        assert "[0.0, 0.5]" in other.run("print(losses)")
    assert not list_living_processes(pids)


def cell(options: str) -> str:
    line = f"--framework pytorch --worker {WORKERS} --name left --send place --return losses"
    return f"%%distributed {line} {options}\n{CODE}"


class ChildKernel:
    """An IPython kernel of this Python and its client."""

    def __init__(self, manager: Any, client: Any, place: Path) -> None:
        self._manager = manager
        self._client = client
        self._asked = ""
        self.run(f"place = {str(place)!r}\n%load_ext danlu.notebook")

    def start(self, code: str) -> None:
        """Run ``code`` without waiting."""
        self._asked = self._client.execute(code, allow_stdin=False)

    def run(self, code: str) -> str:
        """Run ``code`` and return its output."""
        self.start(code)
        return self.wait_for_end()

    def wait_for_end(self, *, limit: float = 30.0) -> str:
        """Wait for the end of the started code and return its output; it must not fail."""
        output, end = "", time.monotonic() + limit
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != self._asked:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return output
            assert message["msg_type"] != "error", "\n".join(content["traceback"])
            output += content.get("text", "") + json.dumps(content.get("data", {}))

    def kill(self) -> None:
        """End it as a machine out of memory does."""
        os.kill(self._manager.provisioner.pid, signal.SIGKILL)


@contextmanager
def start_child_kernel(place: Path) -> Iterator[ChildKernel]:
    """A kernel with a separate danlu home; it and its channels are closed after the block."""
    from jupyter_client.manager import start_new_kernel

    environment = {
        **os.environ,
        "DANLU_HOME": str(place / "home"),
        "IPYTHONDIR": str(place / "ipython"),
    }
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(place))
    try:
        yield ChildKernel(manager, client, place)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def list_cell_processes(place: Path) -> set[int]:
    """Return the processes of all workers once all have started."""
    until(lambda: len(list(place.glob("*.pids"))) == WORKERS, limit=60)
    pids = {int(pid) for file in place.glob("*.pids") for pid in file.read_text().split()}
    assert list_living_processes(pids) == pids
    return pids
