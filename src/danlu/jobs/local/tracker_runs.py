"""The runs of a job in its experiment trackers, which restarted replicas continue."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from tempfile import TemporaryFile

import anyio
import msgspec

from danlu.errors import DanluError
from danlu.jobs.local.pod import ReplicaContainer, ReplicaEngine
from danlu.jobs.trackers import needs_wandb_run, tracker_variables
from danlu.jobs.types import Submission
from danlu.training.registry import find_job_framework

_EXPERIMENT_VARIABLES = ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")

#: Only MLflow chooses the ID of a run. The job's program changes the state when it starts.
_CREATE_RUN = """\
import sys
import mlflow
with mlflow.start_run(tags={"mlflow.source.name": sys.argv[1]}) as run:
    pass
mlflow.MlflowClient().update_run(run.info.run_id, status="SCHEDULED")
print("created run", run.info.run_id)
"""
_CREATED = re.compile(r"^created run (\w+)$", re.MULTILINE)

# MLflow itself would try for a quarter of an hour.
_CREATE_RUN_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
# The first use of a database creates its tables.
_CREATE_RUN_TIMEOUT_SECONDS = 300.0

_MAX_OUTPUT_BYTES = 64 << 10


class TrackerRuns:
    """Names the runs of the replicas of a job.

    ``find_engine`` returns the engine of a container.
    """

    def __init__(
        self, submission: Submission, find_engine: Callable[[ReplicaContainer], ReplicaEngine]
    ) -> None:
        self._submission = submission
        self._find_engine = find_engine
        self._lock = anyio.Lock()
        self._mlflow_run: str | None = None
        self._warnings: tuple[str, ...] = ()

    def warnings(self) -> tuple[str, ...]:
        """Return why the job has no common run."""
        return self._warnings

    async def add_variables(self, main: ReplicaContainer) -> ReplicaContainer:
        """Return the main container of a replica with the variables of its trackers."""
        replica, job = main.replica, self._submission.job
        given: Mapping[str, str] = {**({} if main.image else os.environ), **main.environment}
        added = tracker_variables(self._submission, given)
        framework = find_job_framework(job)
        if needs_wandb_run(job, framework, [replica.type], given):
            suffix = "" if replica == framework.leader(job) else f"-{replica}"
            added["WANDB_RUN_ID"] = f"{job.uid.replace('-', '')[:16]}{suffix}"
            if "WANDB_NAME" in added:
                added["WANDB_NAME"] += suffix
        main = msgspec.structs.replace(main, environment={**main.environment, **added})
        named = any(given.get(name) for name in _EXPERIMENT_VARIABLES)
        if not named or "MLFLOW_RUN_ID" in given:
            return main
        async with self._lock:  # the first replica creates it
            if self._mlflow_run is None:
                self._mlflow_run = await self._create_mlflow_run(main)
        run = {"MLFLOW_RUN_ID": self._mlflow_run} if self._mlflow_run else {}
        return msgspec.structs.replace(main, environment={**main.environment, **run})

    async def _create_mlflow_run(self, main: ReplicaContainer) -> str:
        """Create the job's run where its program runs; return its ID, empty if that fails."""
        python = "python" if main.image else self._submission.python
        container = msgspec.structs.replace(
            main,
            args=(python, "-c", _CREATE_RUN, shlex.join(main.args)),
            arguments=False,
            environment={**_CREATE_RUN_ENVIRONMENT, **main.environment},
        )
        error = f"no answer in {_CREATE_RUN_TIMEOUT_SECONDS:g} s"
        with TemporaryFile() as file:
            try:
                with anyio.move_on_after(_CREATE_RUN_TIMEOUT_SECONDS):
                    await self._run_program(container, output=file.fileno())
                    file.seek(0)
                    output = file.read(_MAX_OUTPUT_BYTES).decode(errors="replace")
                    if created := _CREATED.search(output):
                        return created[1]
                    error = output.strip().rpartition("\n")[2] or "it printed nothing"
            except (DanluError, OSError) as failure:
                error = str(failure)
        self._warnings = (
            f"the job has no MLflow run: {python} cannot create it ({error}); each start of a"
            " replica creates one",
        )
        return ""

    async def _run_program(self, container: ReplicaContainer, *, output: int) -> None:
        # If the start were cancelled halfway, nobody would stop the program.
        with anyio.CancelScope(shield=True):
            running = await self._find_engine(container).start(container, output=output)
        try:
            await running.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await running.stop(grace=0)
            raise
