"""The labels of a sweep's jobs: of which sweep and point a job is, and what is compared.

They are kept with the jobs, so names must not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from danlu.errors import UsageError
from danlu.sweeps.report import SweepObjective, parse_objective
from danlu.sweeps.space import Point
from danlu.training.types import ReplicaId

_SWEEP, _POINT_PREFIX = "sweep", "sweep."
_METRIC, _GOAL, _PATTERN = "sweep-metric", "sweep-goal", "sweep-pattern"
_TOTAL, _LEADER = "sweep-points", "sweep-leader"


def make_trial_labels(sweep: str, point: Point) -> dict[str, str]:
    """Return the labels of a job of the sweep."""
    return {_SWEEP: sweep, **{f"{_POINT_PREFIX}{key}": value for key, value in point.items()}}


def make_sweep_labels(objective: SweepObjective, total: int, leader: ReplicaId) -> dict[str, str]:
    """Return the labels that all jobs of a sweep of ``total`` points have in common."""
    labels = {_METRIC: objective.metric, _GOAL: objective.goal, _TOTAL: str(total)}
    if objective.pattern:
        labels |= {_PATTERN: objective.pattern, _LEADER: str(leader)}
    return labels


def read_sweep_name(labels: Mapping[str, str]) -> str:
    """Return the sweep of a job with these labels; empty if it is of none."""
    return labels.get(_SWEEP, "")


def read_point(labels: Mapping[str, str]) -> Point:
    """Return the point of a job with these labels."""
    return {
        key.removeprefix(_POINT_PREFIX): value
        for key, value in labels.items()
        if key.startswith(_POINT_PREFIX)
    }


def read_leader(labels: Mapping[str, str]) -> str:
    """Return the replica whose log has the value, if the sweep compares values of logs."""
    return labels.get(_LEADER, "")


def read_total(labels: Mapping[str, str]) -> int:
    """Return the number of points of the sweep; 0 if unknown."""
    text = labels.get(_TOTAL, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def read_objective(
    labels: Mapping[str, str], *, metric: str = "", goal: str = ""
) -> SweepObjective:
    """Return what a sweep compares; ``metric`` and ``goal`` replace its own."""
    pattern = "" if metric else labels.get(_PATTERN, "")
    try:
        return parse_objective(
            metric or labels.get(_METRIC, ""), goal or labels.get(_GOAL, "min"), pattern
        )
    except UsageError:  # another program wrote them
        return SweepObjective(metric or "loss")
