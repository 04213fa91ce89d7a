"""Exchange files with a job: those sent with it, and the values its replicas return.

In the job's directory, ``sent/`` is a copy of :attr:`Submission.files`, and ``results/REPLICA/``
belongs to one replica and is visible to its containers only.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from danlu.errors import UsageError
from danlu.jobs.local.job_directory import JobDirectory
from danlu.jobs.types import Submission
from danlu.sandbox.types import Mount
from danlu.training.registry import find_job_framework
from danlu.training.types import ReplicaId
from danlu.util.disk_full import reports_disk_full
from danlu.util.files import is_disk_failure

FILES = "DANLU_FILES"
"""Variable with the directory of the files sent with the job."""
VALUE = "DANLU_VALUE_FILE"
"""Variable with the path to which a replica writes its encoded value."""
RAISED = "DANLU_RAISED_FILE"
"""Variable with the path to which a replica writes its encoded exception."""
RESULT_FORM = "DANLU_RESULT_FORM"
"""Variable that allows a replica to write pickles."""
DISPLAY = "DANLU_DISPLAY_FILE"
"""Variable with the path to which the leader writes its displays."""

#: The label of jobs that notebooks inside an environment started: the environment's name.
ENVIRONMENT_LABEL = "environment"

FILES_MOUNT = "/run/danlu-files"
_RESULTS_MOUNT = "/run/danlu-results"
_VALUE_NAME, _RAISED_NAME = "value", "raised"
_DISPLAY_NAME = "displays"

#: Maximum size of a reported exception, in bytes.
_MAX_RAISED = 8 << 20
_READ_BITS, _TRAVERSE_BITS = 0o444, 0o555


# -- sent to the job ------------------------------------------------------------------------------


def copy_files(source: Path, job_dir: JobDirectory) -> None:
    """Copy ``source`` into the directory of a new job, following symbolic links.

    The copy is readable by any user that a container may run as. Raises :class:`UsageError` for
    files that cannot be copied.
    """
    try:
        shutil.copytree(source, job_dir.sent_files)
    except (OSError, shutil.Error) as error:
        # copytree collects several errors and keeps only their texts.
        if is_disk_failure(error) or reports_disk_full(str(error)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise UsageError(f"cannot send {source} with the job: {error}") from error
    for path in (job_dir.sent_files, *job_dir.sent_files.rglob("*")):
        path.chmod(path.stat().st_mode | (_TRAVERSE_BITS if path.is_dir() else _READ_BITS))


# -- passed to a replica --------------------------------------------------------------------------


def exchange_env(
    job_dir: JobDirectory, submission: Submission, replica: ReplicaId, *, contained: bool
) -> Mapping[str, str]:
    """Return the variables for a replica's main container, and clear its results directory.

    ``contained`` is whether it is a container rather than a process.
    """
    env: dict[str, str] = {}
    if submission.files is not None:
        env[FILES] = FILES_MOUNT if contained else str(job_dir.sent_files)
    if _wants_results(submission):
        directory = _reset_directory(job_dir.results(replica))
        seen = _RESULTS_MOUNT if contained else str(directory)
        env[RAISED] = f"{seen}/{_RAISED_NAME}"
        if submission.trusted:
            env[RESULT_FORM] = "pickle"
        if submission.displays and replica == leader_of(submission):
            env[DISPLAY] = f"{seen}/{_DISPLAY_NAME}"
        if _wants_value(submission, replica):
            env[VALUE] = f"{seen}/{_VALUE_NAME}"
    return env


def exchange_mounts(
    job_dir: JobDirectory, submission: Submission, replica: ReplicaId
) -> tuple[Mount, ...]:
    """Return the mounts that belong to :func:`exchange_env`."""
    mounts = []
    if submission.files is not None:
        mounts.append(Mount(FILES_MOUNT, job_dir.sent_files, readonly=True))
    if _wants_results(submission):
        mounts.append(Mount(_RESULTS_MOUNT, job_dir.results(replica)))
    return tuple(mounts)


def _wants_results(submission: Submission) -> bool:
    return submission.value != "none" or submission.files is not None


def _wants_value(submission: Submission, replica: ReplicaId) -> bool:
    if submission.value == "leader":
        return replica == leader_of(submission)
    return submission.value == "all"


def _reset_directory(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    # A container may run as any user. Other users of the host cannot enter the job's directory.
    directory.chmod(0o777)
    for name in (_VALUE_NAME, _RAISED_NAME, _DISPLAY_NAME):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    return directory


# -- returned by the job --------------------------------------------------------------------------


def leader_of(submission: Submission) -> ReplicaId:
    """Return the replica whose value is the job's value."""
    return find_job_framework(submission.job).leader(submission.job)


def may_unpickle(submission: Submission) -> bool:
    """Return whether the replicas' results may be unpickled.

    Earlier versions did not record it; there, processes are the user's own and may. Code in an
    environment may have started its jobs without the user, and only its kernels open their results.
    """
    if ENVIRONMENT_LABEL in submission.labels:
        return False
    return not submission.images if submission.trusted is None else submission.trusted


def read_values(job_dir: JobDirectory) -> dict[str, bytes]:
    """Return the encoded values by replica name."""
    return _read_results(job_dir, _VALUE_NAME, None)


def read_errors(job_dir: JobDirectory) -> dict[str, bytes]:
    """Return the encoded exceptions of the last attempts by replica name."""
    return _read_results(job_dir, _RAISED_NAME, _MAX_RAISED)


def _read_results(job_dir: JobDirectory, name: str, limit: int | None) -> dict[str, bytes]:
    results = {}
    for directory in sorted(job_dir.directory.glob("results/*")):
        with suppress(OSError):
            results[directory.name] = read_untrusted_file(directory / name, limit)
    return results


def display_file(job_dir: JobDirectory) -> Path | None:
    """Return the file with the leader's displays; None if there are none (yet)."""
    submission = job_dir.read_submission()
    path = job_dir.results(leader_of(submission)) / _DISPLAY_NAME
    return path if submission.displays and path.is_file() else None


def open_untrusted_file(path: Path) -> BinaryIO:
    """Open a file written by a container; raises :class:`OSError`.

    Only regular files are accepted: a symbolic link could point to any file of the host, and
    reading a pipe could block forever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return open(descriptor, "rb")


def read_untrusted_file(path: Path, limit: int | None = None) -> bytes:
    """Read a file like :func:`open_untrusted_file`; fails if it is larger than ``limit`` bytes."""
    with open_untrusted_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(f"{path} is larger than {limit} bytes")
        # No more than was checked, even if the file grows.
        return file.read(size)
