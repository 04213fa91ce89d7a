"""Sweeps with jobs that are scripted: how many at once, which is the best, what a failure does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from danlu.commands.sweep import Grid, Proposal, sweep
from danlu.commands.sweepjob import at_point
from danlu.commands.sweepreport import Measure, SweepReport, Trial, measure_of
from danlu.commands.sweepspace import Point, grid, parse_axes
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.training.registry import framework_of
from tests.commands.sweeping import LEADER, Ended, ScriptedJobs, progress, submission

EIGHT = grid(parse_axes(["lr=0.1:0.8:0.1"]))


def make(number: int, point: Point) -> Submission:
    framework = framework_of("pytorch")
    return at_point(submission(), point, framework=framework, name=f"mnist-{number}")


def swept(submission: Submission) -> float:
    return float(submission.environment["DANLU_SWEEP_LR"])


def loss(submission: Submission) -> Ended:
    """Least at 0.3."""
    value = abs(swept(submission) - 0.3)
    return Ended(reports=(progress(50, loss=9.0), progress(100, loss=value)))


async def run(jobs: ScriptedJobs, **changes: Any) -> SweepReport:
    arguments: dict[str, Any] = {
        "measure": Measure(),
        "leader": lambda job: LEADER,
        "parallel": 2,
        **changes,
    }
    proposals = arguments.pop("proposals", None) or Grid(EIGHT)
    return await sweep(arguments.pop("make", make), proposals, jobs=jobs, **arguments)


def report_of(jobs: ScriptedJobs, **changes: Any) -> SweepReport:
    return anyio.run(partial(run, jobs, **changes))


@pytest.mark.parametrize("parallel", [1, 2, 3, 20])
def test_never_more_run_at_once_than_allowed(parallel: int) -> None:
    jobs = ScriptedJobs(loss)
    report = report_of(jobs, parallel=parallel)
    assert jobs.most == min(parallel, 8)
    assert [one.state for one in report.trials] == ["Succeeded"] * 8
    assert report.total == 8


@pytest.mark.parametrize(("goal", "best"), [("min", "0.3"), ("max", "0.8")])
def test_the_best_is_named_and_the_table_sorted(goal: str, best: str) -> None:
    report = report_of(ScriptedJobs(loss), measure=measure_of("loss", goal))
    assert report.best is not None
    assert report.best.point == {"lr": best}
    values = [one.value or 0.0 for one in report.ranked()]
    assert values == sorted(values, reverse=goal == "max")
    assert len(set(values)) > 4
    assert report.exit_code == 0


def test_the_metric_may_be_the_last_match_in_the_leaders_log() -> None:
    def course(submission: Submission) -> Ended:
        value = swept(submission)
        return Ended(log=("start", "loss=9.5 and loss=9.25", f"loss={value}", "end"))

    report = report_of(ScriptedJobs(course), measure=measure_of(pattern=r"loss=([0-9.]+)"))
    assert [one.value for one in report.ranked()] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


@pytest.mark.parametrize("last", ["nan", "inf", "-", ""])
def test_what_ended_with_no_number_has_no_value(last: str) -> None:
    course = Ended(log=("loss=0.5", f"loss={last}"))
    jobs = ScriptedJobs(lambda submission: course)
    report = report_of(jobs, measure=measure_of(pattern=r"loss=(\S*)"))
    assert report.best is None
    assert report.exit_code == 1


def test_one_failure_ends_no_other_and_makes_the_sweep_fail() -> None:
    def course(submission: Submission) -> Ended:
        return loss(submission) if swept(submission) != 0.3 else Ended(code=3)

    report = report_of(ScriptedJobs(course))
    assert [one.state for one in report.trials].count("Succeeded") == 7
    failed = report.ranked()[-1]
    assert (failed.state, failed.point, failed.reason) == (
        "Failed",
        {"lr": "0.3"},
        "worker-0: exit code 3",
    )
    assert report.best is not None
    assert report.best.point == {"lr": "0.2"}
    assert report.exit_code == 1


@pytest.mark.parametrize(("metric", "code"), [("", 0), ("accuracy", 1)])
def test_a_metric_is_missed_only_where_it_was_asked_for(metric: str, code: int) -> None:
    jobs = ScriptedJobs(lambda submission: Ended(reports=(progress(1, speed=1.0),)))
    report = report_of(jobs, measure=measure_of(metric))
    assert report.best is None
    assert report.exit_code == code
    assert report.metrics() == ("speed",)
    assert [one.number for one in report.ranked()] == list(range(1, 9))


def test_each_change_is_told() -> None:
    told: list[SweepReport] = []
    report_of(ScriptedJobs(loss), parallel=1, changed=told.append)
    assert [len(one.trials) for one in told] == sorted(len(one.trials) for one in told)
    first = [one.trials[0].state for one in told]
    assert first[0] == "Running"
    assert first[-1] == "Succeeded"
    assert any(one.trials[0].progress == progress(50, loss=9.0) for one in told)


def test_interrupting_stops_all_that_run_and_starts_no_more() -> None:
    jobs = ScriptedJobs(loss, held=lambda name: True)
    told: list[SweepReport] = []

    async def interrupted() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run, jobs, changed=told.append))
            while len(jobs.running) < 2:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    anyio.run(interrupted)
    assert sorted(jobs.stopped) == sorted(jobs.submitted) == ["mnist-1", "mnist-2"]
    assert [one.state for one in told[-1].trials] == ["Stopped", "Stopped"]
    assert told[-1].exit_code == 1


def test_what_cannot_be_submitted_ends_the_sweep_and_stops_only_its_own() -> None:
    jobs = ScriptedJobs(loss, held=lambda name: name == "mnist-1")

    async def taken() -> None:
        await jobs.submit(make(2, {"lr": "1"}))
        jobs.running.clear()
        with pytest.raises(UsageError, match="there is a job mnist-2 already"):
            await run(jobs)

    anyio.run(taken)
    assert jobs.stopped == ["mnist-1"]


class Impatient:
    """A proposal that gives up at half of the way, and remembers what it was told."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.reports: list[tuple[int, float]] = []
        self.ends: list[Trial] = []

    async def report(self, value: float, *, step: int) -> bool:
        self.reports.append((step, value))
        return step >= 50

    async def tell(self, trial: Trial) -> None:
        self.ends.append(trial)


class Once:
    def __init__(self, proposal: Proposal) -> None:
        self.total = 1
        self._left = [proposal]

    async def ask(self) -> Proposal | None:
        return self._left.pop() if self._left else None


def test_a_trial_that_is_given_up_is_stopped_and_is_no_failure() -> None:
    proposal = Impatient({"lr": "0.1"})
    course = Ended(reports=tuple(progress(done, loss=1.0) for done in (25, 50, 75)))
    jobs = ScriptedJobs(lambda submission: course)
    report = report_of(jobs, proposals=Once(proposal), measure=Measure(asked=False))
    assert jobs.stopped == ["mnist-1"]
    assert proposal.reports == [(25, 1.0), (50, 1.0)]
    assert [one.state for one in proposal.ends] == ["Pruned"]
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: measure_of(pattern="("), "pattern"),
        (lambda: measure_of(goal="lowest"), "goal"),
    ],
)
def test_a_wrong_measure_is_refused(wrong: Callable[[], Measure], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong()
