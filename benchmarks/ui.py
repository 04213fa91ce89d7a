"""The pages of ``danlu ui`` in a real Chromium: ``python -m benchmarks.ui [--runs 5]``.

Measures how soon jobs and log lines are on the page, the size of logs and lists that it copes with,
and what the server costs. Uses the browser and the helpers of the tests, and a home of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

from benchmarks import page as results
from benchmarks.jobs import read_cpu_seconds, read_memory
from benchmarks.machine import description
from danlu.jobs.local.client import LocalJobs
from tests.jobs.local.support import local_jobs, spec, submission
from tests.notebook.browser.chromium import BrowserPage, ChromiumBrowser, chromium
from tests.ui.browser_site import UiProgram

HERE = Path(__file__).resolve().parent
JOBS, LINES = 10_000, 1_000_000
IDLE_SECONDS = 10.0
#: Prints the time in nanoseconds, 50 times a second.
CLOCK = "for i in $(seq 1 300); do date +%s%N; sleep 0.02; done"
LONG_LINE = "x" * 50
PANE = "document.querySelector('[data-log]').logPane"
#: Notes when the row of a job is on the page, and how late the lines of a log are.
WATCH_ROW = """window.seen = 0, new MutationObserver(() => {{
    if (!seen && document.querySelector('tr[data-key={name}]')) seen = Date.now();
}}).observe(document.body, {{subtree: true, childList: true}}), 0"""
WATCH_LINES = """window.late = [], window.known = new Set(), new MutationObserver(() => {
    const now = Date.now();
    for (const row of document.querySelectorAll(".line")) {
        const time = Number(row.textContent.split("│ ")[1]);
        if (known.has(row.dataset.index) || !time) continue;
        known.add(row.dataset.index);
        late.push(now - time / 1e6);
    }
}).observe(document.querySelector(".rows"), {childList: true}), 0"""
#: Titles, units and goals.
ROWS = {
    "cold": ("start of the program to the first page", "s", 1.0),
    "weight": ("the first page and its files, compressed", "kB", 100.0),
    "appears": ("a job of two workers on an open page, after its submission began", "s", 1.0),
    "late": ("a log line of two workers on the page, 95th percentile", "s", 0.5),
    "list": (f"the first page of {JOBS:,} jobs", "s", 0.3),
    "heap": ("the page with 50,000 lines: memory of its scripts", "MB", 200.0),
    "jump": (f"a jump to any of {LINES:,} lines of two workers, slowest", "s", 0.5),
    "search": (f"a search for the last of {LINES:,} lines", "s", 1.0),
    "idle": ("CPU of the server without a page", "%", 0.5),
    "open": ("CPU of the server with an open page of finished jobs", "%", 0.5),
    "memory": ("memory of the server after all of this", "MB", 80 * 1.048576),
}


def submit(jobs: LocalJobs, work: Path, script: str, name: str) -> None:
    anyio.run(jobs.submit, submission(work, spec(script, 2), name=name))


def measure_starts(
    program: UiProgram, browser: ChromiumBrowser, runs: int
) -> Iterator[tuple[str, float]]:
    """Measure the program's start and the size of the first page."""
    for _ in range(runs):
        began = time.perf_counter()
        program.start()
        page = program.open(browser)
        yield "cold", time.perf_counter() - began
        size = "performance.getEntries().reduce((sum, entry) => sum + (entry.transferSize ?? 0), 0)"
        page.ask("Page.reload", ignoreCache=True)
        page.wait(
            "['live', 'finished'].includes(document.querySelector('#connection').dataset.state)"
        )
        yield "weight", page.evaluate(size) / 1000
        browser.close_pages()  # each has one of the six connections
        program.stop()


def measure_delays(
    program: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path, runs: int
) -> Iterator[tuple[str, float]]:
    """Measure how soon a new job, and the lines of its log, are seen."""
    page = program.open(browser)
    for number in range(runs):
        name = f"job-{number}"
        page.evaluate(WATCH_ROW.format(name=name))
        began = time.time()
        submit(jobs, work, "sleep 600", name)
        yield "appears", page.wait("window.seen") / 1000 - began
        anyio.run(partial(jobs.stop, name, grace=0))
    submit(jobs, work, CLOCK, "clock")
    page = program.open(browser, "/jobs/clock")
    page.evaluate(WATCH_LINES)
    page.wait(f"{PANE}.isOver", limit=60)
    late = sorted(page.evaluate("window.late"))
    yield "late", late[int(len(late) * 0.95)] / 1000


