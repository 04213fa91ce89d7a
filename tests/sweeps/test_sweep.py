"""Sweeps of scripted jobs: parallelism, ranking and failures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.sweeps.jobs import build_trial_submission
from danlu.sweeps.metric_pattern import find_last_number
from danlu.sweeps.report import SweepObjective, SweepReport, SweepTrial, parse_objective
from danlu.sweeps.runner import GridSearch, PointProposal, run_sweep
from danlu.sweeps.space import Point, build_grid, parse_axes
from danlu.sweeps.view_model import describe_best
from danlu.training.registry import find_framework
from tests.sweeps.sweep_jobs import LEADER, ScriptedJobs, TrialScript, progress, submission

EIGHT = build_grid(parse_axes(["lr=0.1:0.8:0.1"]))


def test_a_value_of_a_pattern_is_not_called_a_loss() -> None:
    assert parse_objective(pattern="accuracy=(.*)").title == "value"
    assert parse_objective("accuracy", pattern="accuracy=(.*)").title == "accuracy"
    assert parse_objective().title == "loss"


def make(number: int, point: Point) -> Submission:
    framework = find_framework("pytorch")
    return build_trial_submission(submission(), point, framework=framework, name=f"mnist-{number}")


def learning_rate(submission: Submission) -> float:
    return float(submission.environment["DANLU_SWEEP_LR"])


def loss(submission: Submission) -> TrialScript:
    """Return a course whose loss is lowest at 0.3."""
    value = abs(learning_rate(submission) - 0.3)
    return TrialScript(reports=(progress(50, loss=9.0), progress(100, loss=value)))


async def run(jobs: ScriptedJobs, **changes: Any) -> SweepReport:
    arguments: dict[str, Any] = {
        "measure": SweepObjective(),
        "leader": lambda job: LEADER,
        "parallel": 2,
        **changes,
    }
    proposals = arguments.pop("proposals", None) or GridSearch(EIGHT)
    return await run_sweep(arguments.pop("make", make), proposals, jobs=jobs, **arguments)


def report_of(jobs: ScriptedJobs, **changes: Any) -> SweepReport:
    return anyio.run(partial(run, jobs, **changes))


@pytest.mark.parametrize("parallel", [1, 2, 3, 20])
def test_parallel_trials_are_limited(parallel: int) -> None:
    jobs = ScriptedJobs(loss)
    report = report_of(jobs, parallel=parallel)
    assert jobs.most == min(parallel, 8)
    assert [trial.state for trial in report.trials] == ["Succeeded"] * 8
    assert report.total == 8


@pytest.mark.parametrize(("goal", "best"), [("min", "0.3"), ("max", "0.8")])
def test_best_trial_is_first_in_the_ranking(goal: str, best: str) -> None:
    report = report_of(ScriptedJobs(loss), measure=parse_objective("loss", goal))
    assert report.best is not None
    assert report.best.point == {"lr": best}
    values = [trial.value or 0.0 for trial in report.rank_trials()]
    assert values == sorted(values, reverse=goal == "max")
    assert len(set(values)) > 4
    assert report.exit_code == 0


def test_metric_is_the_last_match_in_the_leader_log() -> None:
    def make_trial_script(submission: Submission) -> TrialScript:
        value = learning_rate(submission)
        return TrialScript(log=("start", "loss=9.5 and loss=9.25", f"loss={value}", "end"))

    report = report_of(
        ScriptedJobs(make_trial_script), measure=parse_objective(pattern=r"loss=([0-9.]+)")
    )
    assert [trial.value for trial in report.rank_trials()] == [
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
    ]


DIGITS, WORD = r"loss=([0-9.]+)", r"loss=(\S+)"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("loss=1.2E+3", 1200.0),
        ("loss=7.5e-05, lr=0.1", 7.5e-05),
        ("loss=-0.5", -0.5),
        ("loss=.5", 0.5),
        ("loss=1.", 1.0),
        ("loss=0.5 loss=nan", math.nan),
        ("loss=-inf", -math.inf),
        ("loss=Infinity.", math.inf),
        # A part of something else is not a number.
        ("loss=1.5k", math.nan),
        ("loss=1,234", math.nan),
        ("loss=1_000", math.nan),
        ("loss=0x1f", math.nan),
        ("loss=1.2.3", math.nan),
        ("step 3", None),
    ],
)
@pytest.mark.parametrize("pattern", [DIGITS, WORD])
def test_metric_is_a_whole_number_whatever_the_pattern_captures(
    pattern: str, line: str, value: float | None
) -> None:
    found = find_last_number(re.compile(pattern), line)
    assert found == value if value is None else found == pytest.approx(value, nan_ok=True)


def test_metric_may_have_a_unit_that_the_pattern_names_but_not_begin_inside_a_number() -> None:
    assert find_last_number(re.compile("time=([0-9.]+)s"), "time=1.5s") == 1.5
    assert find_last_number(re.compile("loss ([0-9.]+)|time=1"), "time=1") is None
    assert math.isnan(find_last_number(re.compile("loss.*([0-9]+)"), "loss 0.25") or 0.0)


@pytest.mark.parametrize("pattern", [DIGITS, WORD])
@pytest.mark.parametrize(
    "log",
    [
        ("loss=9", "\rloss=8\rloss=\x1b[32m0.25\x1b[0m\rdone"),
        ("loss=9", "\rloss=0.25\x1b[K"),
    ],
)
def test_metric_is_found_in_progress_bars(pattern: str, log: tuple[str, ...]) -> None:
    jobs = ScriptedJobs(lambda submission: TrialScript(log=log))
    report = report_of(jobs, measure=parse_objective(pattern=pattern))
    assert {trial.value for trial in report.trials} == {0.25}


@pytest.mark.parametrize("last", ["nan", "inf", "-", ""])
def test_trial_with_a_metric_that_is_not_a_number_has_no_value(last: str) -> None:
    course = TrialScript(log=("loss=0.5", f"loss={last}"))
    jobs = ScriptedJobs(lambda submission: course)
    report = report_of(jobs, measure=parse_objective(pattern=r"loss=(\S*)"))
    assert report.best is None
    assert report.exit_code == 1


def test_failed_trial_fails_the_sweep_but_not_other_trials() -> None:
    def make_trial_script(submission: Submission) -> TrialScript:
        return loss(submission) if learning_rate(submission) != 0.3 else TrialScript(code=3)

    report = report_of(ScriptedJobs(make_trial_script))
    assert [trial.state for trial in report.trials].count("Succeeded") == 7
    failed = report.rank_trials()[-1]
    assert (failed.state, failed.point, failed.reason) == (
        "Failed",
        {"lr": "0.3"},
        "worker-0: exit code 3",
    )
    assert report.best is not None
    assert report.best.point == {"lr": "0.2"}
    assert report.exit_code == 1


@pytest.mark.parametrize(("metric", "code"), [("", 0), ("accuracy", 1)])
def test_missing_metric_fails_the_sweep_only_if_requested(metric: str, code: int) -> None:
    jobs = ScriptedJobs(lambda submission: TrialScript(reports=(progress(1, speed=1.0),)))
    report = report_of(jobs, measure=parse_objective(metric))
    assert report.best is None
    assert report.exit_code == code
    assert report.metric_names() == ("speed",)
    assert [trial.number for trial in report.rank_trials()] == list(range(1, 9))


def test_every_change_is_reported() -> None:
    reports: list[SweepReport] = []
    report_of(ScriptedJobs(loss), parallel=1, changed=reports.append)
    assert [len(report.trials) for report in reports] == sorted(
        len(report.trials) for report in reports
    )
    first = [report.trials[0].state for report in reports]
    assert first[0] == "Running"
    assert first[-1] == "Succeeded"
    assert any(report.trials[0].progress == progress(50, loss=9.0) for report in reports)


def test_interrupt_stops_running_trials_and_starts_no_more() -> None:
    jobs = ScriptedJobs(loss, held=lambda name: True)
    reports: list[SweepReport] = []

    async def run_and_cancel() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run, jobs, changed=reports.append))
            while len(jobs.running) < 2:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    anyio.run(run_and_cancel)
    assert sorted(jobs.stopped) == sorted(jobs.submitted) == ["mnist-1", "mnist-2"]
    assert [trial.state for trial in reports[-1].trials] == ["Stopped", "Stopped"]
    assert reports[-1].exit_code == 1


def test_failed_submission_stops_only_trials_of_the_sweep() -> None:
    jobs = ScriptedJobs(loss, held=lambda name: name == "mnist-1")

    async def submit_taken_name() -> None:
        await jobs.submit(make(2, {"lr": "1"}))
        jobs.running.clear()
        with pytest.raises(UsageError, match="job mnist-2 already exists"):
            await run(jobs)

    anyio.run(submit_taken_name)
    assert jobs.stopped == ["mnist-1"]


class PrunedProposal:
    """A proposal that is pruned halfway and records its reports."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.reports: list[tuple[int, float]] = []
        self.ends: list[SweepTrial] = []

    async def report(self, value: float, *, step: int) -> bool:
        self.reports.append((step, value))
        return step >= 50

    async def tell(self, trial: SweepTrial) -> None:
        self.ends.append(trial)


