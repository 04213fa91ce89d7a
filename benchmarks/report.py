"""The table: medians, ratios to the best other builder, and danlu's goals."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import ROWS, BenchmarkResults

SECONDS = "s"


@dataclass(frozen=True)
class PerformanceGoal:
    """A goal for danlu: seconds or bytes, or a share of the best peer."""

    absolute: float | None = None
    share: float | None = None
    against: str = ""
    """The other builders' row to compare with, if not the same."""
    of: str = ""
    """The only peer to compare with."""


GOALS = {
    "first": PerformanceGoal(share=0.2),
    "add-locked": PerformanceGoal(share=0.03, against="add"),
    "add": PerformanceGoal(share=0.06),
    "nothing": PerformanceGoal(share=1.0),
    "write": PerformanceGoal(absolute=0.2),
    "import": PerformanceGoal(share=1.0, of="docker"),
    "start": PerformanceGoal(share=0.5, of="docker"),
    "start-host": PerformanceGoal(share=0.5, of="docker"),
}


def medians(results: BenchmarkResults) -> dict[str, float]:
    """Return the median of each row."""
    return {row: statistics.median(figures) for row, figures in results.figures.items()}


def best_of_others(row: str, table: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the best peer's figure of ``row``."""
    goal = GOALS.get(row, PerformanceGoal())
    names = [goal.of] if goal.of else [name for name in table if name != "danlu"]
    figures = [table[name].get(goal.against or row) for name in names if name in table]
    return min((figure for figure in figures if figure is not None), default=None)


def show(row: str, figure: float | None) -> str:
    """Format a figure for the table."""
    if figure is None:
        return "–"
    if row == "bytes":
        return f"{figure / 2**20:,.1f} MiB" if figure >= 2**20 else f"{figure / 2**10:,.0f} KiB"
    return f"{figure:.3f}" if figure < 10 else f"{figure:.1f}"


def verdict(row: str, mine: float | None, best: float | None) -> str:
    """Return the goal, and whether it is reached."""
    goal = GOALS.get(row)
    if goal is None or mine is None:
        return ""
    if goal.absolute is not None:
        return f"≤ {goal.absolute} s: {'yes' if mine <= goal.absolute else '**no**'}"
    if best is None or goal.share is None:
        return f"≤ {goal.share} ×: nothing to compare with"
    limit = goal.share * best
    return f"≤ {goal.share} × ({limit:.2f}): {'yes' if mine <= limit else '**no**'}"


def markdown(
    machine: Mapping[str, str], titles: Mapping[str, str], table: Mapping[str, Mapping[str, float]]
) -> str:
    """Render the results as a Markdown page."""
    names = [name for name in titles if name in table]
    lines = [f"# Benchmark of {machine['date']}", ""]
    lines += ["Medians in seconds; the ratio is danlu to the best other builder in this run.", ""]
    lines += ["| | " + " | ".join(titles[n] for n in names) + " | ratio | goal |"]
    lines += ["|---" * (len(names) + 3) + "|"]
    for row, title in ROWS.items():
        mine, best = table.get("danlu", {}).get(row), best_of_others(row, table)
        ratio = f"{mine / best:.3f}" if mine is not None and best else ""
        cells = [show(row, table[name].get(row)) for name in names]
        lines += [f"| {title} | {' | '.join(cells)} | {ratio} | {verdict(row, mine, best)} |"]
    lines += ["", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    return "\n".join([*lines, ""])


def write(
    directory: Path,
    machine: Mapping[str, str],
    titles: Mapping[str, str],
    results: Mapping[str, BenchmarkResults],
) -> Path:
    """Write the results as JSON and Markdown; return the path of the page."""
    table = {name: medians(result) for name, result in results.items()}
    document = {
        "machine": machine,
        "medians": table,
        "figures": {name: result.figures for name, result in results.items()},
        "failures": {name: result.failures for name, result in results.items() if result.failures},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{machine['date']}.json").write_text(json.dumps(document, indent=1) + "\n")
    page = directory / f"{machine['date']}.md"
    page.write_text(markdown(machine, titles, table))
    return page
