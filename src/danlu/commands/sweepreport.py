"""What a sweep compares, what came of its points, and which was the best."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from danlu.commands.sweepspace import Point
from danlu.errors import UsageError
from danlu.jobs.types import Progress

__all__ = ["Goal", "Measure", "SweepReport", "Trial", "measure_of"]

State = Literal["Running", "Succeeded", "Failed", "Stopped", "Pruned"]
Goal = Literal["min", "max"]

#: The order of those without a value.
_ORDER: tuple[State, ...] = ("Running", "Succeeded", "Pruned", "Stopped", "Failed")


class Measure(msgspec.Struct, frozen=True):
    """What is compared: the last value of a metric that the job reported, or of a pattern.

    ``pattern`` is searched in the lines of the leader's log; its first group, or all that it
    found, is the number. ``asked`` is False where nobody named a metric: then none is missed.
    """

    metric: str = "loss"
    goal: Goal = "min"
    pattern: str = ""
    asked: bool = True


class Trial(msgspec.Struct, frozen=True):
    """One point of a sweep and what came of it; numbers count from 1.

    ``reason`` says why it failed. ``Pruned`` are those that a study gave up before their end.
    """

    number: int
    point: Point
    name: str
    state: State = "Running"
    value: float | None = None
    seconds: float | None = None
    reason: str = ""
    progress: Progress | None = None

    @property
    def compared(self) -> bool:
        """Whether it can be the best one."""
        return self.state == "Succeeded" and self.value is not None


class SweepReport(msgspec.Struct, frozen=True):
    """All trials of a sweep in the order they were begun, of ``total`` that are to be."""

    measure: Measure
    trials: tuple[Trial, ...] = ()
    total: int = 0

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, the first of those that have it."""
        return next((one for one in self.ranked() if one.compared), None)

    @property
    def exit_code(self) -> int:
        """1 where a point failed, or where nothing could be compared though it was to be.

        Any failure counts: a point that failed was not compared, and the best may not be it.
        """
        bad = any(one.state in ("Failed", "Stopped") for one in self.trials)
        return int(bad or (self.measure.asked and self.best is None))

    def ranked(self) -> tuple[Trial, ...]:
        """The best first; then those without a value, the failed at the end."""
        sign = 1 if self.measure.goal == "min" else -1

        def rank(one: Trial) -> tuple[int, float, int]:
            if one.state == "Succeeded" and one.value is not None:
                return 0, sign * one.value, one.number
            return 1 + _ORDER.index(one.state), 0.0, one.number

        return tuple(sorted(self.trials, key=rank))

    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that were reported."""
        names = {name for one in self.trials if one.progress for name in one.progress.metrics}
        return tuple(sorted(names))


def measure_of(metric: str = "", goal: str = "min", pattern: str = "") -> Measure:
    """What the flags ask for; :class:`UsageError` for a pattern or a goal that is none."""
    if goal not in ("min", "max"):
        raise UsageError(f"{goal!r} is no goal", hint="a goal is min or max")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"the metric's pattern {pattern!r} is wrong: {error}") from error
    chosen: Goal = "min" if goal == "min" else "max"
    return Measure(metric or "loss", chosen, pattern, asked=bool(metric or pattern))
