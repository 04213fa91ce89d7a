"""Jobs from cells of a real kernel: what reaches a front end, how soon an interrupt is answered."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.notebook.interrupts import until
from tests.notebook.kernels import wait_for_reply

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
class CellRun:
    """A run of a cell: its reply, and its messages with their times."""

    identity: str
    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def displayed_text(self) -> str:
        """Return the text of the last display."""
        results = [m["content"]["data"] for _, m in self.messages if "data" in m["content"]]
        return str(results[-1]["text/plain"]) if results else ""


class LiveKernel:
    def __init__(self, manager: KernelManager, client: BlockingKernelClient, place: Path) -> None:
        self.manager = manager
        self.client: Any = client
        self.place = place

    def run(self, code: str, *, interrupt: float | None = None) -> CellRun:
        """Run a cell to its reply.

        ``interrupt`` is after how many seconds to interrupt it, counted from its first output: an
        interrupt before the cell runs is for the kernel, which drops the request. The cell
        must not end by itself.
        """
        result = CellRun(self.client.execute(code))
        if interrupt is not None:
            self.listen(result, lambda message: "data" in message["content"])
            time.sleep(interrupt)
            self.manager.interrupt_kernel()
        result.reply = wait_for_reply(self.client, result.identity)
        self.listen(result, lambda message: message["content"].get("execution_state") == "idle")
        return result

    def listen(self, ran: CellRun, end: Any, *, limit: float = 60) -> None:
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
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveKernel]:
    directory = tmp_path_factory.mktemp("kernel")
    manager, client = start_new_kernel(
        kernel_name="python3", env=environment(directory), cwd=str(directory)
    )
    try:
        kernel = LiveKernel(manager, client, directory)
        kernel.run("import time\n%load_ext danlu.notebook")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def environment(place: Path) -> dict[str, str]:
    mine = {"DANLU_HOME": str(place / "home"), "IPYTHONDIR": str(place / "ipython")}
    return {**os.environ, **mine}


def alive(place: Path) -> list[str]:
    """Return the process IDs of running replicas, which write them to files."""
    return [
        file.stem for file in place.glob("*.pid") if os.path.exists(f"/proc/{file.stem}/cmdline")
    ]


@pytest.mark.parametrize("moment", [0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 2.0])
def test_interrupt_is_handled_at_any_moment(kernel: LiveKernel, moment: float) -> None:
    result = kernel.run(CELL.format(name="endless", code=ENDLESS), interrupt=moment)
    assert (result.reply["status"], result.reply["ename"]) == ("error", "KeyboardInterrupt")
    assert kernel.run("print('alive')").reply["status"] == "ok"
    until(lambda: not alive(kernel.place), limit=60)


def test_job_with_a_log_flood_can_be_interrupted(kernel: LiveKernel) -> None:
    result = kernel.run(CELL.format(name="endless", code=OUTPOURING), interrupt=2.0)
    assert result.reply["ename"] == "KeyboardInterrupt"
    until(lambda: not alive(kernel.place), limit=60)
    assert "after" in kernel.run(CELL.format(name="next", code="print('after')")).displayed_text()


def test_interrupt_stops_building_an_environment(kernel: LiveKernel) -> None:
    program = "import time; print('building', flush=True); time.sleep(60)"
    (kernel.place / "build.envd").write_text('def build():\n    base(image="none.example/none")\n')
    stand_in = f"[{sys.executable!r}, '-c', {program!r}, *words]"
    kernel.run(
        "import danlu.notebook.submission as s\nkept = s.danlu_command\n"
        f"s.danlu_command = lambda *words: {stand_in}"
    )
    result = kernel.run(
        "%%distributed --framework pytorch --env build.envd\nx = 1\n", interrupt=1.0
    )
    kernel.run("s.danlu_command = kept")
    assert result.reply["ename"] == "KeyboardInterrupt"
    assert "building" in result.displayed_text()


def test_later_output_goes_to_the_cell_that_started_the_job(kernel: LiveKernel) -> None:
    result = kernel.run(CELL.format(name="later", code=ENDLESS), interrupt=1.5)
    kernel.client.execute("import time\ntime.sleep(2)")
    kernel.listen(result, lambda message: "has stopped" in json.dumps(message["content"]))
    assert result.displayed_text().splitlines()[0].startswith("later PyTorchJob Stopped")


def test_log_flood_stays_below_jupyters_limits(kernel: LiveKernel) -> None:
    before = measure_cpu_seconds(kernel)
    result = kernel.run(CELL.format(name="flood", code=FLOOD))
    assert result.reply["status"] == "ok"
    assert measure_cpu_seconds(kernel) - before < 5
    assert "earlier lines" in result.displayed_text()
    assert (
        "worker-1 │ line 24999" in result.displayed_text()
        or "worker-0 │ line 24999" in result.displayed_text()
    )
    for at, _ in result.messages:
        within = [message for when, message in result.messages if at <= when < at + 1]
        assert len(within) < 20
        assert sum(len(json.dumps(message["content"])) for message in within) < 400_000


def measure_cpu_seconds(kernel: LiveKernel) -> float:
    """Seconds of CPU that the kernel has used."""
    result = kernel.run("print(time.process_time())")
    streams = [message for _, message in result.messages if message["msg_type"] == "stream"]
    return float("".join(message["content"]["text"] for message in streams))


def test_function_call_is_shown_like_a_cell(kernel: LiveKernel) -> None:
    kernel.run("import danlu\ndef twice(x):\n    print('here')\n    return 2 * x")
    result = kernel.run("assert danlu.train(twice, workers=2, args=(21,)) == 42")
    assert result.reply["status"] == "ok"
    assert "worker-1 │ here" in result.displayed_text()
    result = kernel.run("danlu.train(twice, workers=1, args=(None,))")
    assert result.reply["ename"] == "JobFailed"
    assert "TypeError" in "\n".join(result.reply["traceback"])


def test_job_names_complete_in_the_jobs_magic(kernel: LiveKernel) -> None:
    kernel.run(CELL.format(name="completed", code="pass"))
    for text, expected in (("%jobs attach comp", "completed"), ("%jobs att", "attach")):
        reply = kernel.client.complete(text, len(text), reply=True, timeout=60)
        assert expected in reply["content"]["matches"]


def test_jobs_magic_lists_shows_and_removes(kernel: LiveKernel) -> None:
    kernel.run(CELL.format(name="listed", code="print('its line')"))
    assert "listed" in kernel.run("%jobs").displayed_text()
    assert "worker-1  Succeeded" in kernel.run("%jobs show listed").displayed_text()
    assert "worker-0 │ its line" in kernel.run("%jobs logs listed").displayed_text()
    assert kernel.run("%jobs stop listed").displayed_text() == "listed has already ended"
    assert kernel.run("%jobs rm listed").displayed_text() == "listed and its logs removed"
    assert kernel.run("%jobs show listed").reply["ename"] == "UsageError"
    assert "did you mean attach?" in str(kernel.run("%jobs atach x").reply["traceback"])


def test_danlu_magic_runs_the_cli_and_fails_the_cell(kernel: LiveKernel) -> None:
    result = kernel.run("%danlu version")
    text = "".join(message["content"].get("text", "") for _, message in result.messages)
    assert text.startswith("danlu ")
    assert kernel.run("%danlu nothing").reply["ename"] == "UsageError"


def notebook(*texts: str) -> Any:
    form: Any = nbformat.v4
    return form.new_notebook(cells=[form.new_code_cell(text) for text in texts])


def test_headless_notebook_stores_the_last_state(tmp_path: Path) -> None:
    result = notebook("%load_ext danlu.notebook", CELL.format(name="kept", code="print('done')"))
    client = nbclient.NotebookClient(result, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment(tmp_path))
    (output,) = result.cells[1].outputs
    assert output.output_type == "display_data"
    assert "kept succeeded in" in output.data["text/plain"]
    assert "worker-0" in output.data["text/html"]


def test_failed_job_stops_a_headless_notebook(tmp_path: Path) -> None:
    result = notebook(
        "%load_ext danlu.notebook", CELL.format(name="bad", code="1 / 0"), "print('after')"
    )
    client = nbclient.NotebookClient(result, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        client.execute(env=environment(tmp_path))
    assert result.cells[2].outputs == []
    assert "bad failed after" in result.cells[1].outputs[0].data["text/plain"]


def test_terminal_ipython_prints_lines(tmp_path: Path) -> None:
    script = tmp_path / "cells.ipy"
    cell = CELL.format(name="plain", code="print('hello')\ny = 4\n").replace(
        "--name", "--return y --name"
    )
    script.write_text(
        f"get_ipython().run_line_magic('load_ext', 'danlu.notebook')\n"
        f"get_ipython().run_cell({cell!r}).raise_error()\nprint('y is', y)\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "--no-banner", str(script)],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert "worker-1 │ hello" in lines, result.stdout + result.stderr
    assert any(line.startswith("plain succeeded in") for line in lines)
    assert "y is 4" in lines
    assert "<div" not in result.stdout


def test_displays_and_figures_of_rank_0_are_outputs_of_the_cell(kernel: LiveKernel) -> None:
    code = (
        "import os\n"
        "class Shown:\n"
        "    def __repr__(self): return 'rank ' + os.environ['RANK']\n"
        "    def _repr_html_(self): return '<i>rank</i>'\n"
        "display(Shown())\n"
    )
    result = kernel.run(CELL.format(name="displaying", code=code))
    assert result.reply["status"] == "ok"
    output = [
        message["content"]["data"]
        for _, message in result.messages
        if message["msg_type"] == "display_data" and "danlu-job" not in str(message["content"])
    ]
    assert output == [{"text/plain": "rank 0", "text/html": "<i>rank</i>"}]


def test_undefined_name_hints_at_sending_the_variable(kernel: LiveKernel) -> None:
    kernel.run("weights = [1, 2]\nimport json")
    result = kernel.run(CELL.format(name="unsent", code="print(weights)\n"))
    text = "\n".join(result.reply["traceback"])
    assert "NameError: name 'weights' is not defined (line 2 of the cell)" in text
    assert "the notebook has a variable weights: send it with --send weights" in text
    result = kernel.run(CELL.format(name="unsent", code="json.dumps(1)\n"))
    assert "hint: the notebook imports json: import it in the cell too" in "\n".join(
        result.reply["traceback"]
    )


def test_chart_has_a_point_for_each_report(kernel: LiveKernel) -> None:
    code = (
        "import danlu, os\n"
        "for epoch in range(15):\n"
        "    danlu.report(loss=(1 + int(os.environ['RANK'])) / (1 + epoch))\n"
    )
    result = kernel.run(CELL.format(name="curve", code=code))
    assert result.reply["status"] == "ok"
    results = [
        message["content"]["data"]["text/html"]
        for _, message in result.messages
        if "text/html" in message["content"].get("data", {})
    ]
    (picture,) = re.findall(r"data:image/svg\+xml;base64,([^']*)", results[-1])
    (points,) = re.findall(r"<polyline points='([^']*)'", b64decode(picture).decode())
    assert len(points.split()) == 15
