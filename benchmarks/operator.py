"""What the operator costs a cluster: ``python -m benchmarks.operator [--jobs 1000]``.

A real API server and etcd, a simulated kubelet, the operator and who submits the jobs, each a
process of its own on this machine, every experiment on a fresh server. What a bare client needs
for the same pods and services is the yardstick.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.experiments import Figures, along, bare, existing, large
from benchmarks.kubernetes.server import version
from benchmarks.machine import description

HERE = Path(__file__).resolve().parent
Results = dict[str, Figures]
Must = tuple[str, Callable[[float], bool]]


def measure(work: Path, jobs: int, workers: int) -> Results:
    """All experiments, one after another; what an experiment says it says at once too."""
    objects = work / "objects"
    few = max(10, jobs // 10)
    experiments: dict[str, Callable[[], Coroutine[Any, Any, Figures]]] = {
        "few": lambda: existing(work / "few", few),
        "existing": lambda: existing(work / "existing", jobs, objects=objects),
        "bare": lambda: bare(work / "bare", objects),
        "along": lambda: along(work / "along", jobs),
        "calm": lambda: along(work / "calm", few, pause=0.1),
        "large": lambda: large(work / "large", workers),
    }
    found: Results = {}
    for name, experiment in experiments.items():
        found[name] = asyncio.run(experiment())
        said = "  ".join(f"{key}: {figure:.4g}" for key, figure in found[name].items())
        print(f"{name}: {said}", file=sys.stderr, flush=True)
    return found


def rows(found: Results, jobs: int, workers: int) -> list[tuple[str, str, Must | None, float]]:
    """Each row: its title, the figure as it is written, what it must reach, the figure."""
    old, few, new = found["existing"], found["few"], found["along"]
    calm, big, yard = found["calm"], found["large"], found["bare"]
    fewer = max(10, jobs // 10)
    ratio = old["last pod"] / yard["seconds"]
    # What the operator takes to start is no cost of a job.
    cost = (old["cpu operator"] - calm["start"]) / jobs
    growth = cost * fewer / (few["cpu operator"] - calm["start"])
    more = old["requests"] / few["requests"]
    peak = max(figures["memory"] for figures in found.values() if "memory" in figures)
    rate = yard["objects"] / yard["seconds"]
    once: list[tuple[str, str, Must | None, float]] = [
        (f"bare client: {yard['objects']:.0f} objects", _seconds(yard["seconds"]), None, 0),
        ("bare client: objects a second", f"{rate:.0f}", None, 0),
        (f"{jobs} jobs there before: last pod after", _seconds(old["last pod"]), None, 0),
        ("the same, by the bare client's time", f"{ratio:.2f}", _at_most(1.3), ratio),
        ("the same: all succeeded, from the kubelet's start", _seconds(old["succeeded"]), None, 0),
        (f"{jobs} jobs while it runs: last pod after", _seconds(new["last pod"]), None, 0),
        ("the same: all succeeded after", _seconds(new["succeeded"]), None, 0),
        (f"one job of {workers} workers: last pod after", _seconds(big["last pod"]), None, 0),
        ("the same: succeeded, from the kubelet's start", _seconds(big["succeeded"]), None, 0),
    ]
    for title, figures in ((f"{jobs} jobs there before", old), (f"{jobs} while it runs", new)):
        events = figures["events"] / 3
        once += [
            (
                f"{title}: requests a job",
                f"{figures['requests']:.2f}",
                _at_most(12),
                figures["requests"],
            ),
            (f"{title}: events a replica", f"{events:.2f}", _at_most(1), events),
        ]
    return [
        *once,
        ("most memory of the operator", f"{peak / 1e6:.0f} MB", _at_most(300, "MB"), peak / 1e6),
        (f"CPU of the operator a job, {jobs} jobs", f"{cost * 1e3:.1f} ms", None, 0),
        (f"the same by that of {fewer} jobs", f"{growth:.2f}", _at_most(1.1), growth),
        (f"requests a job by that of {fewer} jobs", f"{more:.2f}", _at_most(1.05), more),
        ("pod's event to job's status, ten jobs a second: median", _latency(calm, 0), None, 0),
        ("the same: 99 of 100, longest", _latency(calm, 1), None, 0),
        (
            f"the same, {jobs} jobs at once: median",
            _latency(new, 0),
            _at_most(2, "s"),
            new["latency median"],
        ),
        ("the same: 99 of 100, longest", _latency(new, 1), None, 0),
    ]


def _at_most(limit: float, unit: str = "") -> Must:
    return f"≤ {limit:g} {unit}".rstrip(), lambda figure: figure <= limit


def _seconds(figure: float) -> str:
    return f"{figure:.1f} s"


def _latency(figures: Figures, part: int) -> str:
    shown = (("latency median",), ("latency 99 %", "latency most"))[part]
    return ", ".join(f"{figures[name]:.3f} s" for name in shown)


def table(found: Results, jobs: int, workers: int) -> str:
    """All figures, what they must reach, and the CPU seconds of each process."""
    lines = ["| | danlu | must |", "|---|---|---|"]
    for title, shown, must, figure in rows(found, jobs, workers):
        verdict = f"{must[0]}: {'yes' if must[1](figure) else '**no**'}" if must else ""
        lines.append(f"| {title} | {shown} | {verdict} |")
    names = ("operator", "apiserver", "etcd", "kubelet", "bare", "driver")
    lines += ["", f"| CPU seconds | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for experiment, title in _TITLES.items():
        spent = [found[experiment].get(f"cpu {name}") for name in names]
        shown = " | ".join("" if seconds is None else f"{seconds:.1f}" for seconds in spent)
        lines.append(f"| {title} | {shown} |")
    lines += ["", "| requests a job | number |", "|---|---|"]
    for key, number in sorted(found["existing"].items()):
        if key.startswith("requests "):
            lines.append(f"| {key.removeprefix('requests ')} | {number:.2f} |")
    return "\n".join(lines)


_TITLES = {
    "bare": "bare client",
    "few": "a tenth of the jobs there before",
    "existing": "all jobs there before",
    "along": "all jobs while it runs",
    "calm": "a tenth, ten a second",
    "large": "one large job",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1000, help="those of the one large job")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    machine = description({"kube-apiserver": version()})
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        found = measure(Path(name), options.jobs, options.workers)
    about = "\n".join(f"| {key} | {value} |" for key, value in machine.items())
    page = options.output / f"{machine['date']}-operator.md"
    page.write_text(
        f"# The operator and a cluster, {machine['date']}\n\n"
        f"{table(found, options.jobs, options.workers)}\n\n| machine | |\n|---|---|\n{about}\n"
    )
    print(page.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
