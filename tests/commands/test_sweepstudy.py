"""Sweeps that an Optuna study drives."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import anyio
import optuna
import pytest

from danlu.commands.sweep import sweep
from danlu.commands.sweepjob import at_point
from danlu.commands.sweepreport import Measure, SweepReport
from danlu.commands.sweepspace import Point, parse_axes
from danlu.commands.sweepstudy import Study, goal_of, new_study
from danlu.errors import MachineError, UsageError
from danlu.jobs.types import Submission
from danlu.training.registry import framework_of
from tests.commands.sweeping import LEADER, Ended, ScriptedJobs, progress, submission


def make(number: int, point: Point) -> Submission:
    framework = framework_of("pytorch")
    return at_point(submission(), point, framework=framework, name=f"mnist-{number}")


def loss(submission: Submission) -> Ended:
    value = abs(float(submission.environment["DANLU_SWEEP_LR"]) - 0.3)
    return Ended(reports=(progress(50, loss=9.0), progress(100, loss=value)))


def run(study: Any, jobs: ScriptedJobs, *axes: str, total: int = 8) -> SweepReport:
    proposals = Study(study, parse_axes(axes), total=total)
    begin = partial(
        sweep,
        make,
        proposals,
        jobs=jobs,
        measure=Measure(goal=goal_of(study)),
        leader=lambda job: LEADER,
        parallel=2,
    )
    return anyio.run(begin)


def test_a_study_gets_every_value_and_both_name_the_same_best() -> None:
    study, jobs = new_study("min", seed=1), ScriptedJobs(loss)
    report = run(study, jobs, "lr=0.1:0.8:0.1", "optimizer=adam,sgd")
    assert jobs.most == 2
    assert len(study.trials) == len(report.trials) == 8
    assert report.best is not None
    assert report.best.value == study.best_value
    assert float(report.best.point["lr"]) == pytest.approx(study.best_params["lr"])
    assert report.best.point["optimizer"] == study.best_params["optimizer"]


def test_a_study_comes_nearer_than_its_first_guesses() -> None:
    study = new_study("min", seed=3)
    report = run(study, ScriptedJobs(loss), "lr=0.0:10.0", total=40)
    first = min(one.value or 0.0 for one in report.trials[:10])
    assert report.best is not None
    assert report.best.value is not None
    assert report.best.value < first


@pytest.mark.parametrize(
    ("axis", "allowed"),
    [
        ("lr=0.1:0.35:0.1", {"0.1", "0.2", "0.3"}),
        ("lr=2:7:2", {"2", "4", "6"}),
        ("lr=1,3", {"1", "3"}),
    ],
)
def test_a_study_suggests_what_a_grid_would_have(axis: str, allowed: set[str]) -> None:
    report = run(new_study("min", seed=1), ScriptedJobs(loss), axis, total=12)
    assert {one.point["lr"] for one in report.trials} == allowed


def test_a_logarithmic_axis_is_sampled_by_its_logarithm() -> None:
    report = run(new_study("min", seed=1), ScriptedJobs(loss), "lr=1e-6:1:log", total=10)
    values = [float(one.point["lr"]) for one in report.trials]
    assert min(values) < 1e-3
    assert all(1e-6 <= one <= 1 for one in values)


def test_a_failed_trial_fails_in_the_study() -> None:
    study = new_study("min", seed=1)
    run(study, ScriptedJobs(lambda submission: Ended(code=1)), "lr=1,2", total=2)
    assert [one.state.name for one in study.trials] == ["FAIL", "FAIL"]


def test_the_studys_pruner_ends_what_is_hopeless() -> None:
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=5.0))
    jobs = ScriptedJobs(loss)
    report = run(study, jobs, "lr=1,2", total=2)
    assert [one.state.name for one in study.trials] == ["PRUNED", "PRUNED"]
    assert sorted(jobs.stopped) == ["mnist-1", "mnist-2"]
    assert [one.state for one in report.trials] == ["Pruned", "Pruned"]


def test_a_study_says_its_goal() -> None:
    assert goal_of(new_study("max")) == "max"
    with pytest.raises(UsageError, match="several objectives"):
        goal_of(optuna.create_study(directions=["minimize", "maximize"]))


def test_without_optuna_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MachineError) as caught:
        new_study("min")
    assert "danlu[sweep]" in caught.value.hint
