"""Find the model that a finished job wrote: jobs write into their project's directory."""

from __future__ import annotations

import os
from datetime import datetime
from functools import partial
from pathlib import Path

import anyio
import msgspec

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.backends import local_backend
from danlu.serving.model_directory import read_model_directory
from danlu.serving.predictors.registry import choose_predictor
from danlu.util.sanitize import escape_unprintable

#: Directories of a project in which no model is looked for.
_IGNORED = ("node_modules", "__pycache__")


class JobModel(msgspec.Struct, frozen=True):
    """The project of a job, and the model that it wrote: a directory or a file."""

    project: Path
    model: Path


def find_job_model(name: str, model: Path | None, settings: Settings) -> JobModel:
    """Return the model of a job that succeeded on this machine.

    ``model`` is a path in the job's project. Without it, the model is the file or directory at the
    project's top for which there is a ready-made predictor and which was written while the job ran.
    Raises :class:`UsageError` if the job has not succeeded, or if no file or more
    than one fits.
    """
    view = anyio.run(partial(local_backend(settings).view, name))
    if view.state != "Succeeded":
        raise UsageError(
            f"job {name} has not succeeded: {view.state}", hint=f"see `danlu jobs show {name}`"
        )
    project = Path(view.directory)
    if model is not None:
        return JobModel(project, project / model)
    start, end = view.created, view.status.completion_time
    found = [path for path in sorted(project.iterdir()) if _is_model(path, start, end)]
    if len(found) == 1:
        return JobModel(project, found[0])
    names = ", ".join(escape_unprintable(path.name) for path in found)
    what = f"job {name} wrote several models: {names}" if found else f"job {name} wrote no model"
    raise UsageError(what, hint=f"name it: `danlu pack MODEL_DIR --from {name}`")


def _is_model(path: Path, start: datetime | None, end: datetime | None) -> bool:
    if path.name.startswith(".") or path.name in _IGNORED or path.is_symlink():
        return False
    try:
        model = read_model_directory(path)
        times = [os.lstat(model.path / file.path).st_mtime for file in model.files]
        choose_predictor("", model)
    except (UsageError, OSError):
        return False
    latest = max(times)
    # A file system's clock may be a tick behind.
    return (start is None or latest >= start.timestamp() - 1) and (
        end is None or latest <= end.timestamp() + 1
    )
