"""The overhead of a notebook cell that runs as a job: ``python -m benchmarks.notebook [--runs 5]``.

Measures the time to a worker's first line, the response time to interrupts, and the cost of 50,000
log lines. Uses a real kernel with ``danlu.notebook`` over the Jupyter protocol, with a separate
home and without a browser.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.jobs import HELLO, create_project, read_cpu_seconds, time_first_line
from benchmarks.machine import description

HERE = Path(__file__).resolve().parent
LINE = "%%distributed --framework pytorch --worker 2\n"
SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(600)\n"
LINES = 50_000
FLOOD = f"for number in range({LINES // 2}):\n    print(f'line {{number}} ' + 'x' * 80)\n"
ENDLESS = "while True:\n    print('line ' + 'x' * 80)\n"
#: When to interrupt a cell that starts a job, in seconds after its start. Not earlier, because
#: IPython ignores interrupts in the first milliseconds of any cell.
MOMENTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
TITLES = {
    "cell": "a cell of two workers, first line of a worker in the notebook",
    "program": "the program alone, first line",
    "beyond": "**beyond the program's own start**",
    "starting": f"an interrupt while a job starts, at {len(MOMENTS)} moments: slowest response",
    "running": "an interrupt while replicas sleep: slowest response",
    "writing": "an interrupt while two replicas write continuously: slowest response",
    "flood": f"{LINES:,} lines: the cell ends after",
    "flood-cpu": "the same: CPU of the kernel",
    "flood-messages": "the same: messages in the busiest second",
    "flood-bytes": "the same: bytes of messages in the busiest second",
}
GOALS = {
    "beyond": ("≤ 1 s", 1.0),
    "starting": ("≤ 0.5 s", 0.5),
    "running": ("≤ 0.5 s", 0.5),
    "writing": ("≤ 0.5 s", 0.5),
    "flood-messages": ("≤ 1,000 (Jupyter's limit)", 1000.0),
    "flood-bytes": ("≤ 1 MB (Jupyter's limit)", 1e6),
}
SLOWEST = ("starting", "running", "writing")


class TimedKernel:
    """A kernel with danlu's magics, and its client."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client
        self.pid: int = manager.provisioner.pid
        self.messages: list[tuple[float, int]] = []
        self.run("%load_ext danlu.notebook")

    def run(self, code: str) -> float:
        """Run ``code`` and return the seconds; record the time and size of its messages."""
        began = time.perf_counter()
        message_id = self.start(code)
        self.messages = []
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            content = json.dumps(message["content"], ensure_ascii=False)
            self.messages.append((time.perf_counter(), len(content.encode())))
            if message["content"].get("execution_state") == "idle":
                self._wait_for_reply(message_id)
                return time.perf_counter() - began

    def start(self, code: str) -> str:
        """Start ``code``; return its id once it runs."""
        message_id: str = self._client.execute(code, allow_stdin=False)
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            ours = message["parent_header"].get("msg_id") == message_id
            if ours and message["msg_type"] == "execute_input":
                return message_id

    def wait_for_output(self, word: str) -> None:
        """Wait until the output contains ``word``."""
        while word not in str(self._client.get_iopub_msg(timeout=60)["content"]):
            pass

    def interrupt(self, message_id: str) -> float:
        """Interrupt the running cell ``message_id`` and return the seconds until it ends."""
        began = time.perf_counter()
        self._manager.interrupt_kernel()
        self._wait_for_reply(message_id)
        return time.perf_counter() - began

    def _wait_for_reply(self, message_id: str) -> None:
        while self._client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != message_id:
            pass


@contextmanager
def start_kernel(directory: Path) -> Iterator[TimedKernel]:
    """Start a kernel in ``directory``."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(directory))
    try:
        yield TimedKernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def measure_starts(kernel: TimedKernel, work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """Measure the first line of a cell and of the program alone, in turns."""
    plain = create_project(work / "plain", HELLO)
    for _ in range(runs):
        yield "program", time_first_line([sys.executable, "train.py"], plain)
        # The code does not contain the word, so only a worker's output does.
        began = time.perf_counter()
        kernel.start(LINE + "print('hel' + 'lo', flush=True)\n")
        kernel.wait_for_output("hello")
        yield "cell", time.perf_counter() - began
        kernel.run("")


def measure_interrupts(kernel: TimedKernel, runs: int) -> Iterator[tuple[str, float]]:
    """Measure interrupts while a job starts, sleeps and writes."""
    for moment in MOMENTS:
        cell = kernel.start(LINE + SLEEP)
        time.sleep(moment)
        yield "starting", kernel.interrupt(cell)
    for row, code, word in (("running", SLEEP, "│ asleep"), ("writing", ENDLESS, "│ line")):
        for _ in range(runs):
            cell = kernel.start(LINE + code)
            kernel.wait_for_output(word)
            time.sleep(1)
            yield row, kernel.interrupt(cell)


def measure_flood(kernel: TimedKernel) -> Iterator[tuple[str, float]]:
    """Measure the cost of many log lines."""
    before = read_cpu_seconds(kernel.pid)
    yield "flood", kernel.run(LINE + FLOOD)
    yield "flood-cpu", read_cpu_seconds(kernel.pid) - before
    messages = Counter(int(when) for when, _ in kernel.messages)
    sizes: Counter[int] = Counter()
    for when, size in kernel.messages:
        sizes[int(when)] += size
    yield "flood-messages", float(max(messages.values()))
    yield "flood-bytes", float(max(sizes.values()))


def format_figure(row: str, figure: float) -> str:
    """Format a figure for the table."""
    if row == "flood-messages":
        return f"{figure:,.0f}"
    return f"{figure / 1000:,.0f} kB" if row == "flood-bytes" else f"{figure:.3f} s"


def format_table(figures: dict[str, list[float]]) -> str:
    """Return a table of the medians (for interrupts, the slowest) and the goals."""
    shown = {
        row: max(some) if row in SLOWEST else statistics.median(some)
        for row, some in figures.items()
    }
    shown["beyond"] = shown["cell"] - shown["program"]
    lines = ["| | danlu | goal |", "|---|---|---|"]
    for row, title in TITLES.items():
        words, most = GOALS.get(row, ("", 0.0))
        verdict = f"{words}: {'yes' if shown[row] <= most else '**no**'}" if words else ""
        lines.append(f"| {title} | {format_figure(row, shown[row])} | {verdict} |")
    return "\n".join(lines)


def measure(work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """Measure everything in one kernel."""
    with start_kernel(work) as kernel:
        yield from measure_starts(kernel, work, runs)
        yield from measure_interrupts(kernel, runs)
        for _ in range(runs):
            yield from measure_flood(kernel)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebook", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs; the table has the medians")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        work = Path(name)
        os.environ |= {"DANLU_HOME": str(work / "home"), "DANLU_UPKEEP": "off"}
        os.environ["IPYTHONDIR"] = str(work / "ipython")
        machine = description({})
        for row, figure in measure(work, options.runs):
            print(f"{TITLES[row]}: {format_figure(row, figure)}", file=sys.stderr, flush=True)
            figures.setdefault(row, []).append(figure)
    path = options.output / f"{machine['date']}-notebook.md"
    body = f"Medians; for interrupts the slowest.\n\n{format_table(figures)}"
    print(page.write(path, "Cells of a notebook on one machine", body, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
