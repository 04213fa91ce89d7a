"""``danlu.sweep``: sweeps from Python, over a grid and with a study."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

import danlu
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.sweeps.report import SweepReport
from tests.sweeps.sweep_jobs import ScriptedJobs, TrialScript, progress


def loss(submission: Submission) -> TrialScript:
    value = abs(float(submission.environment["DANLU_SWEEP_LR"]) - 0.3)
    return TrialScript(reports=(progress(100, loss=value),))


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedJobs:
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    scripted = ScriptedJobs(loss)
    monkeypatch.setattr("danlu.jobs.backends.local_backend", lambda settings: scripted)
    monkeypatch.setattr("danlu.submission.plan.find_active_python", lambda: "/usr/bin/python3")
    return scripted


def test_grid_sweep_from_python_returns_its_report(jobs: ScriptedJobs) -> None:
    heard: list[SweepReport] = []
    space = {"lr": [0.1, 0.3], "depth": "1:2"}
    report = danlu.sweep(
        "train.py", space, name="demo", args=["-v"], parallel=2, workers=1, changed=heard.append
    )
    assert report.best is not None
    assert report.best.point == {"lr": "0.3", "depth": "1"}
    assert sorted(jobs.submitted) == ["demo-1", "demo-2", "demo-3", "demo-4"]
    assert jobs.most == 2
    assert heard[-1] == report
    spec = next(iter(jobs.submitted["demo-1"].job.replicas.values()))
    command = spec.template["spec"]["containers"][0]["command"]
    assert command == ["python", "train.py", "-v", "--lr", "0.1", "--depth", "1"]


def test_study_sweep_from_python_uses_the_goal_of_the_study(jobs: ScriptedJobs) -> None:
    study = optuna.create_study(direction="maximize")
    report = danlu.sweep("train.py", {"lr": "0.0:1.0"}, study=study, trials=6, parallel=2)
    assert len(study.trials) == len(jobs.submitted) == 6
    assert report.best is not None
    assert report.best.value == study.best_value == max(trial.value or 0 for trial in report.trials)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lr": []}, "empty value"),
        ({"lr": [1, 1]}, "duplicate value"),
        ({"--lr": [1]}, "invalid sweep"),
        ({"lr": "0.1:0.5"}, "lr needs a step"),
    ],
)
def test_invalid_space_is_an_error(
    jobs: ScriptedJobs, space: dict[str, str | list[int]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        danlu.sweep("train.py", space)
    assert not jobs.submitted


def test_study_requires_a_number_of_trials() -> None:
    with pytest.raises(UsageError, match="requires a number of trials"):
        danlu.sweep("train.py", {"lr": [1]}, study=optuna.create_study())
