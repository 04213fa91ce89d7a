"""All that follows the first build, by turns: a slow minute of the machine then falls on all."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.machine import layer_sizes
from benchmarks.peers.peer import timed
from benchmarks.rows import Course
from benchmarks.workload import SMALL, Workload

__all__ = ["MOST_RUNS", "take_turns"]

_MOMENTS = 31
"""Turns of what takes moments."""

_LOCKED = 3
"""Additions with a lock for each without: they take moments, and three figures say little."""

MOST_RUNS = len(SMALL) // (_LOCKED + 1)
"""No package may be added twice, so that nobody has it already."""

_TORCH = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class _Kind:
    """What is measured together: its rows, how, and how often (0: as often as was asked for).

    A first turn that warms caches does not count where ``warm`` says so.
    """

    rows: tuple[str, ...]
    measure: Callable[[Course, int], Figures]
    turns: int = 0
    warm: bool = False


def take_turns(courses: Sequence[Course], wanted: Sequence[str]) -> None:
    """Each wanted row of :data:`_KINDS`, turn after turn, every builder once a turn.

    The builders are running and have their project ``main`` built. One that fails at a row is
    noted, and the others go on.
    """
    for kind in _KINDS:
        left = list(courses) if set(kind.rows) & set(wanted) else []
        turns = kind.turns or max((course.runs for course in courses), default=0)
        for turn in range(-1 if kind.warm else 0, turns):
            for course in tuple(left):
                # What was written before is on the disk before anybody's time runs.
                os.sync()
                try:
                    for name, figure in kind.measure(course, turn):
                        if turn >= 0:
                            course.record(name, figure)
                except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                    course.say(f"{course.peer.title}: {kind.rows[0]} failed: {error}")
                    course.results.failures[kind.rows[0]] = str(error)
                    left.remove(course)


def _nothing(course: Course, turn: int) -> Figures:
    yield "nothing", course.peer.build(course.project("main", Workload()))


def _change(course: Course, turn: int) -> Figures:
    """Another small package each time; what is written before is there to be reused."""
    layout = course.directory / "layout"
    if turn == 0:
        shutil.rmtree(layout, ignore_errors=True)
        course.peer.write(course.main, layout)
        os.sync()
    before = layer_sizes(layout)
    each = _LOCKED + 1
    *locked, package = SMALL[turn * each : (turn + 1) * each]
    for requirement in locked if course.peer.locks else ():
        project = course.project("main", Workload().plus(requirement))
        course.peer.lock(project)
        yield "add-locked", course.peer.build(project)
        _reset(course)
    project = course.project("main", Workload().plus(package))
    yield "add", course.peer.build(project)
    yield "write", course.peer.write(project, layout)
    yield "bytes", _added(before, layer_sizes(layout))
    _reset(course)


def _added(before: dict[str, int], now: dict[str, int]) -> int:
    return sum(size for digest, size in now.items() if digest not in before)


def _reset(course: Course) -> None:
    """The project without the added package, built."""
    course.peer.build(course.project("main", Workload()))


def _second(course: Course, turn: int) -> Figures:
    """Another project, in another directory."""
    work = Workload().second(turn)
    if course.peer.locks:
        project = course.project(f"second-{turn}-locked", work)
        shutil.copy(course.main / "danlu.lock", project)
        course.peer.lock(project)
        yield "second-locked", course.peer.build(project)
    name = f"second-{turn}"
    work = Workload(work.packages, variable=name)
    yield "second", course.peer.build(course.project(name, work))


def _start(course: Course, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"])
    if command:
        yield "start", _timed(course, command)


def _start_on_host(course: Course, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"], host_network=True)
    if command:
        yield "start-host", _timed(course, command)


def _import(course: Course, turn: int) -> Figures:
    """Seconds of the import by Python itself, and of the whole command."""
    command = course.peer.inside(course.main, ["python3", "-c", _TORCH])
    if command:
        begin = time.perf_counter()
        shown = subprocess.run(command, cwd=course.main, capture_output=True, text=True, check=True)
        whole = time.perf_counter() - begin
        yield "import", float(shown.stdout.strip().splitlines()[-1])
        yield "import-whole", whole


def _help(course: Course, turn: int) -> Figures:
    command = course.peer.inside(course.main, ["true"])
    if command and command[0].endswith("danlu"):
        yield "help", _timed(course, [command[0], "--help"])


def _timed(course: Course, command: Sequence[str]) -> float:
    return timed(command, log=course.log, cwd=course.main)


_KINDS = (
    _Kind(("nothing",), _nothing, turns=5),
    _Kind(("add", "add-locked", "write", "bytes"), _change),
    _Kind(("second", "second-locked"), _second),
    _Kind(("start",), _start, turns=_MOMENTS, warm=True),
    _Kind(("start-host",), _start_on_host, turns=_MOMENTS, warm=True),
    _Kind(("import", "import-whole"), _import, turns=_MOMENTS, warm=True),
    _Kind(("help",), _help, turns=_MOMENTS, warm=True),
)
