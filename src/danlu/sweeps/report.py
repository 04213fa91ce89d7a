"""The report of a sweep: its objective, its trials, and the best of them."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from danlu.errors import UsageError
from danlu.sweeps.space import Point
from danlu.training.progress import TrainingProgress

TrialState = Literal["Running", "Succeeded", "Failed", "Stopped", "Pruned"]
Goal = Literal["min", "max"]

#: The order of trials without a value.
_STATE_ORDER: tuple[TrialState, ...] = ("Running", "Succeeded", "Pruned", "Stopped", "Failed")


class SweepObjective(msgspec.Struct, frozen=True):
    """What is compared: the last reported value of a metric, or the last match of a pattern.

    ``pattern`` is searched in the leader's log; its first group, or else the whole match, is the
    number. ``asked`` is False if the user named no metric; then a missing value does not fail.
    """

    metric: str = "loss"
    goal: Goal = "min"
    pattern: str = ""
    asked: bool = True

    @property
    def title(self) -> str:
        """What the value is called: a pattern without a metric does not say."""
        return "value" if self.pattern and self.metric == "loss" else self.metric


class SweepTrial(msgspec.Struct, frozen=True):
    """One point of a sweep and its job. Numbers start from 1.

    ``reason`` says why it failed. ``Pruned`` trials were stopped early by a study.
    """

    number: int
    point: Point
    name: str
    state: TrialState = "Running"
    value: float | None = None
    seconds: float | None = None
    reason: str = ""
    progress: TrainingProgress | None = None

    @property
    def is_comparable(self) -> bool:
        """Whether it has a value to compare."""
        return self.state == "Succeeded" and self.value is not None


class SweepReport(msgspec.Struct, frozen=True):
    """All trials so far in the order of their start, of ``total`` planned ones."""

    measure: SweepObjective
    trials: tuple[SweepTrial, ...] = ()
    total: int = 0

    @property
    def best(self) -> SweepTrial | None:
        """The trial with the best value; the first of several."""
        return next((trial for trial in self.rank_trials() if trial.is_comparable), None)

    @property
    def exit_code(self) -> int:
        """1 if a trial failed, or if a requested metric has no value; else 0.

        Any failure counts: a failed point was not compared, and might have been the best.
        """
        bad = any(trial.state in ("Failed", "Stopped") for trial in self.trials)
        return int(bad or (self.measure.asked and self.best is None))

    def rank_trials(self) -> tuple[SweepTrial, ...]:
        """Return the trials, best first; then those without a value, failed ones last."""
        sign = 1 if self.measure.goal == "min" else -1

        def rank(trial: SweepTrial) -> tuple[int, float, int]:
            if trial.state == "Succeeded" and trial.value is not None:
                return 0, sign * trial.value, trial.number
            return 1 + _STATE_ORDER.index(trial.state), 0.0, trial.number

        return tuple(sorted(self.trials, key=rank))

    def metric_names(self) -> tuple[str, ...]:
        """Return the names of all reported metrics."""
        names = {name for trial in self.trials if trial.progress for name in trial.progress.metrics}
        return tuple(sorted(names))


def parse_objective(metric: str = "", goal: str = "min", pattern: str = "") -> SweepObjective:
    """Parse the flags of the objective; :class:`UsageError` for an invalid pattern or goal."""
    if goal not in ("min", "max"):
        raise UsageError(f"invalid goal {goal!r}", hint="use min or max")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"invalid metric pattern {pattern!r}: {error}") from error
    chosen: Goal = "min" if goal == "min" else "max"
    return SweepObjective(metric or "loss", chosen, pattern, asked=bool(metric or pattern))
