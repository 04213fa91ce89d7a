"""``danlu train --sweep`` on the command line: exit code, stdout and stderr."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from danlu.jobs.types import Submission
from tests.sweeps.sweep_jobs import ScriptedJobs, TrialScript, progress

from .conftest import Cli

SWEEP = ("train", "train.py", "--host-python", "--framework", "pytorch", "--name", "demo")


def loss(submission: Submission) -> TrialScript:
    rate = submission.environment["DANLU_SWEEP_LR"]
    if rate == "bad":
        return TrialScript(code=3)
    value = abs(float(rate) - 0.3)
    return TrialScript(reports=(progress(100, loss=value),), log=(f"accuracy: {1 - value:.3f}",))


@pytest.fixture(autouse=True)
def jobs(home: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedJobs:
    Path("train.py").write_text("import torch\n")
    scripted = ScriptedJobs(loss)
    monkeypatch.setattr("danlu.jobs.backends.local_backend", lambda settings: scripted)
    monkeypatch.setattr("danlu.submission.plan.find_active_python", lambda: "/usr/bin/python3")
    return scripted


def test_sweep_prints_trials_sorted_and_the_best_one(cli: Cli, jobs: ScriptedJobs) -> None:
    result = cli(*SWEEP, "--sweep", "lr=0.1,0.3,0.6", "--parallel", "1")
    assert result.code == 0
    assert result.out == (
        "JOB      lr  STATE      LOSS  DURATION\n"
        "demo-2  0.3  Succeeded     0         -\n"
        "demo-1  0.1  Succeeded   0.2         -\n"
        "demo-3  0.6  Succeeded   0.3         -\n"
    )
    assert result.err.splitlines()[1:] == [
        "[0/3] demo-1  lr=0.1  running",
        "[1/3] demo-1  lr=0.1  succeeded  loss 0.2",
        "[1/3] demo-2  lr=0.3  running",
        "[2/3] demo-2  lr=0.3  succeeded  loss 0",
        "[2/3] demo-3  lr=0.6  running",
        "[3/3] demo-3  lr=0.6  succeeded  loss 0.3",
        "best: demo-2  lr=0.3  loss 0",
    ]
    spec = next(iter(jobs.submitted["demo-2"].job.replicas.values()))
    command = spec.template["spec"]["containers"][0]["command"]
    assert command == ["python", "train.py", "--lr", "0.3"]


def test_eight_points_run_two_in_parallel(cli: Cli, jobs: ScriptedJobs) -> None:
    result = cli(*SWEEP, "--sweep", "lr=0.1:0.4:0.1", "--sweep", "depth=1:2", "--parallel", "2")
    assert result.code == 0
    assert len(jobs.submitted) == 8
    assert jobs.most == 2
    assert "best: demo-5  lr=0.3 depth=1  loss 0\n" in result.err


def test_numbers_of_many_jobs_have_one_width(cli: Cli, jobs: ScriptedJobs) -> None:
    assert cli(*SWEEP, "--sweep", "lr=1:10").code == 0
    assert sorted(jobs.submitted)[0] == "demo-01"
    assert sorted(jobs.submitted)[-1] == "demo-10"


def test_a_pattern_takes_the_metric_from_the_log(cli: Cli) -> None:
    result = cli(
        *SWEEP, "--sweep", "lr=0.1,0.25,0.6", "--goal", "max", "--metric", "accuracy",
        "--metric-pattern", r"accuracy: ([0-9.]+)",
    )  # fmt: skip
    assert result.code == 0
    assert "best: demo-2  lr=0.25  accuracy 0.95\n" in result.err


def test_a_failure_is_shown_and_makes_the_exit_code_1(cli: Cli) -> None:
    result = cli(*SWEEP, "--sweep", "lr=bad,0.1")
    assert result.code == 1
    assert result.out.splitlines()[-1].split("  ")[2:3] == ["Failed: worker-0: exit code 3"]
    assert "best: demo-2  lr=0.1  loss 0.2" in result.err


def test_unreported_metric_is_an_error_that_lists_the_reported_ones(cli: Cli) -> None:
    result = cli(*SWEEP, "--sweep", "lr=0.1", "--metric", "val_loss")
    assert result.code == 1
    assert "no job reported val_loss; reported metrics: loss\n" in result.err


def test_json_has_all_trials_on_stdout_and_events_on_stderr(cli: Cli) -> None:
    result = cli(*SWEEP, "--sweep", "lr=0.1,0.3", "--progress", "json")
    report = json.loads(result.out)
    assert report["best"] == "demo-2"
    assert [entry["point"]["lr"] for entry in report["trials"]] == ["0.3", "0.1"]
    events = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    assert {event["type"] for event in events} == {"trial"}
    assert len(events) == 4


def test_optuna_chooses_the_points_if_a_number_of_trials_is_given(
    cli: Cli, jobs: ScriptedJobs
) -> None:
    result = cli(*SWEEP, "--sweep", "lr=0.0:1.0", "--trials", "5", "--parallel", "2")
    assert result.code == 0
    assert len(jobs.submitted) == 5
    assert jobs.most <= 2
    assert "best: demo-" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sweep", "lr"), "invalid sweep 'lr'"),
        (("--sweep", "lr=0.1:0.5"), "lr needs a step"),
        (("--sweep", "lr=1", "--sweep", "lr=2"), "duplicate parameter lr"),
        (("--sweep", "lr=1", "--metric-pattern", "("), "pattern"),
        (("--sweep", "lr=1", "--detach"), "cannot be combined with --detach"),
        (("--sweep", "lr=1", "--dry-run"), "cannot be combined with --detach"),
        (("--parallel", "2"), "--parallel is only valid with --sweep"),
        (("--trials", "2"), "--trials is only valid with --sweep"),
        (("--metric", "loss"), "--metric is only valid with --sweep"),
    ],
)
def test_usage_errors_are_reported_before_anything_runs(
    cli: Cli, jobs: ScriptedJobs, arguments: tuple[str, ...], words: str
) -> None:
    result = cli(*SWEEP, *arguments)
    assert result.code == 2
    assert words in result.err
    assert not jobs.submitted


def test_a_name_in_use_is_an_error_and_replace_removes_finished_jobs(
    cli: Cli, jobs: ScriptedJobs
) -> None:
    assert cli(*SWEEP, "--sweep", "lr=0.1").code == 0
    again = cli(*SWEEP, "--sweep", "lr=0.1")
    assert again.code == 2
    assert "job demo-1 already exists" in again.err
    assert cli(*SWEEP, "--sweep", "lr=0.1", "--replace").code == 0


# -- with real jobs -------------------------------------------------------------------------------

SCRIPT = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--depth", type=int)
given = parser.parse_args()
assert os.environ["DANLU_SWEEP_DEPTH"] == str(given.depth)
with open("spans", "a") as file:
    begun = time.time()
    time.sleep(0.3)  # so that too many at once would overlap
    file.write(f"{begun} {time.time()}\\n")
print(f"loss={abs(given.lr - 0.2) + given.depth:.3f}")
"""

