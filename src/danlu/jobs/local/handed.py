"""What a job is handed and what it hands back: files at its start, values at its end.

In the job's directory ``sent/`` is a copy of :attr:`Submission.files`, and ``results/REPLICA/`` is
each replica's own, which only its containers see.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from danlu.errors import UsageError
from danlu.jobs.local.state import Place
from danlu.jobs.local.types import Volume
from danlu.jobs.types import Submission
from danlu.training.types import ReplicaId

__all__ = [
    "FILES",
    "RAISED",
    "VALUE",
    "copy_files",
    "leader",
    "mounts",
    "raised",
    "values",
    "variables",
]

FILES = "DANLU_FILES"
"""The variable that names the directory of what was sent with the job."""
VALUE = "DANLU_VALUE_FILE"
"""The variable that tells a replica where to put its value, pickled."""
RAISED = "DANLU_RAISED_FILE"
"""The variable that tells a replica where to put what it raised, pickled."""

FILES_MOUNT = "/run/danlu-files"
_RESULTS_MOUNT = "/run/danlu-results"
_VALUE_NAME, _RAISED_NAME = "value.pickle", "raised.pickle"
_READABLE, _ENTERABLE = 0o444, 0o555


# -- what is handed in ----------------------------------------------------------------------------


def copy_files(source: Path, place: Place) -> None:
    """Copy ``source`` into the directory of a new job; links are followed.

    Whoever a container runs as may read it. Raises :class:`UsageError` for what cannot be copied.
    """
    try:
        shutil.copytree(source, place.sent)
    except (OSError, shutil.Error) as error:
        raise UsageError(f"{source} cannot be sent with the job: {error}") from error
    for path in (place.sent, *place.sent.rglob("*")):
        path.chmod(path.stat().st_mode | (_ENTERABLE if path.is_dir() else _READABLE))


# -- what a replica is told -----------------------------------------------------------------------


def variables(
    place: Place, submission: Submission, replica: ReplicaId, *, contained: bool
) -> Mapping[str, str]:
    """What its main container is told, at a new attempt: what an earlier one left goes."""
    found: dict[str, str] = {}
    if submission.files is not None:
        found[FILES] = FILES_MOUNT if contained else str(place.sent)
    if _results_asked(submission):
        own = _fresh(place.results(replica))
        seen = _RESULTS_MOUNT if contained else str(own)
        found[RAISED] = f"{seen}/{_RAISED_NAME}"
        if _is_asked(submission, replica):
            found[VALUE] = f"{seen}/{_VALUE_NAME}"
    return found


def mounts(place: Place, submission: Submission, replica: ReplicaId) -> tuple[Volume, ...]:
    """What its containers see of that."""
    found = []
    if submission.files is not None:
        found.append(Volume(place.sent, FILES_MOUNT, readonly=True))
    if _results_asked(submission):
        found.append(Volume(place.results(replica), _RESULTS_MOUNT))
    return tuple(found)


def _results_asked(submission: Submission) -> bool:
    return submission.value != "none" or submission.files is not None


def _is_asked(submission: Submission, replica: ReplicaId) -> bool:
    """Whether a replica is asked for a value."""
    if submission.value == "leader":
        return replica == leader(submission)
    return submission.value == "all"


def _fresh(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    # Whoever a container runs as; nobody else comes into the job's directory.
    directory.chmod(0o777)
    for name in (_VALUE_NAME, _RAISED_NAME):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    return directory


# -- what is handed back --------------------------------------------------------------------------


def leader(submission: Submission) -> ReplicaId:
    """The replica whose value is the job's."""
    from danlu.training.registry import framework_of

    return framework_of(submission.job.kind).leader(submission.job)


def values(place: Place) -> dict[str, bytes]:
    """The values that replicas left, by their names."""
    return _left(place, _VALUE_NAME)


def raised(place: Place) -> dict[str, bytes]:
    """What replicas raised last, by their names."""
    return _left(place, _RAISED_NAME)


def _left(place: Place, name: str) -> dict[str, bytes]:
    found = {}
    for path in sorted(place.directory.glob(f"results/*/{name}")):
        with suppress(OSError):
            found[path.parent.name] = path.read_bytes()
    return found
