"""What a job's programs find in addition to their pod: files, volumes, progress reporting."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from danlu.jobs.local.host_resources import available_cores
from danlu.jobs.local.job_directory import JobDirectory, SupervisorSettings
from danlu.jobs.local.pod import ReplicaEngine
from danlu.jobs.local.pod_fields import describe_unread_fields
from danlu.jobs.local.progress_server import CREDENTIALS_MOUNT, ProgressServer
from danlu.jobs.local.topology import runs_in_container
from danlu.jobs.local.volumes import create_volumes, remove_volumes, resolve_volumes
from danlu.jobs.types import Submission
from danlu.sandbox import userns
from danlu.sandbox.types import Mount
from danlu.training.framework import GeneratedFile
from danlu.training.pod_template import pod_spec
from danlu.training.progress import TrainingProgress
from danlu.training.registry import find_job_framework
from danlu.training.types import Job, ReplicaId
from danlu.util.files import write_atomic
from danlu.util.paths import Paths

CHECKPOINTS_MOUNT = "/run/danlu-checkpoints"
CHECKPOINT_VARIABLE = "DANLU_CHECKPOINT_DIR"
"""Variable with the directory of checkpoints (``danlu.checkpoint_dir``)."""


class ReplicaEnvironment:
    """The environment of one job's replicas on this machine."""

    def __init__(
        self, job_dir: JobDirectory, submission: Submission, settings: SupervisorSettings
    ) -> None:
        self._job_dir = job_dir
        self._submission = submission
        self._settings = settings
        self._framework = find_job_framework(submission.job)
        self._progress: ProgressServer | None = None
        self._volumes_root = job_dir.directory / "volumes"
        self._checkpoints = checkpoint_directory(Path(settings.data), submission)
        self._tmpdir: TemporaryDirectory[str] | None = None

    @staticmethod
    def enter_namespaces(settings: SupervisorSettings) -> None:
        """Make this process one that can run containers."""
        # Jobs of processes never load the container engine.
        from danlu.jobs.local.container_engine import enter_namespaces

        # Cached: the cgroup file system is hidden afterwards.
        available_cores()
        enter_namespaces(_settings_paths(settings))

    @asynccontextmanager
    async def serve_progress(
        self, job: Job, on_progress: Callable[[TrainingProgress], None]
    ) -> AsyncIterator[None]:
        """Serve progress reports within the block, and remove what it made at its end."""
        server = ProgressServer(
            on_progress,
            job=job,
            leader=self._framework.leader(job),
            directory=self._job_dir.directory / "progress",
            certificates=_settings_paths(self._settings).certificates,
        )
        async with server:
            self._progress = server
            try:
                yield
            finally:
                for directory in self._volumes_root.glob("*"):
                    remove_volumes(directory)
                if self._tmpdir is not None:
                    self._tmpdir.cleanup()
                with suppress(OSError):  # most jobs leave it empty
                    self._checkpoints.rmdir()

    def warnings(self) -> tuple[str, ...]:
        """Return what is ignored or could not be provided."""
        progress = () if self._progress is None else self._progress.warnings()
        return (*describe_unread_fields(self._submission), *progress)

    def variables(self, replica: ReplicaId) -> Mapping[str, str]:
        """Return environment variables, which those of the job override."""
        contained = runs_in_container(self._submission, self._framework, replica)
        variables = dict(self._framework.one_machine_variables)
        if _create_checkpoint_directory(self._checkpoints):
            directory = CHECKPOINTS_MOUNT if contained else str(self._checkpoints)
            variables[CHECKPOINT_VARIABLE] = directory
        if self._framework.needs_own_tmpdir and not contained:
            variables["TMPDIR"] = self._create_tmpdir(replica)
        if self._progress is not None:
            files = CREDENTIALS_MOUNT if contained else None
            variables |= self._progress.environment(replica, files=files)
        return variables

    def _create_tmpdir(self, replica: ReplicaId) -> str:
        """Create the temporary directory of a replica, with a path short enough for sockets."""
        if self._tmpdir is None:
            self._tmpdir = TemporaryDirectory(prefix="danlu-", ignore_cleanup_errors=True)
        directory = Path(self._tmpdir.name) / str(replica)
        directory.mkdir(exist_ok=True)
        return str(directory)

    def create_volumes(self, replica: ReplicaId) -> Mapping[str, Path]:
        """Create the volumes of a replica's pod for a new attempt; return their paths by name."""
        template = self._submission.job.replicas[replica.type].template
        claims = self._create_claims()
        wanted = resolve_volumes(pod_spec(template), self._submission.objects, claims)
        directory = self._volumes_root / str(replica)
        remove_volumes(directory)
        return create_volumes(wanted, directory, mounting=userns.has_entered()) if wanted else {}

    def _create_claims(self) -> Mapping[str, Path]:
        """Create the directories of the job's claims, which its replicas share."""
        directories = {}
        for claim, outlives in self._framework.list_claims(self._submission.job).items():
            directory = self._job_dir.claims / claim
            if outlives:
                data = Path(self._settings.data)
                directory = kept_claim_directory(data, self._submission, claim)
            _create_open_directory(directory)
            directories[claim] = directory
        return directories

    def mounts(self, replica: ReplicaId) -> tuple[Mount, ...]:
        """Return the mounts of all containers: the framework's files and progress credentials."""
        mounts = [Mount(self._framework.files_directory, self._job_dir.files, readonly=True)]
        if _create_checkpoint_directory(self._checkpoints):
            mounts.append(Mount(CHECKPOINTS_MOUNT, self._checkpoints))
        if self._progress is not None and self._progress.port is not None:
            credentials = self._progress.files(replica)
            mounts.append(Mount(CREDENTIALS_MOUNT, credentials, readonly=True))
        return tuple(mounts)

    def open_container_engine(self) -> ReplicaEngine:
        """Open the engine that runs containers."""
        # Jobs of processes never load the container engine.
        from danlu.jobs.local.container_engine import ContainerEngine
        from danlu.util.config import load_configuration

        port = None if self._progress is None else self._progress.port
        ports = () if port is None else (port,)
        paths = _settings_paths(self._settings)
        return ContainerEngine(paths, load_configuration(paths.config_file), ports=ports)


