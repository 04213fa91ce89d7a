"""What a notebook's cell costs beyond its program: ``python -m benchmarks.notebook [--runs 5]``.

How long a worker of a cell waits for its first line, how soon an interrupt is answered whatever the
job is doing, and what 50,000 lines of log come to. A real kernel with ``danlu.notebook``, asked by
messages as Jupyter asks it, with a home of its own; no browser.
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
from benchmarks.jobs import HELLO, first_line, project, seconds_of
from benchmarks.machine import description

HERE = Path(__file__).resolve().parent
LINE = "%%distributed --framework pytorch --worker 2\n"
SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(600)\n"
LINES = 50_000
FLOOD = f"for number in range({LINES // 2}):\n    print(f'line {{number}} ' + 'x' * 80)\n"
ENDLESS = "while True:\n    print('line ' + 'x' * 80)\n"
#: Seconds after a cell began at which it is interrupted: until all run. IPython itself swallows an
#: interrupt of any cell in the first milliseconds.
MOMENTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
TITLES = {
    "cell": "a cell of two workers, first line of a worker in the notebook",
    "program": "the program alone, first line",
    "beyond": "**beyond the program's own start**",
    "starting": f"an interrupt while a job starts, at {len(MOMENTS)} moments: slowest answer",
    "running": "an interrupt while replicas sleep: slowest answer",
    "writing": "an interrupt while two replicas write without an end: slowest answer",
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


class Kernel:
    """A kernel with the magics, and who asks it."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client
        self.pid: int = manager.provisioner.pid
        self.told: list[tuple[float, int]] = []
        self.run("%load_ext danlu.notebook")

    def run(self, code: str) -> float:
        """Seconds until ``code`` has ended; ``told`` has when and how large its messages were."""
        began = time.perf_counter()
        asked = self.start(code)
        self.told = []
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = json.dumps(message["content"], ensure_ascii=False)
            self.told.append((time.perf_counter(), len(content.encode())))
            if message["content"].get("execution_state") == "idle":
                self._answered(asked)
                return time.perf_counter() - began

    def start(self, code: str) -> str:
        """Have ``code`` run: its id, once it runs."""
        asked: str = self._client.execute(code, allow_stdin=False)
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            ours = message["parent_header"].get("msg_id") == asked
            if ours and message["msg_type"] == "execute_input":
                return asked

    def first(self, word: str) -> None:
        """Wait for ``word`` in what is put out."""
        while word not in str(self._client.get_iopub_msg(timeout=60)["content"]):
            pass

    def interrupt(self, asked: str) -> float:
        """Seconds until ``asked``, which runs, has ended."""
        began = time.perf_counter()
        self._manager.interrupt_kernel()
        self._answered(asked)
        return time.perf_counter() - began

    def _answered(self, asked: str) -> None:
        while self._client.get_shell_msg(timeout=60)["parent_header"]["msg_id"] != asked:
            pass


@contextmanager
def kernel(directory: Path) -> Iterator[Kernel]:
    """A kernel that works in ``directory``."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(directory))
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def starts(asked: Kernel, work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """First lines, of a cell and of the program alone, side by side."""
    plain = project(work / "plain", HELLO)
    for _ in range(runs):
        yield "program", first_line([sys.executable, "train.py"], plain)
        # The table shows the program's text nowhere: only a worker's line has the word.
        began = time.perf_counter()
        asked.start(LINE + "print('hel' + 'lo', flush=True)\n")
        asked.first("hello")
        yield "cell", time.perf_counter() - began
        asked.run("")


def interrupts(asked: Kernel, runs: int) -> Iterator[tuple[str, float]]:
    """Answers to interrupts: while a job starts, sleeps and writes."""
    for moment in MOMENTS:
        cell = asked.start(LINE + SLEEP)
        time.sleep(moment)
        yield "starting", asked.interrupt(cell)
    for row, code, word in (("running", SLEEP, "│ asleep"), ("writing", ENDLESS, "│ line")):
        for _ in range(runs):
            cell = asked.start(LINE + code)
            asked.first(word)
            time.sleep(1)
            yield row, asked.interrupt(cell)


def flood(asked: Kernel) -> Iterator[tuple[str, float]]:
    """What many lines cost."""
    before = seconds_of(asked.pid)
    yield "flood", asked.run(LINE + FLOOD)
    yield "flood-cpu", seconds_of(asked.pid) - before
    messages = Counter(int(when) for when, _ in asked.told)
    sizes: Counter[int] = Counter()
    for when, size in asked.told:
        sizes[int(when)] += size
    yield "flood-messages", float(max(messages.values()))
    yield "flood-bytes", float(max(sizes.values()))


def show(row: str, figure: float) -> str:
    """A figure as the table writes it."""
    if row == "flood-messages":
        return f"{figure:,.0f}"
    return f"{figure / 1000:,.0f} kB" if row == "flood-bytes" else f"{figure:.3f} s"


def table(figures: dict[str, list[float]]) -> str:
    """Medians (the slowest, of interrupts), and what they must reach."""
    told = {
        row: max(some) if row in SLOWEST else statistics.median(some)
        for row, some in figures.items()
    }
    told["beyond"] = told["cell"] - told["program"]
    lines = ["| | danlu | must |", "|---|---|---|"]
    for row, title in TITLES.items():
        words, most = GOALS.get(row, ("", 0.0))
        verdict = f"{words}: {'yes' if told[row] <= most else '**no**'}" if words else ""
        lines.append(f"| {title} | {show(row, told[row])} | {verdict} |")
    return "\n".join(lines)


def measure(work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """All of it, in one kernel."""
    with kernel(work) as asked:
        yield from starts(asked, work, runs)
        yield from interrupts(asked, runs)
        for _ in range(runs):
            yield from flood(asked)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.notebook", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each, of which a median is taken")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        work = Path(name)
        os.environ |= {"DANLU_HOME": str(work / "home"), "DANLU_UPKEEP": "off"}
        os.environ["IPYTHONDIR"] = str(work / "ipython")
        machine = description({})
        for row, figure in measure(work, options.runs):
            print(f"{TITLES[row]}: {show(row, figure)}", file=sys.stderr, flush=True)
            figures.setdefault(row, []).append(figure)
    path = options.output / f"{machine['date']}-notebook.md"
    body = f"Medians; of interrupts the slowest.\n\n{table(figures)}"
    print(page.write(path, "Cells of a notebook on one machine", body, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
