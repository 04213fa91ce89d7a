"""Measure everything after the first build in turns, so that a slow minute affects all builders."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.machine import layer_sizes
from benchmarks.peers.peer import run_timed_command
from benchmarks.rows import BuilderRun
from benchmarks.workload import SMALL, BuildWorkload

__all__ = ["MOST_RUNS", "take_turns"]

_MOMENTS = 31
"""Turns for rows that take less than a second."""

_LOCKED = 3
"""Packages added with a lock for each one without: these are fast and need more figures."""

MOST_RUNS = len(SMALL) // (_LOCKED + 1)
"""Every turn adds packages that no builder has cached."""

_TORCH = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class _RowGroup:
    """Rows measured together: their names, function, and number of turns (0: as requested).

    With ``warm`` an additional first turn fills caches and is not counted.
    """

    rows: tuple[str, ...]
    measure: Callable[[BuilderRun, int], Figures]
    turns: int = 0
    warm: bool = False


def take_turns(courses: Sequence[BuilderRun], wanted: Sequence[str]) -> None:
    """Measure the rows ``wanted``; in each turn, every builder is measured once.

    The builders must be running and have built their project ``main``. If one fails, the failure is
    recorded, and the other builders continue.
    """
    for kind in _KINDS:
        left = list(courses) if set(kind.rows) & set(wanted) else []
        turns = kind.turns or max((course.runs for course in courses), default=0)
        for turn in range(-1 if kind.warm else 0, turns):
            for course in tuple(left):
                # Flush earlier writes, so that they don't slow down what is measured.
                os.sync()
                try:
                    for name, figure in kind.measure(course, turn):
                        if turn >= 0:
                            course.record(name, figure)
                except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                    course.say(f"{course.peer.title}: {kind.rows[0]} failed: {error}")
                    course.results.failures[kind.rows[0]] = str(error)
                    left.remove(course)


def _measure_nothing(course: BuilderRun, turn: int) -> Figures:
    project = course.project("main", BuildWorkload())
    course.peer.describe(project, BuildWorkload())
    yield "nothing-saved", course.peer.build(project)
    # danlu does not trust a file that was written just before: the next build leaves its stamp.
    course.peer.build(project)
    yield "nothing", course.peer.build(project)


def _measure_change(course: BuilderRun, turn: int) -> Figures:
    """Add another small package in each turn; earlier layers can be reused."""
    layout = course.directory / "layout"
    if turn == 0:
        shutil.rmtree(layout, ignore_errors=True)
        course.peer.write(course.main, layout)
        os.sync()
    before = layer_sizes(layout)
    each = _LOCKED + 1
    *locked, package = SMALL[turn * each : (turn + 1) * each]
    for requirement in locked if course.peer.locks else ():
        project = course.project("main", BuildWorkload().plus(requirement))
        course.peer.lock(project)
        yield "add-locked", course.peer.build(project)
        _reset_project(course)
    project = course.project("main", BuildWorkload().plus(package))
    yield "add", course.peer.build(project)
    yield "write", course.peer.write(project, layout)
    yield "bytes", _sum_added_bytes(before, layer_sizes(layout))
    _reset_project(course)


def _sum_added_bytes(before: dict[str, int], now: dict[str, int]) -> int:
    return sum(size for digest, size in now.items() if digest not in before)


def _reset_project(course: BuilderRun) -> None:
    """Build the project without the added package."""
    course.peer.build(course.project("main", BuildWorkload()))


def _measure_second_project(course: BuilderRun, turn: int) -> Figures:
    """Build a second project with the same packages in another directory."""
    work = BuildWorkload().second(turn)
    if course.peer.locks:
        project = course.project(f"second-{turn}-locked", work)
        shutil.copy(course.main / "danlu.lock", project)
        course.peer.lock(project)
        yield "second-locked", course.peer.build(project)
    name = f"second-{turn}"
    work = BuildWorkload(work.packages, variable=name)
    yield "second", course.peer.build(course.project(name, work))


def _measure_start(course: BuilderRun, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"])
    if command:
        yield "start", _time_command(course, command)


def _start_on_host(course: BuilderRun, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"], host_network=True)
    if command:
        yield "start-host", _time_command(course, command)


def _measure_import(course: BuilderRun, turn: int) -> Figures:
    """Measure the import inside Python, and the whole command."""
    command = course.peer.inside(course.main, ["python3", "-c", _TORCH])
    if command:
        begin = time.perf_counter()
        shown = subprocess.run(command, cwd=course.main, capture_output=True, text=True, check=True)
        whole = time.perf_counter() - begin
        yield "import", float(shown.stdout.strip().splitlines()[-1])
        yield "import-whole", whole


def _measure_help(course: BuilderRun, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"])
    if command and command[0].endswith("danlu"):
        yield "help", _time_command(course, [command[0], "--help"])


def _time_command(course: BuilderRun, command: Sequence[str]) -> float:
    return run_timed_command(command, log=course.log, cwd=course.main)


_KINDS = (
    _RowGroup(("nothing", "nothing-saved"), _measure_nothing, turns=5),
    _RowGroup(("add", "add-locked", "write", "bytes"), _measure_change),
    _RowGroup(("second", "second-locked"), _measure_second_project),
    _RowGroup(("start",), _measure_start, turns=_MOMENTS, warm=True),
    _RowGroup(("start-host",), _start_on_host, turns=_MOMENTS, warm=True),
    _RowGroup(("import", "import-whole"), _measure_import, turns=_MOMENTS, warm=True),
    _RowGroup(("help",), _measure_help, turns=_MOMENTS, warm=True),
)