def measure_sizes(
    program: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> Iterator[tuple[str, float]]:
    """Measure logs of many lines."""
    page = open_log(program, browser, jobs, work, 50_000)
    for place in range(100):
        page.evaluate(f"{PANE}.pane.scrollTop = {PANE}.sizer.offsetHeight * {place} / 100")
    page.ask("HeapProfiler.collectGarbage")
    yield "heap", page.ask("Runtime.getHeapUsage")["usedSize"] / 1e6
    page = open_log(program, browser, jobs, work, LINES)
    for index in (1, 500_000, 999_000, 123_456, 777_777, 42):
        began = time.perf_counter()
        page.evaluate(f"{PANE}.jumpTo({index})")
        page.wait(f"document.querySelector('.hit[data-index=\"{index}\"] .source')")
        yield "jump", time.perf_counter() - began
    began = time.perf_counter()
    last = f"{LINES // 2} {LONG_LINE}"
    page.evaluate(f"{PANE}.search.value = '{last}', {PANE}.hit = 0, {PANE}.findNext()")
    page.wait("document.querySelector('.hit mark')")
    yield "search", time.perf_counter() - began


def open_log(
    program: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path, count: int
) -> BrowserPage:
    """Open the page of a finished job whose log has ``count`` lines."""
    submit(jobs, work, f"seq -f '%.0f {LONG_LINE}' 1 {count // 2}", f"lines-{count}")
    anyio.run(jobs.result, f"lines-{count}")
    page = program.open(browser, f"/jobs/lines-{count}")
    page.wait(f"{PANE}.end === {count}")
    return page


def measure_list(
    program: UiProgram, browser: ChromiumBrowser, home: Path
) -> Iterator[tuple[str, float]]:
    """Measure the list of many jobs: copies of one, which is all that the list reads."""
    source = home / "jobs" / "clock"
    for number in range(JOBS):
        copy = home / "jobs" / f"copy-{number}"
        copy.mkdir()
        for name in ("status.json", "submission.json", "supervisor.lock"):
            text = (source / name).read_text()
            (copy / name).write_text(text.replace('"clock"', f'"copy-{number}"'))
    page = program.open(browser, "/jobs/clock")
    load = (
        "(began => fetch('/').then(answer => answer.text()).then(() => performance.now() - began))"
    )
    yield "list", page.evaluate(f"{load}(performance.now())") / 1000
    assert program.process is not None
    for row, path in (("idle", ""), ("open", "/")):
        browser.close_pages()
        if path:
            program.open(browser, path)
        # What it did last is not what it does now.
        time.sleep(2)
        before = read_cpu_seconds(program.process.pid)
        time.sleep(IDLE_SECONDS)
        yield row, 100 * (read_cpu_seconds(program.process.pid) - before) / IDLE_SECONDS
    yield "memory", read_memory(program.process.pid) / 1e6


def measure(directory: Path, runs: int) -> Iterator[tuple[str, float]]:
    """Measure everything with one browser."""
    home, work, profile = directory / "home", directory / "work", directory / "browser"
    for path in (work, profile):
        path.mkdir()
    jobs, program = local_jobs(home), UiProgram(home)
    with chromium(profile) as browser:
        yield from measure_starts(program, browser, runs)
        program.start()
        try:
            yield from measure_delays(program, browser, jobs, work, runs)
            yield from measure_sizes(program, browser, jobs, work)
            yield from measure_list(program, browser, home)
        finally:
            program.stop()


def format_table(figures: dict[str, list[float]]) -> str:
    """Return a table of the medians (of jumps, the slowest) and the goals."""
    lines = ["| | danlu | goal |", "|---|---|---|"]
    for row, (title, unit, most) in ROWS.items():
        figure = max(figures[row]) if row == "jump" else statistics.median(figures[row])
        verdict = f"≤ {most:.3g} {unit}: {'yes' if figure <= most else '**no**'}"
        lines.append(f"| {title} | {figure:.3g} {unit} | {verdict} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ui", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs; the table has the medians")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="danlu-bench.", dir="/var/tmp") as name:
        machine = description({})
        for row, figure in measure(Path(name), options.runs):
            title, unit, _ = ROWS[row]
            print(f"{title}: {figure:.3g} {unit}", file=sys.stderr, flush=True)
            figures.setdefault(row, []).append(figure)
    path = options.output / f"{machine['date']}-ui.md"
    print(results.write(path, "Jobs in a browser", format_table(figures), machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
