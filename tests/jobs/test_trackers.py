"""A job is one run of its trackers, and the jobs of a sweep are a group of runs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from danlu.jobs.kubernetes.manifests import prepare_job
from danlu.jobs.trackers import tracker_variables
from danlu.jobs.types import Submission
from danlu.sweeps.jobs import build_trial_submission
from danlu.training.registry import find_framework
from danlu.training.types import RestartPolicy
from tests.jobs.kubernetes.support import job as cluster_job
from tests.jobs.local.support import lines_of, local_jobs, spec, submission
from tests.serving.servers import install_packages

SWEEP = {"sweep": "tuning", "sweep.lr": "0.1", "sweep.layers": "2,3"}

PROGRAM = """\
import os, sys
import mlflow, wandb
rank, started = int(os.environ["RANK"]), os.path.exists("started")
with mlflow.start_run() as run:
    mlflow.log_metric(f"loss{rank}", 1.0, step=int(started))
with wandb.init() as tracked:
    tracked.log({"loss": 1.0})
    print(run.info.run_id, run.data.tags["mlflow.runName"], tracked.id, tracked.name, tracked.group)
if rank == 0 and not started:
    open("started", "w").close()
    sys.exit(1)
"""

#: As much of MLflow as creates a run.
MLFLOW = """\
import contextlib, json, os, types

@contextlib.contextmanager
def start_run(tags):
    global given
    given = tags
    yield types.SimpleNamespace(info=types.SimpleNamespace(run_id="0a1b"))

class MlflowClient:
    def update_run(self, run, status):
        context = json.loads(os.environ["MLFLOW_RUN_CONTEXT"])
        with open("created", "a") as file:
            print(json.dumps([given, context, run, status]), file=file)
