"""Variables that make a job one run of its experiment tracker: MLflow, W&B, TensorBoard.

A tracker is used if the job has one of its variables; without any, nothing is added. The user's own
values take precedence.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence

import anyio
import msgspec

from danlu.jobs.types import Submission
from danlu.training.framework import Framework
from danlu.training.registry import find_job_framework
from danlu.training.types import Job, ReplicaId, ReplicaType

#: Replaced by the job's name, because event files do not name it.
_JOB_PLACEHOLDER = "{job}"

_EXPERIMENT_VARIABLES = ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")

#: Only MLflow chooses the ID of a run. The job's program changes the state when it starts.
_CREATE_RUN = """\
import sys
import mlflow
with mlflow.start_run(tags={"mlflow.source.name": sys.argv[1]}) as run:
    pass
mlflow.MlflowClient().update_run(run.info.run_id, status="SCHEDULED")
print(run.info.run_id)
"""

# MLflow itself would try for a quarter of an hour.
_CREATE_RUN_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# The first use of a database creates its tables.
_CREATE_RUN_TIMEOUT_SECONDS = 300.0

#: The labels of a sweep's jobs (:func:`danlu.sweeps.jobs.build_trial_submission`).
_SWEEP_LABEL = "sweep"
_MAX_TAG_LENGTH = 64


def tracker_variables(submission: Submission, given: Mapping[str, str]) -> dict[str, str]:
    """Return the tracker variables that all replicas of a job share.

    ``given`` are the variables that the program has without them.
    """
    job, labels = submission.job.name, submission.labels
    sweep = labels.get(_SWEEP_LABEL, "")
    values = {
        name.removeprefix(f"{_SWEEP_LABEL}."): value
        for name, value in labels.items()
        if name.startswith(f"{_SWEEP_LABEL}.")
    }
    added: dict[str, str] = {}
    if _uses_wandb(given):
        tags = (f"{name}={value}".replace(",", " ") for name, value in values.items())
        added |= {
            "WANDB_NAME": job,
            "WANDB_RUN_GROUP": sweep or job,
            "WANDB_RESUME": "allow",
            "WANDB_TAGS": ",".join(tag[:_MAX_TAG_LENGTH] for tag in tags),
        }
    if any(name.startswith("MLFLOW_") for name in given):
        tags_by_name = {"mlflow.runName": job, "danlu.job": job, "danlu.sweep": sweep, **values}
        context = {name: value for name, value in tags_by_name.items() if value}
        added["MLFLOW_RUN_CONTEXT"] = msgspec.json.encode(context).decode()
    added = {name: value for name, value in added.items() if value and name not in given}
    directory = given.get("TENSORBOARD_LOGGING_DIR", "")
    if _JOB_PLACEHOLDER in directory:
        added["TENSORBOARD_LOGGING_DIR"] = directory.replace(_JOB_PLACEHOLDER, job)
    return added


def needs_wandb_run(
    job: Job, framework: Framework, types: Iterable[ReplicaType], given: Mapping[str, str]
) -> bool:
    """Whether each replica of these types continues its W&B run when it is restarted.

    Of two processes that write to one run, one loses its history: those that a launcher starts in a
    replica, such as torchrun, cannot share one.
    """
    return (
        _uses_wandb(given)
        and "WANDB_RUN_ID" not in given
        and all(
            framework.computes(job, type) and framework.count_processes(job, type) == 1
            for type in types
        )
    )


def _uses_wandb(given: Mapping[str, str]) -> bool:
    return any(name.startswith("WANDB_") for name in given)


class TrackerRuns:
    """The runs of a job of this machine, which its restarted replicas continue."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._lock = anyio.Lock()
        self._mlflow_run: str | None = None
        self._warnings: tuple[str, ...] = ()

    def warnings(self) -> tuple[str, ...]:
        """Return why the job has no common run."""
        return self._warnings

    async def variables(
        self, replica: ReplicaId, given: Mapping[str, str], *, command: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return the variables of one replica's program.

        ``command`` is that of a process, which writes to the same stores as a process of danlu.
        """
        added = tracker_variables(self._submission, given)
        job, framework = self._submission.job, find_job_framework(self._submission.job)
        if needs_wandb_run(job, framework, [replica.type], given):
            suffix = "" if replica == framework.leader(job) else f"-{replica}"
            added["WANDB_RUN_ID"] = f"{job.uid.replace('-', '')[:16]}{suffix}"
            if "WANDB_NAME" in added:
                added["WANDB_NAME"] += suffix
        named = any(given.get(name) for name in _EXPERIMENT_VARIABLES)
        if command and named and "MLFLOW_RUN_ID" not in given:
            async with self._lock:  # the first replica creates it
                if self._mlflow_run is None:
                    self._mlflow_run = await self._create_mlflow_run(command, {**given, **added})
            if self._mlflow_run:
                added["MLFLOW_RUN_ID"] = self._mlflow_run
        return added

    async def _create_mlflow_run(self, command: Sequence[str], given: Mapping[str, str]) -> str:
        """Create the job's run with its own Python; return its ID, empty if that fails."""
        python, error = self._submission.python, f"no answer in {_CREATE_RUN_TIMEOUT_SECONDS:g} s"
        try:
            with anyio.fail_after(_CREATE_RUN_TIMEOUT_SECONDS):
                done = await anyio.run_process(
                    [python, "-c", _CREATE_RUN, shlex.join(command)],
                    cwd=self._submission.directory,
                    env={**_CREATE_RUN_ENVIRONMENT, **given},
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            last = _last_line(done.stderr if done.returncode else done.stdout)
            if not done.returncode:
                return last
            error = last
        except TimeoutError:
            pass
        except OSError as failure:
            error = str(failure)
        self._warnings = (
            f"the job has no MLflow run: {python} cannot create it ({error}); each"
            " start of a replica creates one",
        )
        return ""


def _last_line(output: bytes) -> str:
    return output.decode(errors="replace").strip().rpartition("\n")[2]
