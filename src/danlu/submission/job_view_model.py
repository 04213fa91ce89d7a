"""The view model of a job: what the terminal, plain-text and notebook renderers show of it.

Everything here is pure. Renderers add colours, column widths and escaping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from danlu.jobs.report import describe_exit, job_end_time, job_seconds
from danlu.jobs.types import JobView, ReplicaView
from danlu.project.build_view_model import BuildRow
from danlu.training.progress import TrainingProgress
from danlu.training.types import ConditionType
from danlu.util.human import format_age, format_duration, format_size
from danlu.util.sanitize import strip_control_sequences

#: The titles of the columns of :func:`replica_row`.
REPLICA_COLUMNS = ("replica", "state", "restarts", "exit", "CPU", "memory", "GPU")

#: If not all replicas fit, those in these states come first.
_STATE_PRIORITY = ("Failed", "Running", "Pending", "Waiting", "Stopped", "Succeeded")

#: The titles of the columns of :func:`job_row`.
JOB_COLUMNS = ("name", "state", "kind", "replicas", "created", "duration")

StateStyle = Literal["success", "error", "active", "attention", "muted", "plain"]

_STATE_STYLES: dict[str, StateStyle] = {
    "Succeeded": "success",
    "Failed": "error",
    "Lost": "error",
    "Running": "active",
    "Finishing": "active",
    "Stopping": "attention",
    "Restarting": "attention",
    "Waiting": "attention",
    "Suspending": "attention",
    "Suspended": "attention",
    "Stopped": "muted",
    "Pruned": "muted",
}


class OutputLine(msgspec.Struct, frozen=True):
    """A line of output without control sequences, from a replica or one of our programs."""

    source: str
    text: str


class MetricSeries(msgspec.Struct, frozen=True):
    """The values of a metric as ``(seconds since the job was created, value)``, oldest first.

    ``last`` is the last reported value. Unlike the points it may be NaN or infinite.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    last: float


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one moment, ready to be rendered."""

    name: str
    kind: str = ""
    state: str = ""
    #: How long the job has run.
    seconds: float | None = None
    replicas: tuple[ReplicaView, ...] = ()
    progress: TrainingProgress | None = None
    series: tuple[MetricSeries, ...] = ()
    #: The build of the job's image, while it runs.
    build: tuple[BuildRow, ...] = ()
    #: The newest of the ``written`` lines of output so far.
    lines: tuple[OutputLine, ...] = ()
    written: int = 0
    notes: tuple[str, ...] = ()
    #: A sentence about the end of the job; empty before it has ended.
    summary: str = ""
    #: The directory of the complete logs.
    logs: str = ""
    #: URLs of the replicas' logs by replica name, if a Jupyter server serves them.
    links: dict[str, str] = {}


def job_snapshot(view: JobView, *, now: datetime) -> JobSnapshot:
    """Return the snapshot of a job, without its output."""
    return JobSnapshot(
        name=view.name,
        kind=view.kind,
        state=view.state,
        seconds=elapsed_seconds(view, now=now),
        replicas=view.replicas,
        progress=view.progress,
        notes=view.warnings,
    )


def elapsed_seconds(view: JobView, *, now: datetime) -> float | None:
    """Return how long a job has run, or ran; None if it has not started."""
    began = view.created or view.status.start_time
    return None if began is None else ((job_end_time(view) or now) - began).total_seconds()


def job_row(view: JobView, *, now: datetime) -> tuple[str, ...]:
    """Return the cells of a job under :data:`JOB_COLUMNS`; ``-`` for unknown values."""
    seconds = job_seconds(view)
    return (
        view.name,
        view.state,
        view.kind,
        f"{count_done(view)}/{len(view.replicas)}",
        format_age((now - view.created).total_seconds()) if view.created else "-",
        "-" if seconds is None else format_duration(seconds),
    )


def describe_reason(view: JobView) -> str:
    """Return in one sentence why a job is in its state; empty if it just runs or succeeded."""
    first = view.status.first_failure
    if (
        first is not None
        and view.finished
        and not view.status.has_condition(ConditionType.SUCCEEDED)
    ):
        exit_reason = describe_exit(first.exit_code, first.reason, first.message)
        return f"{first.replica} failed first: {exit_reason}"
    if view.state == "Lost":
        return view.warnings[-1] if view.warnings else "its supervisor died"
    waiting = next((replica for replica in view.replicas if replica.waits), None)
    if waiting is not None and not view.finished:
        return f"{waiting.id} waits for {waiting.waits}"
    if view.state in ("Running", "Succeeded", "Pending", "Created"):
        return ""
    return view.status.conditions[-1].message if view.status.conditions else ""


def list_job_gpus(view: JobView) -> str:
    """Return the indexes of the GPUs that a job has; ``-`` if it has none."""
    running = (replica for replica in view.replicas if replica.exit_code is None)
    gpus = sorted({gpu for replica in running for gpu in replica.gpus})
    return ",".join(map(str, gpus)) or "-"


def count_done(view: JobView) -> int:
    """Count the replicas that are done.

    A job that succeeded stops the replicas that would never end (parameter servers): they are done
    as well.
    """
    done = ("Succeeded", "Stopped") if view.state == "Succeeded" else ("Succeeded",)
    return sum(replica.state in done for replica in view.replicas)


def state_style(state: str) -> StateStyle:
    """Return the style in which to show the state of a job or replica."""
    return _STATE_STYLES.get(state, "plain")


def visible_replicas(replicas: Sequence[ReplicaView], limit: int) -> Sequence[ReplicaView]:
    """Return at most ``limit`` replicas in the job's order, failed and running ones first."""
    if len(replicas) <= limit:
        return replicas
    priority = {state: index for index, state in enumerate(_STATE_PRIORITY)}
    by_priority = sorted(range(len(replicas)), key=lambda index: priority[replicas[index].state])
    return [replicas[index] for index in sorted(by_priority[:limit])]