"""

READ_RUNS = """\
import json, mlflow
runs = mlflow.search_runs(experiment_names=["digits"], output_format="list")
print(json.dumps([[run.info.status, run.data.tags, run.data.metrics] for run in runs]))
"""


def start(**fields: Any) -> Submission:
    return submission(Path("/project"), spec("train --lr {lr}"), name="train", **fields)


@pytest.mark.parametrize("given", [{}, {"LR": "1", "TENSORBOARD_LOGGING_DIR": "/logs"}])
def test_without_a_tracker_nothing_is_added(given: dict[str, str]) -> None:
    assert tracker_variables(start(labels=SWEEP), given) == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"WANDB_MODE": "offline"},
            {"WANDB_NAME": "train", "WANDB_RUN_GROUP": "train", "WANDB_RESUME": "allow"},
        ),
        (
            {"WANDB_PROJECT": "x", "WANDB_NAME": "mine", "WANDB_RESUME": "never"},
            {"WANDB_RUN_GROUP": "train"},
        ),
        ({"TENSORBOARD_LOGGING_DIR": "runs/{job}"}, {"TENSORBOARD_LOGGING_DIR": "runs/train"}),
        ({"MLFLOW_TRACKING_URI": "x", "MLFLOW_RUN_CONTEXT": "{}"}, {}),
    ],
)
def test_variables_name_the_job_unless_the_user_did(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert tracker_variables(start(), given) == expected


def test_points_of_a_sweep_are_a_group_with_their_values() -> None:
    added = tracker_variables(start(labels=SWEEP), {"WANDB_MODE": "", "MLFLOW_TRACKING_URI": "x"})
    assert added["WANDB_RUN_GROUP"] == "tuning"
    # A comma separates tags.
    assert added["WANDB_TAGS"] == "lr=0.1,layers=2 3"
    assert json.loads(added["MLFLOW_RUN_CONTEXT"]) == {
        "mlflow.runName": "train",
        "danlu.job": "train",
        "danlu.sweep": "tuning",
        "lr": "0.1",
        "layers": "2,3",
    }


def wandb_ids(lines: list[str]) -> dict[str, set[str]]:
    """Return the run IDs that each rank printed."""
    ids: dict[str, set[str]] = {}
    for line in lines:
        rank, run = line.split()
        ids.setdefault(rank, set()).add(run)
    return ids


@pytest.mark.anyio
async def test_restarts_continue_the_run_of_their_replica(tmp_path: Path) -> None:
    script = 'echo "$RANK $WANDB_RUN_ID"; ! mkdir "$DANLU_CHECKPOINT_DIR/$RANK" 2>/dev/null'
    workers = spec(script, 2, RestartPolicy.ON_FAILURE, env=[{"name": "WANDB_MODE", "value": "x"}])
    jobs = local_jobs(tmp_path / "home")
    for name in ("first", "second"):
        await jobs.submit(submission(tmp_path, workers, name=name))
    first, second = [
        wandb_ids([line.data.decode() for line in await lines_of(jobs, name)])
        for name in ("first", "second")
    ]
    found = [run for ids in (first, second) for runs in ids.values() for run in runs]
    assert first.keys() == second.keys() == {"0", "1"}
    assert len(found) == len(set(found)) == 4


@pytest.mark.anyio
async def test_processes_that_torchrun_starts_in_a_replica_share_no_run(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text('echo "[$WANDB_RUN_GROUP] [$WANDB_RUN_ID]"')
    env = [{"name": "WANDB_MODE", "value": "offline"}]
    command = ["/bin/sh", "torchrun", "--nproc-per-node=2", "train.py"]
    jobs = local_jobs(tmp_path / "home")
    await jobs.submit(submission(tmp_path, spec("", command=command, env=env)))
    assert [line.data for line in await lines_of(jobs)] == [b"[job] []"]


def test_the_jobs_of_a_sweep_have_its_labels() -> None:
    point = {"lr": "0.1"}
    framework = find_framework("pytorch")
    base = start(labels={"team": "vision"})
    base = msgspec.structs.replace(base, job=msgspec.structs.replace(base.job, name="tuning"))
    trial = build_trial_submission(
        base, point, framework=framework, name="tuning-1", substituted=["lr"]
    )
    added = tracker_variables(trial, {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "x"})
    assert (added["WANDB_NAME"], added["WANDB_RUN_GROUP"]) == ("tuning-1", "tuning")
    assert added["WANDB_TAGS"] == "lr=0.1"
    assert json.loads(added["MLFLOW_RUN_CONTEXT"])["danlu.sweep"] == "tuning"


@pytest.mark.anyio
async def test_all_replicas_and_restarts_write_to_the_run_that_the_first_one_created(
    tmp_path: Path,
) -> None:
    (tmp_path / "mlflow.py").write_text(MLFLOW)
    script = 'echo "$MLFLOW_RUN_ID"; ! mkdir "$DANLU_CHECKPOINT_DIR/$RANK" 2>/dev/null'
    env = [{"name": "MLFLOW_EXPERIMENT_NAME", "value": "digits"}]
    workers = spec(script, 2, RestartPolicy.ON_FAILURE, env=env)
    jobs = local_jobs(tmp_path / "home")
    await jobs.submit(submission(tmp_path, workers, name="train", python=sys.executable))
    assert [line.data for line in await lines_of(jobs, "train")] == [b"0a1b"] * 4
    assert (await jobs.result("train")).view.warnings == ()
    (created,) = (tmp_path / "created").read_text().splitlines()
    assert json.loads(created) == [
        {"mlflow.source.name": f"/bin/sh -c {shlex.quote(script)}"},
        {"mlflow.runName": "train", "danlu.job": "train"},
        "0a1b",
        "SCHEDULED",
    ]


@pytest.mark.anyio
async def test_a_job_whose_python_has_no_mlflow_runs_and_says_so(tmp_path: Path) -> None:
    env = [{"name": "MLFLOW_EXPERIMENT_NAME", "value": "digits"}]
    workers = spec('echo "[$MLFLOW_RUN_ID]"', 2, env=env)
    jobs = local_jobs(tmp_path / "home")
    (tmp_path / "mlflow.py").write_text("raise ImportError('no mlflow here')\n")
    await jobs.submit(submission(tmp_path, workers, python=sys.executable))
    assert [line.data for line in await lines_of(jobs)] == [b"[]", b"[]"]
    view = (await jobs.result("job")).view
    (warning,) = view.warnings
    assert view.state == "Succeeded"
    assert "the job has no MLflow run" in warning
    assert "(ImportError: no mlflow here)" in warning


def test_replicas_of_a_cluster_have_runs_of_their_own_in_one_group() -> None:
    def environment(**given: str) -> dict[str, Any]:
        env = [{"name": name, "value": value} for name, value in given.items()]
        ready = prepare_job(cluster_job("train", env=env), namespace="default")
        spec = ready.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        return {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}

    plain = environment(OTHER="1")
    found = environment(
        WANDB_API_KEY="k", TENSORBOARD_LOGGING_DIR="$(PLACE)/{job}", MLFLOW_TRACKING_URI="http://x"
    )
    assert not [name for name in plain if "WANDB" in name or "MLFLOW" in name]
    assert found["WANDB_RUN_GROUP"] == "train"
    assert found["WANDB_RUN_ID"].endswith("-$(DANLU_REPLICA_TYPE)-$(DANLU_REPLICA_INDEX)")
    assert {"DANLU_REPLICA_TYPE", "DANLU_REPLICA_INDEX"} < found.keys()
    assert found["TENSORBOARD_LOGGING_DIR"] == "$(PLACE)/train"
    assert json.loads(found["MLFLOW_RUN_CONTEXT"])["danlu.job"] == "train"
    assert environment(WANDB_RUN_ID="mine", WANDB_MODE="online")["WANDB_RUN_ID"] == "mine"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.anyio
async def test_mlflow_and_wandb_have_one_run_of_a_job_with_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install_packages(tmp_path / "packages", "mlflow==3.17.2", "wandb==0.31.0")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    for name, value in {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db",
        "MLFLOW_EXPERIMENT_NAME": "digits",
        "MLFLOW_DISABLE_TELEMETRY": "1",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["python", "program.py"]
    workers = spec("", 2, RestartPolicy.ON_FAILURE, command=command)
    jobs = local_jobs(tmp_path / "home", grace=30.0)
    await jobs.submit(submission(tmp_path, workers, name="train", python=sys.executable))
    lines = [line.data.decode().split() for line in await lines_of(jobs, "train")]
    view = (await jobs.result("train")).view
    assert (view.state, view.warnings) == ("Succeeded", ())
    printed = [line for line in lines if len(line) == 5 and len(line[0]) == 32]
    runs, names, ids, wandb_names, groups = map(set, zip(*printed, strict=True))
    assert len(printed) == 3
    assert (len(runs), names) == (1, {"train"})
    assert (len(ids), wandb_names, groups) == (2, {"train", "train-worker-1"}, {"train"})
    directories = [
        path.name.split("-", 3)[3] for path in (tmp_path / "wandb").glob("offline-run-*")
    ]
    assert len(directories) == 3
    ((status, tags, metrics),) = await read_runs()
    assert status == "FINISHED"
    assert (tags["danlu.job"], tags["mlflow.source.name"]) == (
        "train",
        f"{sys.executable} program.py",
    )
    assert metrics == {"loss0": 1.0, "loss1": 1.0}


async def read_runs() -> list[Any]:
    done = await anyio.run_process([sys.executable, "-c", READ_RUNS])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Any])
