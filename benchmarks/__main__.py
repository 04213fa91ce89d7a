"""Measure builds by danlu and other builders, and write the table.

``python -m benchmarks [--peers docker,danlu] [--rows first,add] [--runs 3]``
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import report
from benchmarks.base import BaseImage
from benchmarks.machine import description
from benchmarks.peers import ALL, PeerMissingError, PeerSetting
from benchmarks.rows import ROWS, BuilderRun, now
from benchmarks.turns import MOST_RUNS, take_turns

HERE = Path(__file__).resolve().parent


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{now()} {text}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", default=",".join(ALL), help=f"of {', '.join(ALL)}")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument(
        "--runs",
        type=int,
        default=MOST_RUNS,
        choices=range(1, MOST_RUNS + 1),
        help="runs; the table has the medians",
    )
    parser.add_argument("--work", type=Path, help="working directory (default: a new one)")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--keep", action="store_true", help="keep the working directory")
    return parser.parse_args()


def measure(
    name: str, setting: PeerSetting, options: argparse.Namespace, until: ExitStack
) -> BuilderRun:
    """Start one builder and measure its first builds; it is stopped when the stack is closed.

    Raises:
        PeerMissingError: This machine lacks the builder.
    """
    peer = ALL[name](setting)
    if not options.keep:
        until.callback(peer.stop)
    peer.start()
    course = BuilderRun(peer, setting.directory / "projects" / name, options.runs, setting.log, say)
    course.first()
    return course


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        print("benchmarks: the peers' daemons need root", file=sys.stderr)
        return 4
    work = options.work or Path(tempfile.mkdtemp(prefix="danlu-bench.", dir="/var/tmp"))
    work.mkdir(parents=True, exist_ok=True)
    setting = PeerSetting(work, BaseImage(work / "base"), work / "log")
    say(f"working in {work}; the output of the builders is in {setting.log}")
    courses: dict[str, BuilderRun] = {}
    machine = description({})
    with ExitStack() as until:
        for name in options.peers.split(","):
            try:
                courses[name] = course = measure(name, setting, options, until)
                machine[course.peer.title] = course.peer.version()
            except (PeerMissingError, RuntimeError, subprocess.SubprocessError, OSError) as error:
                say(f"{name}: left out: {error}")
                machine[f"{name}, left out"] = str(error).replace(str(work), "…")
        take_turns(tuple(courses.values()), options.rows.split(","))
        results = {name: course.results for name, course in courses.items()}
        titles = {name: course.peer.title for name, course in courses.items()}
        # Before the builders are stopped, which takes a while.
        page = report.write(options.output, machine, titles, results)
    print(page.read_text())
    if not options.keep:
        shutil.rmtree(work, ignore_errors=True)
    return 0 if results else 4


if __name__ == "__main__":
    sys.exit(main())
