"""What takes moments, by turns: a slow minute of the machine then falls on all builders."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from benchmarks.peers.peer import timed
from benchmarks.rows import Course

__all__ = ["take_turns"]

TURNS = 31
_TORCH = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"


def take_turns(courses: Sequence[Course], wanted: Sequence[str]) -> None:
    """Each wanted row of :data:`_ROWS`, :data:`TURNS` times, every builder once a turn.

    The builders are running and have their project ``main`` built. One that fails at a row is
    noted, and the others go on; a first turn that warms caches does not count.
    """
    for row, measure in _ROWS.items():
        if row not in wanted:
            continue
        left = list(courses)
        for turn in range(TURNS + 1):
            for course in tuple(left):
                try:
                    figures = measure(course)
                except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                    course.say(f"{course.peer.title}: {row} failed: {error}")
                    course.results.failures[row] = str(error)
                    left.remove(course)
                    continue
                for name, seconds in figures.items() if turn else ():
                    course.record(name, seconds)


def _start(course: Course) -> dict[str, float]:
    command = course.peer.inside(course.main, ["true"])
    return {"start": _timed(course, command)} if command else {}


def _start_on_host(course: Course) -> dict[str, float]:
    command = course.peer.inside(course.main, ["true"], host_network=True)
    return {"start-host": _timed(course, command)} if command else {}


def _import(course: Course) -> dict[str, float]:
    """Seconds of the import by Python itself, and of the whole command."""
    command = course.peer.inside(course.main, ["python3", "-c", _TORCH])
    if command is None:
        return {}
    begin = time.perf_counter()
    shown = subprocess.run(command, cwd=course.main, capture_output=True, text=True, check=True)
    whole = time.perf_counter() - begin
    return {"import": float(shown.stdout.strip().splitlines()[-1]), "import-whole": whole}


def _help(course: Course) -> dict[str, float]:
    command = course.peer.inside(course.main, ["true"])
    if command is None or not command[0].endswith("danlu"):
        return {}
    return {"help": _timed(course, [command[0], "--help"])}


def _timed(course: Course, command: Sequence[str]) -> float:
    return timed(command, log=course.log, cwd=course.main)


_ROWS: dict[str, Callable[[Course], dict[str, float]]] = {
    "start": _start,
    "start-host": _start_on_host,
    "import": _import,
    "help": _help,
}
