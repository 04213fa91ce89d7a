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

from tests.notebook.processes import at_work_in, living, until

pytestmark = pytest.mark.notebook

#: Seconds within which no process of a replica may be left (issue 5).
ENDED = 10.0
WORKERS = 2

#: Each worker tells its process and a child's, then waits to be let go.
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
    """Where the test happens; what a test that fails leaves of its workers ends after it."""
    yield tmp_path
    (tmp_path / "go").touch()
    until(lambda: not at_work_in(tmp_path), limit=ENDED)


def test_replicas_stop_when_the_kernel_is_killed(place: Path) -> None:
    with a_kernel(place) as kernel:
        kernel.start(cell(""))
        pids = the_processes(place)
        kernel.kill()
        until(lambda: not living(pids) and not at_work_in(place), limit=ENDED)


def test_detached_job_can_be_attached_from_another_kernel(place: Path) -> None:
    with a_kernel(place) as kernel:
        kernel.run(cell("--detach"))
        pids = the_processes(place)
        kernel.kill()
    assert living(pids) == pids
    with a_kernel(place) as other:
        other.start("%jobs attach left")
        (place / "go").touch()
        said = other.ended()
        assert "after" in said
        assert "[0.0, 0.5]" in other.run("print(losses)")
    assert not living(pids)


def cell(options: str) -> str:
    line = f"--framework pytorch --worker {WORKERS} --name left --send place --return losses"
    return f"%%distributed {line} {options}\n{CODE}"


class Kernel:
    """An IPython kernel of this Python, and who asks it."""

    def __init__(self, manager: Any, client: Any, place: Path) -> None:
        self._manager = manager
        self._client = client
        self._asked = ""
        self.run(f"place = {str(place)!r}\n%load_ext danlu.notebook")

    def start(self, code: str) -> None:
        """Have ``code`` run, and wait for nothing."""
        self._asked = self._client.execute(code, allow_stdin=False)

    def run(self, code: str) -> str:
        """What ``code`` put out, at its end."""
        self.start(code)
        return self.ended()

    def ended(self, *, limit: float = 30.0) -> str:
        """All that was put out until the end of what was started; it did not fail."""
        said, end = "", time.monotonic() + limit
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != self._asked:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said
            assert message["msg_type"] != "error", "\n".join(content["traceback"])
            said += content.get("text", "") + json.dumps(content.get("data", {}))

    def kill(self) -> None:
        """End it as a machine out of memory does."""
        os.kill(self._manager.provisioner.pid, signal.SIGKILL)


@contextmanager
def a_kernel(place: Path) -> Iterator[Kernel]:
    """A kernel with a danlu home of this test; it and its channels are gone after the block."""
    from jupyter_client.manager import start_new_kernel

    environment = {
        **os.environ,
        "DANLU_HOME": str(place / "home"),
        "DANLU_UPKEEP": "off",
        "IPYTHONDIR": str(place / "ipython"),
    }
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(place))
    try:
        yield Kernel(manager, client, place)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def the_processes(place: Path) -> set[int]:
    """Return the processes of all workers once all have started."""
    until(lambda: len(list(place.glob("*.pids"))) == WORKERS, limit=30)
    pids = {int(pid) for file in place.glob("*.pids") for pid in file.read_text().split()}
    assert living(pids) == pids
    return pids
