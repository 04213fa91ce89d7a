"""Sweeps driven by an Optuna study."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import optuna
import pytest

from danlu.errors import MachineError, UsageError
from danlu.jobs.types import Submission
from danlu.sweeps.jobs import build_trial_submission
from danlu.sweeps.report import SweepObjective, SweepReport
from danlu.sweeps.runner import run_sweep
from danlu.sweeps.space import Point, parse_axes
from danlu.sweeps.study import StudySearch, create_study, study_goal
from danlu.training.registry import find_framework
from tests.sweeps.sweep_jobs import LEADER, ScriptedJobs, TrialScript, progress, submission


def make(number: int, point: Point) -> Submission:
    framework = find_framework("pytorch")
    return build_trial_submission(submission(), point, framework=framework, name=f"mnist-{number}")


def loss(submission: Submission) -> TrialScript:
    value = abs(float(submission.environment["DANLU_SWEEP_LR"]) - 0.3)
    return TrialScript(reports=(progress(50, loss=9.0), progress(100, loss=value)))


def run(study: Any, jobs: ScriptedJobs, *axes: str, total: int = 8) -> SweepReport:
    proposals = StudySearch(study, parse_axes(axes), total=total)
    begin = partial(
        run_sweep,
        make,
        proposals,
        jobs=jobs,
        measure=SweepObjective(goal=study_goal(study)),
        leader=lambda job: LEADER,
        parallel=2,
    )
    return anyio.run(begin)


def test_study_gets_every_value_and_agrees_on_the_best() -> None:
    study, jobs = create_study("min", seed=1), ScriptedJobs(loss)
    report = run(study, jobs, "lr=0.1:0.8:0.1", "optimizer=adam,sgd")
    assert jobs.most == 2
    assert len(study.trials) == len(report.trials) == 8
    assert report.best is not None
    assert report.best.value == study.best_value
    assert float(report.best.point["lr"]) == pytest.approx(study.best_params["lr"])
    assert report.best.point["optimizer"] == study.best_params["optimizer"]


def test_a_study_in_a_storage_is_continued_and_read_by_optuna(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    for _ in range(2):
        study = create_study("min", seed=1, storage=storage, name="hunt")
        report = run(study, ScriptedJobs(loss), "lr=0.1:0.8:0.1", total=3)
    stored = optuna.load_study(study_name="hunt", storage=storage)
    assert len(stored.trials) == 6
    last = stored.trials[3:]
    assert {trial.user_attrs["job"] for trial in last} == {trial.name for trial in report.trials}
    assert sorted(trial.values[0] for trial in last) == sorted(
        trial.value for trial in report.trials if trial.value is not None
    )
    with pytest.raises(UsageError, match=r"study hunt in sqlite.* has the goal min, not max"):
        create_study("max", storage=storage, name="hunt")


@pytest.mark.parametrize("storage", ["trials.db", "unknown://host/x", "sqlite:////missing/x.db"])
def test_a_storage_that_cannot_be_used_is_refused(storage: str) -> None:
    with pytest.raises(UsageError, match=f"cannot use the storage {storage}: ") as error:
        create_study("min", storage=storage, name="hunt")
    assert "\n" not in error.value.message


def test_study_improves_on_its_first_trials() -> None:
    study = create_study("min", seed=3)
    report = run(study, ScriptedJobs(loss), "lr=0.0:10.0", total=40)
    first = min(trial.value or 0.0 for trial in report.trials[:10])
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
def test_study_suggests_values_of_the_grid(axis: str, allowed: set[str]) -> None:
    report = run(create_study("min", seed=1), ScriptedJobs(loss), axis, total=12)
    assert {trial.point["lr"] for trial in report.trials} == allowed


def test_logarithmic_axis_is_sampled_logarithmically() -> None:
    report = run(create_study("min", seed=1), ScriptedJobs(loss), "lr=1e-6:1:log", total=10)
    values = [float(trial.point["lr"]) for trial in report.trials]
    assert min(values) < 1e-3
    assert all(1e-6 <= value <= 1 for value in values)


def test_failed_trial_fails_in_the_study() -> None:
    study = create_study("min", seed=1)
    run(study, ScriptedJobs(lambda submission: TrialScript(code=1)), "lr=1,2", total=2)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL"]


def test_pruner_of_the_study_stops_trials() -> None:
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=5.0))
    jobs = ScriptedJobs(loss)
    report = run(study, jobs, "lr=1,2", total=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "PRUNED"]
    assert sorted(jobs.stopped) == ["mnist-1", "mnist-2"]
    assert [trial.state for trial in report.trials] == ["Pruned", "Pruned"]


def test_goal_is_read_from_the_study() -> None:
    assert study_goal(create_study("max")) == "max"
    with pytest.raises(UsageError, match="several objectives"):
        study_goal(optuna.create_study(directions=["minimize", "maximize"]))


def test_without_optuna_the_hint_installs_it_next_to_danlu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MachineError) as caught:
        create_study("min")
    assert caught.value.hint.endswith(f"install --python {sys.executable} optuna`")
