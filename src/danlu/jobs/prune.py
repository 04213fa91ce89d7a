"""Delete old finished jobs: ``danlu jobs prune``, and when a new job starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from danlu.engine.settings import Settings
from danlu.errors import DanluError
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.retention import JobRun, RetentionPolicy, expired_runs
from danlu.util.config import Configuration
from danlu.util.human import parse_duration, parse_size

#: How often new jobs prune old ones, in seconds: measuring their size takes a while.
_PRUNE_INTERVAL_SECONDS = 3600.0


def configured_policy(config: Configuration) -> RetentionPolicy:
    """Return the policy from ``jobs_max_age`` and ``jobs_limit``."""
    return RetentionPolicy(
        max_age=parse_duration(config.jobs_max_age) if config.jobs_max_age else None,
        max_bytes=parse_size(config.jobs_limit) if config.jobs_limit else None,
    )


async def prune_jobs(
    settings: Settings, policy: RetentionPolicy, *, dry_run: bool = False
) -> Sequence[JobRun]:
    """Delete the finished jobs of this machine that ``policy`` does not keep, and return them."""
    jobs = LocalJobs(settings.paths)
    expired = expired_runs(await jobs.all_runs(), policy, now=datetime.now(UTC))
    removed = []
    for run in expired:
        try:
            if not dry_run:
                await jobs.remove_run(run.name)
        except DanluError:
            continue  # deleted or restarted meanwhile
        removed.append(run)
    return removed


async def prune_if_due(settings: Settings) -> Sequence[JobRun]:
    """Delete what the configuration does not keep, at most once an hour."""
    stamp = settings.paths.state / "jobs-pruned"
    try:
        if time.time() - stamp.stat().st_mtime < _PRUNE_INTERVAL_SECONDS:
            return ()
    except OSError:
        if not settings.paths.jobs.is_dir():
            return ()
    removed = await prune_jobs(settings, configured_policy(settings.config))
    # If the disk is full, try again next time.
    with suppress(OSError):
        stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp.touch()
    return removed
