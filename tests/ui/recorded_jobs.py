"""A backend of jobs that have run, given by their views: as many as a test needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from danlu.errors import UsageError
from danlu.jobs.types import JobView, ReplicaCommand, ReplicaView
from danlu.training.types import ConditionType, FirstFailure, JobCondition, JobStatus, ReplicaId
from tests.sweeps.sweep_jobs import LEADER, NOW, ScriptedJobs, TrialScript, progress


class RecordedJobs(ScriptedJobs):
    """The views, newest first."""

    def __init__(self, views: Iterable[JobView]) -> None:
        super().__init__(lambda submission: TrialScript())
        self.views_by_name = {view.name: view for view in views}

    async def names(self) -> Sequence[str]:
        return tuple(self.views_by_name)

    async def view(self, name: str) -> JobView:
        if name not in self.views_by_name:
            raise UsageError(f"job {name!r} not found")
        return self.views_by_name[name]

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        labels = self.views_by_name[name].labels
        words = [
            word
            for key, value in labels.items()
            if key.startswith("sweep.")
            for word in (f"--{key.removeprefix('sweep.')}", value)
        ]
        return ReplicaCommand(("python", "train.py", *words), {}, "/project")


def recorded_view(
    name: str,
    labels: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    *,
    state: ConditionType = ConditionType.SUCCEEDED,
    reason: str = "",
) -> JobView:
    """A job that ran for 90 seconds and reported these metrics."""
    end = NOW + timedelta(seconds=90)
    failed = state == ConditionType.FAILED
    status = JobStatus(
        conditions=(JobCondition(state, "True", last_transition_time=end),),
        completion_time=end,
        first_failure=FirstFailure(LEADER, exit_code=1, reason=reason) if failed else None,
    )
    return JobView(
        name,
        "PyTorchJob",
        "pytorch",
        str(state),
        status,
        replicas=(ReplicaView(LEADER, "Failed" if failed else "Succeeded"),),
        progress=progress(100, **metrics) if metrics else None,
        created=NOW,
        directory="/project",
        labels=labels,
    )