def summarize_hidden(replicas: Sequence[ReplicaView], limit: int) -> str:
    """Describe the replicas that are not visible (``… and 24 more: 24 Running``), if any."""
    shown = {str(replica.id) for replica in visible_replicas(replicas, limit)}
    hidden = [replica for replica in replicas if str(replica.id) not in shown]
    if not hidden:
        return ""
    counts = Counter(replica.state for replica in hidden)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"… and {len(hidden)} more: {states}"


def replica_row(replica: ReplicaView) -> tuple[str, ...]:
    """Return the cells of a replica under :data:`REPLICA_COLUMNS`; ``-`` for unknown values."""
    state = f"{replica.state}: {replica.waits}" if replica.waits else str(replica.state)
    if replica.reason and replica.reason not in ("Completed", "Error"):
        message = f": {replica.message}" if replica.message else ""
        state = f"{state} ({replica.reason}{message})"
    return (
        str(replica.id),
        strip_control_sequences(state),
        str(replica.restarts),
        "-" if replica.exit_code is None else str(replica.exit_code),
        "-" if replica.cpu is None else f"{replica.cpu:.2f}",
        "-" if replica.memory is None else format_size(replica.memory),
        _format_gpus(replica),
    )


def _format_gpus(replica: ReplicaView) -> str:
    """Return the indexes of a replica's GPUs, and what it uses of them: ``0,1 (97%, 3.2 GB)``."""
    indexes = ",".join(map(str, replica.gpus)) or "-"
    used = [] if replica.gpu_utilization is None else [f"{replica.gpu_utilization:.0%}"]
    used += [] if replica.gpu_memory is None else [format_size(replica.gpu_memory)]
    return f"{indexes} ({', '.join(used)})" if used else indexes


def progress_bar(percentage: int, *, width: int = 24, unicode: bool = True) -> str:
    """Return a bar such as ``██████░░``."""
    full = round(width * max(0, min(100, percentage)) / 100)
    done, remaining = ("█", "░") if unicode else ("#", ".")
    return done * full + remaining * (width - full)


def time_left(progress: TrainingProgress) -> str:
    """Return the estimated time left (``2 min left``); empty if unknown."""
    seconds = progress.seconds_left
    return "" if seconds is None else f"{format_duration(seconds)} left"


def format_metrics(progress: TrainingProgress) -> str:
    """Return the time left and the last metrics: ``12 s left  loss 0.31``."""
    parts = [time_left(progress)] if progress.seconds_left is not None else []
    for name, value in progress.metrics.items():
        parts.append(f"{strip_control_sequences(name)} {format_metric(value)}")
    return "  ".join(parts)


def format_metric(value: float) -> str:
    """Format a value with four significant digits: ``0.3125``, ``1.2e+06``."""
    return f"{value:.4g}"
