"""The cost of a training job on this machine: ``python -m benchmarks.jobs [--runs 5]``.

Measures the time to a worker's first line, the memory and CPU of a supervisor of 200 sleeping
replicas, and how many log lines arrive. Uses only danlu's command line, with a separate home.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import page
from benchmarks.machine import description

HERE = Path(__file__).resolve().parent
DANLU = Path(sys.executable).with_name("danlu")
HELLO = "print('hello', flush=True)\n"
SLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(600)\n"
TALK = """\
import sys, time
for tenth in range(100):
    began = time.monotonic()
    for number in range(125):
        print(f"{tenth * 125 + number} " + "x" * 80)
    sys.stdout.flush()
    time.sleep(max(0.0, 0.1 - (time.monotonic() - began)))
"""
ENVIRONMENT = 'def build():\n    base(os="debian12")\n    install.python(version="3.11")\n'
TITLES = {
    "process": "`danlu train`, first line of a worker, two processes",
    "container": "the same, two containers",
    "program": "the program alone, first line",
    "beyond-process": "**beyond the program's own start**, processes",
    "beyond-container": "**beyond the program's own start**, containers",
    "replicas": "200 sleeping replicas: all started after",
    "memory": "200 sleeping replicas: memory of the supervisor",
    "share": "200 sleeping replicas: share of a core of the supervisor",
    "lines": "8 replicas with 10,000 lines per second for 10 s: lines that arrived",
    "lines-share": "the same: share of a core of the supervisor",
}
GOALS = {
    "beyond-process": ("≤ 0.3 s", lambda figure: figure <= 0.3),
    "beyond-container": ("≤ 0.3 s", lambda figure: figure <= 0.3),
    "memory": ("< 150 MB", lambda figure: figure < 150e6),
    "share": ("< 5 %", lambda figure: figure < 0.05),
    "lines": ("all 100,000", lambda figure: figure == 100_000),
}
REPLICAS = 200
TALKERS = 8


def time_first_line(command: list[str], directory: Path) -> float:
    """Return the seconds until ``command`` writes its first line, after waiting for its end."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    if b"hello" not in line or process.returncode:
        raise RuntimeError(f"{command} exited with {process.returncode} after {line!r}")
    return took


def train_command(*arguments: str, workers: int) -> list[str]:
    """Return the command line of ``danlu train`` for a project."""
    numbers = ["--framework", "pytorch", "--worker", str(workers)]
    return [str(DANLU), "train", "train.py", *numbers, *arguments]


def create_project(directory: Path, script: str, environment: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(script)
    if environment:
        (directory / "build.envd").write_text(environment)
        subprocess.run([DANLU, "build"], cwd=directory, check=True, capture_output=True)
    return directory


def measure_starts(work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """Measure the first line of processes, of containers, and of the program alone, in turns."""
    plain = create_project(work / "process", HELLO)
    inside = create_project(work / "container", HELLO, ENVIRONMENT)
    python = shutil.which("python3") or sys.executable
    for _ in range(runs):
        yield "program", time_first_line([python, "train.py"], plain)
        yield "process", time_first_line(train_command(workers=2), plain)
        yield "container", time_first_line(train_command(workers=2), inside)


@contextmanager
def detached_job(directory: Path, *, workers: int) -> Iterator[str]:
    """Start a detached job and yield its name; stop it at the end."""
    command = [*train_command("--detach", workers=workers)]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    name = done.stdout.split()[-1]
    try:
        yield name
    finally:
        subprocess.run([DANLU, "jobs", "stop", name], check=True, stdout=subprocess.DEVNULL)


def find_supervisor(name: str) -> int:
    """Return the pid of a job's supervisor, which has the job's directory as an argument."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        named = any(name in os.fsdecode(word) for word in words)
        if named and any(b"supervisor" in word for word in words):
            return int(entry.name)
    raise RuntimeError(f"the supervisor of {name} is not running")


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_until(done: Callable[[], bool], *, limit: float = 120.0) -> float:
    """Wait until ``done`` and return the seconds."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > limit:
            raise RuntimeError(f"not done after {limit} seconds")
        time.sleep(0.2)
    return time.monotonic() - began


def measure_replicas(work: Path) -> Iterator[tuple[str, float]]:
    """Measure the cost of 200 sleeping replicas."""
    directory = create_project(work / "many", SLEEP)
    with detached_job(directory, workers=REPLICAS) as name:
        log = [str(DANLU), "jobs", "logs", name]

        def all_asleep() -> bool:
            return subprocess.check_output(log).count(b"asleep") == REPLICAS

        yield "replicas", wait_until(all_asleep)
        pid = find_supervisor(name)
        time.sleep(5)
        before, began = read_cpu_seconds(pid), time.monotonic()
        time.sleep(20)
        yield "share", (read_cpu_seconds(pid) - before) / (time.monotonic() - began)
        yield "memory", read_memory(pid)


def measure_logs(work: Path) -> Iterator[tuple[str, float]]:
    """Measure how many log lines of eight replicas arrive, and the cost."""
    directory = create_project(work / "talk", TALK)
    with detached_job(directory, workers=TALKERS) as name:
        pid = find_supervisor(name)
        began = time.monotonic()
        time.sleep(8)
        yield "lines-share", read_cpu_seconds(pid) / (time.monotonic() - began)
        subprocess.run([DANLU, "jobs", "wait", name], check=True, capture_output=True)
        yield (
            "lines",
            float(count_complete_lines(subprocess.check_output([DANLU, "jobs", "logs", name]))),
        )


def count_complete_lines(text: bytes) -> int:
    """Count the lines of all replicas that arrived once and in order."""
    numbers: dict[bytes, int] = {}
    for line in text.splitlines():
        replica, _, rest = line.partition("│".encode())
        expected = numbers.get(replica, 0)
        if rest.split()[:1] == [str(expected).encode()]:
            numbers[replica] = expected + 1
    return sum(numbers.values())


def format_figure(row: str, figure: float) -> str:
    """Format a figure for the table."""
    if row == "memory":
        return f"{figure / 1e6:.0f} MB"
    if row in ("share", "lines-share"):
        return f"{figure * 100:.1f} %"
    return f"{figure:,.0f}" if row == "lines" else f"{figure:.3f} s"


def format_table(figures: dict[str, list[float]]) -> str:
    """Return medians and goals."""
    middle = {row: statistics.median(some) for row, some in figures.items()}
    if "program" in middle:
        for kind in ("process", "container"):
            middle[f"beyond-{kind}"] = middle[kind] - middle["program"]
    lines = ["| | danlu | goal |", "|---|---|---|"]
    for row, title in TITLES.items():
        if row not in middle:
            continue
        goal, holds = GOALS.get(row, ("", lambda figure: True))
        verdict = f"{goal}: {'yes' if holds(middle[row]) else '**no**'}" if goal else ""
        lines.append(f"| {title} | {format_figure(row, middle[row])} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts; the table has the medians")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        work = Path(name)
        os.environ |= {"DANLU_HOME": str(work / "home"), "NO_COLOR": "1", "DANLU_UPKEEP": "off"}
        machine = description({})
        for part in (
            measure_starts(work, options.runs),
            measure_replicas(work),
            measure_logs(work),
        ):
            for row, figure in part:
                print(f"{TITLES[row]}: {format_figure(row, figure)}", file=sys.stderr, flush=True)
                figures.setdefault(row, []).append(figure)
    path = options.output / f"{machine['date']}-jobs.md"
    body = f"Medians.\n\n{format_table(figures)}"
    print(page.write(path, "Training jobs on one machine", body, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
