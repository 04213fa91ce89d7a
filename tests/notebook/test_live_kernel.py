"""Jobs from cells of a real kernel: what reaches a front end, how soon an interrupt is answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.notebook.interrupts import ANSWERED, until

pytestmark = pytest.mark.notebook

CELL = "%%distributed --framework pytorch --worker 2 --name {name}\n{code}"

ENDLESS = """
import os, pathlib, time
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    print("still here", flush=True)
    time.sleep(0.01)
"""

#: Faster than anything can read it.
OUTPOURING = """
import os, pathlib
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    print("x" * 80)
"""

#: 50,000 lines of two workers, as fast as they can.
FLOOD = """
import sys
for number in range(25_000):
    sys.stdout.write(f"line {number}: a text as long as such lines are, loss {number / 7:.3f}\\n")
"""


@dataclass
class Ran:
    """What came of a cell: its messages with the moment of each, and how it was answered."""

    identity: str
    reply: dict[str, Any]
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def shown(self) -> str:
        """The text of what is displayed at last."""
        found = [m["content"]["data"] for _, m in self.messages if "data" in m["content"]]
        return str(found[-1]["text/plain"]) if found else ""


class Kernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient, place: Path) -> None:
        self.manager = manager
        self.client: Any = client
        self.place = place

    def run(self, code: str, *, interrupt: float | None = None) -> Ran:
        """Run a cell to its reply, interrupted after so many seconds; that is answered in time."""
        identity = self.client.execute(code)
        if interrupt is not None:
            time.sleep(interrupt)
            at = time.monotonic()
            self.manager.interrupt_kernel()
        reply = self._reply(identity)
        if interrupt is not None:
            assert time.monotonic() - at < ANSWERED
        ran = Ran(identity, reply)
        self.listen(ran, lambda one: one["content"].get("execution_state") == "idle")
        return ran

    def _reply(self, identity: str) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=60)
            if message["parent_header"]["msg_id"] == identity:
                content: dict[str, Any] = message["content"]
                return content

    def listen(self, ran: Ran, end: Any, *, limit: float = 30) -> None:
        """Gather the messages of a cell, until one is the end."""
        until_then = time.monotonic() + limit
        while time.monotonic() < until_then:
            message = self.client.get_iopub_msg(timeout=limit)
            if message["parent_header"].get("msg_id") == ran.identity:
                ran.messages.append((time.monotonic(), message))
                if end(message):
                    return
        raise AssertionError("the end did not come")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    place = tmp_path_factory.mktemp("kernel")
    manager, client = start_new_kernel(
        kernel_name="python3", env=environment(place), cwd=str(place)
    )
    try:
        kernel = Kernel(manager, client, place)
        kernel.run("import time\n%load_ext danlu.notebook")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def environment(place: Path) -> dict[str, str]:
    mine = {"DANLU_HOME": str(place / "home"), "IPYTHONDIR": str(place / "ipython")}
    return {**os.environ, **mine, "DANLU_UPKEEP": "off"}


def alive(place: Path) -> list[str]:
    """The replicas that said they run, and do."""
    return [one.stem for one in place.glob("*.pid") if os.path.exists(f"/proc/{one.stem}/cmdline")]


@pytest.mark.parametrize("moment", [0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 2.0])
def test_an_interrupt_is_answered_at_any_moment(kernel: Kernel, moment: float) -> None:
    ran = kernel.run(CELL.format(name="endless", code=ENDLESS), interrupt=moment)
    assert (ran.reply["status"], ran.reply["ename"]) == ("error", "KeyboardInterrupt")
    assert kernel.run("print('alive')").reply["status"] == "ok"
    until(lambda: not alive(kernel.place), limit=10)


def test_who_writes_faster_than_one_can_read_is_stopped_as_any(kernel: Kernel) -> None:
    ran = kernel.run(CELL.format(name="endless", code=OUTPOURING), interrupt=2.0)
    assert ran.reply["ename"] == "KeyboardInterrupt"
    until(lambda: not alive(kernel.place), limit=10)
    assert "after" in kernel.run(CELL.format(name="next", code="print('after')")).shown()


def test_an_interrupt_is_answered_while_an_environment_is_built(kernel: Kernel) -> None:
    program = "import time; print('building', flush=True); time.sleep(60)"
    (kernel.place / "build.envd").write_text('def build():\n    base(image="none.example/none")\n')
    stand_in = f"[{sys.executable!r}, '-c', {program!r}, *words]"
    kernel.run(
        f"import danlu.notebook.programs as p\nkept = p.danlu\np.danlu = lambda *words: {stand_in}"
    )
    ran = kernel.run("%%distributed --framework pytorch --env build.envd\nx = 1\n", interrupt=1.0)
    kernel.run("p.danlu = kept")
    assert ran.reply["ename"] == "KeyboardInterrupt"
    assert "building" in ran.shown()


def test_what_is_said_later_of_a_job_goes_to_the_cell_that_began_it(kernel: Kernel) -> None:
    ran = kernel.run(CELL.format(name="later", code=ENDLESS), interrupt=1.5)
    kernel.client.execute("import time\ntime.sleep(2)")
    kernel.listen(ran, lambda one: "is stopped" in json.dumps(one["content"]))
    assert ran.shown().splitlines()[0].startswith("later PyTorchJob Stopped")


def test_a_flood_of_lines_stays_far_from_the_limits_of_jupyter(kernel: Kernel) -> None:
    before = used(kernel)
    ran = kernel.run(CELL.format(name="flood", code=FLOOD))
    assert ran.reply["status"] == "ok"
    assert used(kernel) - before < 5
    assert "lines before" in ran.shown()
    assert "worker-1 │ line 24999" in ran.shown() or "worker-0 │ line 24999" in ran.shown()
    for at, _ in ran.messages:
        within = [one for when, one in ran.messages if at <= when < at + 1]
        assert len(within) < 20
        assert sum(len(json.dumps(one["content"])) for one in within) < 400_000


def used(kernel: Kernel) -> float:
    """Seconds of CPU that the kernel has used."""
    ran = kernel.run("print(time.process_time())")
    texts = [one["content"]["text"] for _, one in ran.messages if one["msg_type"] == "stream"]
    return float("".join(texts))


def test_a_function_has_the_view_the_value_and_the_error_of_a_cell(kernel: Kernel) -> None:
    kernel.run("import danlu\ndef twice(x):\n    print('here')\n    return 2 * x")
    ran = kernel.run("assert danlu.train(twice, workers=2, args=(21,)) == 42")
    assert ran.reply["status"] == "ok"
    assert "worker-1 │ here" in ran.shown()
    ran = kernel.run("danlu.train(twice, workers=1, args=(None,))")
    assert ran.reply["ename"] == "JobFailed"
    assert "TypeError" in "\n".join(ran.reply["traceback"])


def test_names_of_jobs_are_completed(kernel: Kernel) -> None:
    kernel.run(CELL.format(name="completed", code="pass"))
    for text, wanted in (("%jobs attach comp", "completed"), ("%jobs att", "attach")):
        reply = kernel.client.complete(text, len(text), reply=True, timeout=10)
        assert wanted in reply["content"]["matches"]


def test_jobs_are_listed_shown_and_forgotten(kernel: Kernel) -> None:
    kernel.run(CELL.format(name="listed", code="print('its line')"))
    assert "listed" in kernel.run("%jobs").shown()
    assert "worker-1  Succeeded" in kernel.run("%jobs show listed").shown()
    assert "worker-0 │ its line" in kernel.run("%jobs logs listed").shown()
    assert kernel.run("%jobs stop listed").shown() == "listed is over already"
    assert kernel.run("%jobs rm listed").shown() == "listed and its logs are forgotten"
    assert kernel.run("%jobs show listed").reply["ename"] == "UsageError"
    assert "did you mean attach?" in str(kernel.run("%jobs atach x").reply["traceback"])


def test_danlu_runs_in_this_python_and_fails_the_cell(kernel: Kernel) -> None:
    ran = kernel.run("%danlu version")
    said = "".join(one["content"].get("text", "") for _, one in ran.messages)
    assert said.startswith("danlu ")
    assert kernel.run("%danlu nothing").reply["ename"] == "UsageError"


def notebook(*texts: str) -> Any:
    form: Any = nbformat.v4
    return form.new_notebook(cells=[form.new_code_cell(text) for text in texts])


def test_a_notebook_that_was_run_headless_keeps_the_last_state(tmp_path: Path) -> None:
    made = notebook("%load_ext danlu.notebook", CELL.format(name="kept", code="print('done')"))
    client = nbclient.NotebookClient(made, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment(tmp_path))
    (output,) = made.cells[1].outputs
    assert output.output_type == "display_data"
    assert "kept succeeded in" in output.data["text/plain"]
    assert "worker-0" in output.data["text/html"]


def test_a_failed_job_stops_a_notebook_that_is_run_headless(tmp_path: Path) -> None:
    made = notebook(
        "%load_ext danlu.notebook", CELL.format(name="bad", code="1 / 0"), "print('after')"
    )
    client = nbclient.NotebookClient(made, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        client.execute(env=environment(tmp_path))
    assert made.cells[2].outputs == []
    assert "bad failed after" in made.cells[1].outputs[0].data["text/plain"]


def test_at_a_prompt_lines_are_printed(tmp_path: Path) -> None:
    script = tmp_path / "cells.ipy"
    cell = CELL.format(name="plain", code="print('hello')\ny = 4\n").replace(
        "--name", "--return y --name"
    )
    script.write_text(
        f"get_ipython().run_line_magic('load_ext', 'danlu.notebook')\n"
        f"get_ipython().run_cell({cell!r}).raise_error()\nprint('y is', y)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "--no-banner", str(script)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert "worker-1 │ hello" in lines, done.stdout + done.stderr
    assert any(line.startswith("plain succeeded in") for line in lines)
    assert "y is 4" in lines
    assert "<div" not in done.stdout
