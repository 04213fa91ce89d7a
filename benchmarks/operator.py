"""The operator's cost for a cluster: ``python -m benchmarks.operator [--jobs 1000]``.

Half of the jobs are PyTorchJobs, half are TrainJobs (``--kind`` takes one of them). A real API
server and etcd, a simulated kubelet, the operator and a submitting client, each a separate process
on this machine, every experiment on a fresh server. The time of a bare client for the same objects
is the reference.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.experiments import Figures, along, bare, created, existing, large
from benchmarks.kubernetes.jobs import KINDS, JobKind
from benchmarks.kubernetes.server import version
from benchmarks.machine import description

HERE = Path(__file__).resolve().parent
Results = dict[str, Figures]
Must = tuple[str, Callable[[float], bool]]
#: Runs of experiments that are compared with each other, in turns, as the machine's speed varies.
_RUNS = 3


def measure(work: Path, kinds: Sequence[JobKind], jobs: int, workers: int) -> Results:
    """Run all experiments, one after another, and print their figures."""
    objects = work / "objects"
    few = max(10, jobs // 10)
    experiments: dict[str, Callable[[Path], Coroutine[Any, Any, Figures]]] = {
        "one": lambda place: existing(place, kinds, len(kinds)),
        "few": lambda place: existing(place, kinds, few),
        "existing": lambda place: existing(place, kinds, jobs, objects=objects),
        "created": lambda place: created(place, kinds, jobs),
        "bare": lambda place: bare(place, objects),
        "watching": lambda place: bare(place, objects, watches=True),
        "along": lambda place: along(place, kinds, jobs),
        "calm": lambda place: along(place, kinds, few, pause=0.1),
        "large": lambda place: large(place, workers),
    }
    runs: dict[str, list[Figures]] = {}
    turns = [*("one", "few") * _RUNS, "existing", *("created", "bare", "watching") * _RUNS]
    for name in [*turns, *("along", "calm", "large")]:
        done = runs.setdefault(name, [])
        done.append(asyncio.run(experiments[name](work / f"{name}-{len(done)}")))
        shown = "  ".join(f"{key}: {figure:.4g}" for key, figure in done[-1].items())
        print(f"{name}: {shown}", file=sys.stderr, flush=True)
    return {name: _take_medians(done) for name, done in runs.items()}


def _take_medians(runs: list[Figures]) -> Figures:
    return {key: statistics.median(figures.get(key, 0.0) for figures in runs) for key in runs[0]}


def rows(
    found: Results, kinds: Sequence[str], jobs: int, workers: int
) -> list[tuple[str, str, Must | None, float]]:
    """Return rows of title, formatted figure, goal and figure."""
    old, few, new = found["existing"], found["few"], found["along"]
    calm, big, yard = found["calm"], found["large"], found["bare"]
    fewer = max(10, jobs // 10)
    last, least = found["created"]["last pod"], found["watching"]["seconds"]
    ratio = last / yard["seconds"]
    # Without the operator's start, its imports and its end, which one job needs as well.
    one = found["one"]["cpu operator"]
    cost = (old["cpu operator"] - one) / (jobs - len(kinds))
    growth = cost * (fewer - len(kinds)) / (few["cpu operator"] - one)
    more = old["requests"] / few["requests"]
    peak = max(figures["memory"] for figures in found.values() if "memory" in figures)
    rate = yard["objects"] / yard["seconds"]
    once: list[tuple[str, str, Must | None, float]] = [
        (f"bare client: {yard['objects']:.0f} objects", _format_seconds(yard["seconds"]), None, 0),
        ("bare client: objects per second", f"{rate:.0f}", None, 0),
        ("bare client with watches", _format_seconds(least), None, 0),
        (f"{jobs} existing jobs: last pod after", _format_seconds(last), None, 0),
        ("the same, relative to the bare client", f"{ratio:.2f}", _at_most(1.5), ratio),
        ("the same, relative to the client with watches", f"{last / least:.2f}", None, 0),
        (
            "the same: all succeeded, from the kubelet's start",
            _format_seconds(old["succeeded"]),
            None,
            0,
        ),
        (f"{jobs} jobs while it runs: last pod after", _format_seconds(new["last pod"]), None, 0),
        ("the same: all succeeded after", _format_seconds(new["succeeded"]), None, 0),
        (
            f"one job of {workers} workers: last pod after",
            _format_seconds(big["last pod"]),
            None,
            0,
        ),
        (
            "the same: succeeded, from the kubelet's start",
            _format_seconds(big["succeeded"]),
            None,
            0,
        ),
    ]
    for title, figures in ((f"{jobs} existing jobs", old), (f"{jobs} while it runs", new)):
        events = figures["events"] / 3
        once += [
            (
                f"{title}: requests per job",
                f"{figures['requests']:.2f}",
                _at_most(12),
                figures["requests"],
            ),
            (f"{title}: events per replica", f"{events:.2f}", _at_most(1), events),
        ]
    return [
        *once,
        ("peak memory of the operator", f"{peak / 1e6:.0f} MB", _at_most(300, "MB"), peak / 1e6),
        (f"CPU of the operator per job, {jobs} jobs", f"{cost * 1e3:.1f} ms", None, 0),
        (f"the same, relative to {fewer} jobs", f"{growth:.2f}", _at_most(1.1), growth),
        (f"requests per job, relative to {fewer} jobs", f"{more:.2f}", _at_most(1.05), more),
        (
            "pod event to job status, ten jobs per second: median",
            _format_latencies(calm, 0),
            None,
            0,
        ),
        ("the same: 99th percentile, longest", _format_latencies(calm, 1), None, 0),
        (
            f"the same, {jobs} jobs at once: median",
            _format_latencies(new, 0),
            _at_most(1, "s"),
            new["latency median"],
        ),
        ("the same: 99th percentile, longest", _format_latencies(new, 1), None, 0),
    ]


def _at_most(limit: float, unit: str = "") -> Must:
    return f"≤ {limit:g} {unit}".rstrip(), lambda figure: figure <= limit


def _format_seconds(figure: float) -> str:
    return f"{figure:.1f} s"


def _format_latencies(figures: Figures, part: int) -> str:
    shown = (("latency median",), ("latency 99 %", "latency most"))[part]
    return ", ".join(f"{figures[name]:.3f} s" for name in shown)


def table(found: Results, kinds: Sequence[str], jobs: int, workers: int) -> str:
    """Return all figures, goals, and the CPU seconds of each process."""
    lines = ["| | danlu | goal |", "|---|---|---|"]
    for title, shown, must, figure in rows(found, kinds, jobs, workers):
        verdict = f"{must[0]}: {'yes' if must[1](figure) else '**no**'}" if must else ""
        lines.append(f"| {title} | {shown} | {verdict} |")
    names = ("operator", "apiserver", "etcd", "kubelet", "bare", "driver")
    lines += ["", f"| CPU seconds | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for experiment, title in _TITLES.items():
        kind = "creation cpu" if experiment == "created" else "cpu"
        spent = [found[experiment].get(f"{kind} {name}") for name in names]
        shown = " | ".join("" if seconds is None else f"{seconds:.1f}" for seconds in spent)
        lines.append(f"| {title} | {shown} |")
    lines += ["", "| requests per job | number |", "|---|---|"]
    for key, number in sorted(found["existing"].items()):
        if key.startswith("requests "):
            lines.append(f"| {key.removeprefix('requests ')} | {number:.2f} |")
    return "\n".join(lines)


_TITLES = {
    "bare": "bare client",
    "watching": "bare client with watches",
    "created": "all jobs, existing, to the last pod",
    "one": "one job of each kind, existing",
    "few": "a tenth of the jobs, existing",
    "existing": "all jobs, existing",
    "along": "all jobs, submitted while it runs",
    "calm": "a tenth of the jobs, ten per second",
    "large": "one large job",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1000, help="workers of the one large job")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--kind", choices=KINDS, help="kind of the jobs; half of each if not given")
    options = parser.parse_args()
    names = [options.kind] if options.kind else list(KINDS)
    machine = description({"kube-apiserver": version()})
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as work:
        kinds = [KINDS[name] for name in names]
        found = measure(Path(work), kinds, options.jobs, options.workers)
    about = "\n".join(f"| {key} | {value} |" for key, value in machine.items())
    page = options.output / f"{machine['date']}-operator.md"
    figures = table(found, names, options.jobs, options.workers)
    page.write_text(
        f"# The operator and a cluster, {machine['date']}\n\nJobs: {' and '.join(names)}.\n\n"
        f"{figures}\n\n| machine | |\n|---|---|\n{about}\n"
    )
    print(page.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