def checkpoint_directory(data: Path, submission: Submission) -> Path:
    """Return the directory of a job's checkpoints, by its name and its project."""
    return data / "checkpoints" / f"{submission.job.name}-{_hash_project(submission)}"


def kept_claim_directory(data: Path, submission: Submission, claim: str) -> Path:
    """Return the directory of a claim that outlives its job, by its name and the job's project."""
    return data / "claims" / f"{claim}-{_hash_project(submission)}"


def _hash_project(submission: Submission) -> str:
    return hashlib.sha256(os.fsencode(submission.directory.resolve())).hexdigest()[:8]


def _create_checkpoint_directory(directory: Path) -> bool:
    """Return whether the directory exists; on a full disk jobs run without it."""
    try:
        _create_open_directory(directory)
    except OSError:
        return False
    return True


def _create_open_directory(directory: Path) -> None:
    """Create a directory for containers of any user; other users cannot enter its parent."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)


def _settings_paths(settings: SupervisorSettings) -> Paths:
    return Paths(config=Path(settings.config), data=Path(settings.data), state=Path(settings.state))


def write_framework_files(
    job_dir: JobDirectory, files: Mapping[str, GeneratedFile], *, python: str
) -> None:
    """Write the framework's files, with our agent instead of one that needs a cluster."""
    for name, file in files.items():
        text = _write_agent(job_dir, python) if file.agent else file.text
        mode = 0o755 if file.executable else 0o644
        write_atomic(job_dir.files / name, text.encode(), mode=mode, sync=False)


def _write_agent(job_dir: JobDirectory, python: str) -> str:
    """Return a script that runs a command in another replica, from a process or a container.

    The agent and its socket are in the same directory.
    """
    for end in ("py", "pl"):
        source = (Path(__file__).parent / f"exec_agent.{end}").read_bytes()
        write_atomic(job_dir.files / f"danlu-exec.{end}", source, sync=False)
    return (
        "#!/bin/sh\n"
        'here=$(dirname -- "$0")\n'
        f"for python in '{python}' python3 python; do\n"
        '    if command -v "$python" >/dev/null; then\n'
        '        exec "$python" -I -S "$here/danlu-exec.py" "$here/exec.sock" "$@"\n'
        "    fi\n"
        "done\n"
        "if command -v perl >/dev/null; then\n"
        '    exec perl "$here/danlu-exec.pl" "$here/exec.sock" "$@"\n'
        "fi\n"
        'echo "danlu needs Python or Perl to start MPI workers, and found neither" >&2\n'
        "exit 127\n"
    )