REAL = (
    sys.executable, "-m", "danlu", *SWEEP, "--sweep", "lr=0.1:0.4:0.1", "--sweep", "depth=1:2",
    "--parallel", "2", "--metric-pattern", "loss=([0-9.]+)",
)  # fmt: skip


@pytest.mark.real
@pytest.mark.parametrize("more", [(), ("--trials", "8")])
def test_a_real_sweep_never_runs_more_than_two_and_names_the_best(
    home: Path, more: tuple[str, ...]
) -> None:
    Path("train.py").write_text(SCRIPT)
    result = subprocess.run(
        [*REAL, *more], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert len(rows) == 8
    values = [float(row[-3]) for row in rows]
    assert values == sorted(values)
    expected = {abs(float(row[1]) - 0.2) + int(row[2]) for row in rows[:1]}
    assert values[0] == pytest.approx(expected.pop(), abs=1e-3)
    assert f"best: {rows[0][0]} " in result.stderr
    spans = [
        [float(entry) for entry in line.split()] for line in Path("spans").read_text().splitlines()
    ]
    assert max(sum(a <= begun < b for a, b in spans) for begun, _ in spans) <= 2


@pytest.mark.real
def test_ctrl_c_stops_every_job(home: Path) -> None:
    Path("train.py").write_text(
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(REAL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        logs = home / "jobs"
        pids = _wait_for_two(logs)
        sweep.send_signal(signal.SIGINT)
        out, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, err
    assert "interrupted" in err
    assert out.count("Stopped") == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _wait_for_two(jobs: Path) -> list[str]:
    """The processes of two jobs, once both have written who they are."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        words = [log.read_text().split() for log in jobs.glob("*/logs/*.log")]
        pids = [word[-1] for word in words if word]
        if len(pids) == 2:
            return pids
        time.sleep(0.05)
    raise AssertionError("two jobs did not start")
