"""What a training job costs on this machine: ``python -m benchmarks.jobs [--runs 5]``.

How long a worker waits for its first line, what a supervisor of 200 sleeping replicas takes, and
how many lines of log arrive. By danlu's command line only, with a home of its own.
"""

from __future__ import annotations

import argparse
import json
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
    "replicas": "200 sleeping replicas: all of them started after",
    "memory": "200 sleeping replicas: memory of the supervisor",
    "share": "200 sleeping replicas: share of a core of the supervisor",
    "lines": "8 replicas at 10,000 lines a second for 10 s: lines that arrived",
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


def first_line(command: list[str], directory: Path) -> float:
    """Seconds until ``command`` writes its first line; then it is waited for."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    if b"hello" not in line or process.returncode:
        raise RuntimeError(f"{command} gave {process.returncode} and {line!r}")
    return took


def train(*arguments: str, workers: int) -> list[str]:
    """A command line of ``danlu train`` for the script of the directory."""
    numbers = ["--framework", "pytorch", "--worker", str(workers)]
    return [str(DANLU), "train", "train.py", *numbers, *arguments]


def project(directory: Path, script: str, environment: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").write_text(script)
    if environment:
        (directory / "build.envd").write_text(environment)
        subprocess.run([DANLU, "build"], cwd=directory, check=True, capture_output=True)
    return directory


def starts(work: Path, runs: int) -> Iterator[tuple[str, float]]:
    """The first lines of processes and of containers, side by side."""
    plain = project(work / "process", HELLO)
    inside = project(work / "container", HELLO, ENVIRONMENT)
    python = shutil.which("python3") or sys.executable
    for _ in range(runs):
        yield "program", first_line([python, "train.py"], plain)
        yield "process", first_line(train(workers=2), plain)
        yield "container", first_line(train(workers=2), inside)


@contextmanager
def running(directory: Path, *, workers: int) -> Iterator[str]:
    """A job left to itself, by name; it is stopped at the end."""
    command = [*train("--detach", workers=workers)]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    name = done.stdout.split()[-1]
    try:
        yield name
    finally:
        subprocess.run([DANLU, "jobs", "stop", name], check=True, stdout=subprocess.DEVNULL)


def view(name: str) -> dict[str, object]:
    """``danlu jobs show`` as data."""
    command: list[str | Path] = [DANLU, "jobs", "show", name, "--format", "json"]
    shown: dict[str, object] = json.loads(subprocess.check_output(command))
    return shown


def supervisor(name: str) -> int:
    """The process that looks after a job: the one that was given its directory."""
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
    raise RuntimeError(f"no supervisor of {name} runs")


def seconds_of(pid: int) -> float:
    """CPU seconds a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def until(done: Callable[[], bool], *, limit: float = 120.0) -> float:
    """Seconds until ``done``."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > limit:
            raise RuntimeError(f"nothing for {limit} seconds")
        time.sleep(0.2)
    return time.monotonic() - began


def many(work: Path) -> Iterator[tuple[str, float]]:
    """What 200 replicas that sleep cost."""
    directory = project(work / "many", SLEEP)
    with running(directory, workers=REPLICAS) as name:
        log = [str(DANLU), "jobs", "logs", name]

        def all_asleep() -> bool:
            return subprocess.check_output(log).count(b"asleep") == REPLICAS

        yield "replicas", until(all_asleep)
        pid = supervisor(name)
        time.sleep(5)
        before, began = seconds_of(pid), time.monotonic()
        time.sleep(20)
        yield "share", (seconds_of(pid) - before) / (time.monotonic() - began)
        yield "memory", memory_of(pid)


def talk(work: Path) -> Iterator[tuple[str, float]]:
    """How many lines of eight replicas arrive, and what that costs."""
    directory = project(work / "talk", TALK)
    with running(directory, workers=TALKERS) as name:
        pid = supervisor(name)
        began = time.monotonic()
        time.sleep(8)
        yield "lines-share", seconds_of(pid) / (time.monotonic() - began)
        subprocess.run([DANLU, "jobs", "wait", name], check=True, capture_output=True)
        yield "lines", float(complete(subprocess.check_output([DANLU, "jobs", "logs", name])))


def complete(text: bytes) -> int:
    """The lines that came once and in order, of all replicas."""
    numbers: dict[bytes, int] = {}
    for line in text.splitlines():
        replica, _, rest = line.partition("│".encode())
        expected = numbers.get(replica, 0)
        if rest.split()[:1] == [str(expected).encode()]:
            numbers[replica] = expected + 1
    return sum(numbers.values())


def show(row: str, figure: float) -> str:
    """A figure as the table writes it."""
    if row == "memory":
        return f"{figure / 1e6:.0f} MB"
    if row in ("share", "lines-share"):
        return f"{figure * 100:.1f} %"
    return f"{figure:,.0f}" if row == "lines" else f"{figure:.3f} s"


def table(figures: dict[str, list[float]]) -> str:
    """Medians, and what they must reach."""
    middle = {row: statistics.median(some) for row, some in figures.items()}
    if "program" in middle:
        for kind in ("process", "container"):
            middle[f"beyond-{kind}"] = middle[kind] - middle["program"]
    lines = ["| | danlu | must |", "|---|---|---|"]
    for row, title in TITLES.items():
        if row not in middle:
            continue
        goal, holds = GOALS.get(row, ("", lambda figure: True))
        verdict = f"{goal}: {'yes' if holds(middle[row]) else '**no**'}" if goal else ""
        lines.append(f"| {title} | {show(row, middle[row])} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts of which a median is taken")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        work = Path(name)
        os.environ |= {"DANLU_HOME": str(work / "home"), "NO_COLOR": "1", "DANLU_UPKEEP": "off"}
        machine = description({})
        for part in (starts(work, options.runs), many(work), talk(work)):
            for row, figure in part:
                print(f"{TITLES[row]}: {show(row, figure)}", file=sys.stderr, flush=True)
                figures.setdefault(row, []).append(figure)
    path = options.output / f"{machine['date']}-jobs.md"
    body = f"Medians.\n\n{table(figures)}"
    print(page.write(path, "Training jobs on one machine", body, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
