"""The program of a pipeline's step: run a job, and write its metrics, model and name."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from danlu.api.jobs import add_details, program_fields, raise_on_failure
from danlu.engine.settings import load_settings
from danlu.jobs.backends import is_remote
from danlu.submission.options import TrainOptions
from danlu.submission.run import run_job


class ModelArtifact(Protocol):
    """A ``kfp.dsl.Model``: what is at ``path`` is uploaded to ``uri``."""

    uri: str
    metadata: dict[str, Any]

    @property
    def path(self) -> str:
        """The file or directory on this machine."""


class MetricsArtifact(Protocol):
    """A ``kfp.dsl.Metrics``."""

    def log_metric(self, metric: str, value: float) -> None:
        """Add a metric."""


_MODEL_MOUNT = "/run/danlu-model"


def run_step(
    program: str,
    manifest: str,
    args: Sequence[Any],
    options: Mapping[str, Any],
    *,
    metrics: MetricsArtifact,
    model: ModelArtifact,
    job: str,
) -> None:
    """Run the job of a step, and write its outputs; ``job`` is the file for its name.

    Raises :class:`~danlu.errors.JobFailed`.
    """
    # Pipelines know no integers.
    keywords: dict[str, Any] = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in options.items()
    }
    environment = dict(keywords.pop("environment", None) or {})
    if is_remote(keywords.get("on", "")):
        environment["DANLU_MODEL_URI"] = model.uri
    else:
        # Processes are given the directory itself.
        Path(model.path).mkdir(parents=True, exist_ok=True)
        environment["DANLU_MODEL_DIR"] = _MODEL_MOUNT
        volumes = keywords.pop("volumes", None) or ()
        keywords["volumes"] = [*volumes, f"{model.path}:{_MODEL_MOUNT}"]
    if manifest:
        keywords |= {"file": "-", "text": manifest}
    else:
        keywords |= program_fields(program, args)
    keywords |= {"environment": environment, "tied": True, "python": sys.executable}
    with add_details():
        summary, result = run_job(
            TrainOptions.from_keywords(Path.cwd(), **keywords),
            load_settings(),
            log=partial(print, flush=True),
        )
    Path(job).parent.mkdir(parents=True, exist_ok=True)
    Path(job).write_text(summary.name)
    model.metadata |= {"job": summary.name, "framework": result.view.framework}
    progress = result.view.progress
    for name, value in progress.metrics.items() if progress is not None else ():
        if math.isfinite(value):  # JSON has no others
            metrics.log_metric(name, value)
    with add_details():
        raise_on_failure(summary)
