"""Grace periods: how long the replicas of a stopped job have until SIGKILL."""

from __future__ import annotations

from collections.abc import Iterable

from danlu.training.messages import name_some
from danlu.training.types import Job, ReplicaId

DEFAULT_GRACE = 30.0
"""Seconds that a pod has to terminate unless it says otherwise (the default of Kubernetes)."""


def longest_grace(job: Job, *, default: float = DEFAULT_GRACE) -> float:
    """Return the longest ``terminationGracePeriodSeconds`` of the job's pods, in seconds."""
    graces = []
    for spec in job.replicas.values():
        grace = (spec.template.get("spec") or {}).get("terminationGracePeriodSeconds")
        graces.append(default if grace is None else float(grace))
    return max(graces, default=default)


def killed_sentence(replicas: Iterable[ReplicaId]) -> str:
    """Return which replicas were killed when their job was stopped; empty if none."""
    killed = sorted(replicas)
    verb = "were" if len(killed) > 1 else "was"
    return f"{name_some(killed)} had not ended and {verb} killed" if killed else ""
