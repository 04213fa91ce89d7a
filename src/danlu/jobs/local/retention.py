"""Decide which finished jobs of this machine to keep, by age, number and size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec


class JobRun(msgspec.Struct, frozen=True):
    """A run of a job: ``NAME``, or ``NAME@1`` for an earlier run of the same name.

    ``ended`` is None while the run is not finished; ``size`` is in bytes on disk.
    """

    name: str
    state: str
    ended: datetime | None
    size: int

    @property
    def is_earlier(self) -> bool:
        """Whether a later run has taken over the name."""
        return "@" in self.name


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Limits for finished runs; None means unlimited.

    Runs that ended more than ``max_age`` seconds ago expire, runs beyond the newest ``keep``, and
    the oldest ones until all runs together use at most ``max_bytes``.
    """

    max_age: float | None = None
    keep: int | None = None
    max_bytes: int | None = None


def expired_runs(
    runs: Sequence[JobRun], policy: RetentionPolicy, *, now: datetime
) -> tuple[JobRun, ...]:
    """Return the finished runs to remove, oldest first.

    To get below ``max_bytes``, earlier runs of a name go before the latest ones.
    """
    finished = sorted(
        (run for run in runs if run.ended is not None),
        key=lambda run: (run.ended or now, run.name),
    )
    expired: dict[str, JobRun] = {}
    if policy.max_age is not None:
        limit = now - timedelta(seconds=policy.max_age)
        expired |= {run.name: run for run in finished if run.ended and run.ended < limit}
    if policy.keep is not None:
        surplus = finished[: max(0, len(finished) - policy.keep)]
        expired |= {run.name: run for run in surplus}
    if policy.max_bytes is not None:
        total = sum(run.size for run in runs if run.name not in expired)
        for run in sorted(finished, key=lambda run: not run.is_earlier):
            if total <= policy.max_bytes:
                break
            if run.name not in expired:
                expired[run.name] = run
                total -= run.size
    return tuple(run for run in finished if run.name in expired)


def size_of(directory: Path) -> int:
    """Return the disk usage of a directory in bytes; files removed meanwhile are ignored."""
    total = 0
    for parent, _, names in os.walk(directory, onerror=lambda error: None):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue
    return total
