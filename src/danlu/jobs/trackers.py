"""Variables that make a job one run of its experiment tracker: MLflow, W&B, TensorBoard.

A tracker is used if the job has one of its variables; without any, nothing is added. The user's own
values take precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from danlu.jobs.types import Submission
from danlu.training.framework import Framework
from danlu.training.types import Job, ReplicaType

#: Replaced by the job's name, because event files do not name it.
_JOB_PLACEHOLDER = "{job}"

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