class SingleProposal:
    def __init__(self, proposal: PointProposal) -> None:
        self.total = 1
        self._left = [proposal]

    async def ask(self) -> PointProposal | None:
        return self._left.pop() if self._left else None


def test_pruned_trial_is_stopped_and_is_not_a_failure() -> None:
    proposal = PrunedProposal({"lr": "0.1"})
    course = TrialScript(reports=tuple(progress(result, loss=1.0) for result in (25, 50, 75)))
    jobs = ScriptedJobs(lambda submission: course)
    report = report_of(
        jobs, proposals=SingleProposal(proposal), measure=SweepObjective(asked=False)
    )
    assert jobs.stopped == ["mnist-1"]
    assert proposal.reports == [(25, 1.0), (50, 1.0)]
    assert [end.state for end in proposal.ends] == ["Pruned"]
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: parse_objective(pattern="("), "pattern"),
        (lambda: parse_objective(goal="lowest"), "goal"),
    ],
)
def test_invalid_objective_is_an_error(wrong: Callable[[], SweepObjective], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong()


BEST = SweepTrial(1, {"lr": "0.1", "depth": "2"}, "demo-1", "Succeeded", 0.25)


@pytest.mark.parametrize(
    ("trial", "objective", "sentence"),
    [
        (BEST, SweepObjective("loss"), "best: demo-1  lr=0.1 depth=2  loss 0.25"),
        (replace(BEST, value=None), SweepObjective("loss"), "no job reported loss"),
        (
            replace(BEST, value=None),
            SweepObjective("loss", pattern="x(.*)"),
            "no log line matches 'x(.*)' with a number",
        ),
        (replace(BEST, state="Failed", value=None), SweepObjective(), "none of 1 job succeeded"),
    ],
)
def test_summary_names_the_best_trial_or_why_there_is_none(
    trial: SweepTrial, objective: SweepObjective, sentence: str
) -> None:
    assert describe_best(SweepReport(objective, (trial,), 1)) == sentence


def test_summary_says_that_all_trials_have_the_same_value() -> None:
    trials = (BEST, replace(BEST, number=2, point={"lr": "0.2", "depth": "2"}))
    assert describe_best(SweepReport(SweepObjective(), trials, 2)) == (
        "all 2 jobs have the same loss, 0.25: does the program use lr, depth?"
    )
