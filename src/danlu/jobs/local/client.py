"""Jobs on this machine, as commands use them: starts supervisors and reads what they write."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread

from danlu.engine.control_client import send_request
from danlu.engine.detached_process import read_report, spawn_program
from danlu.engine.resource_allocator import ledger_file
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.jobs.local import file_exchange
from danlu.jobs.local.directory_removal import remove_directory
from danlu.jobs.local.host_resources import available_gpus
from danlu.jobs.local.job_directory import (
    ControlRequest,
    EventRecord,
    JobDirectory,
    SupervisorSettings,
    utc_now,
)
from danlu.jobs.local.log_files import MergedLogReader
from danlu.jobs.local.pod import requested_gpus
from danlu.jobs.local.pod_fields import describe_unread_fields
from danlu.jobs.local.retention import JobRun, size_of
from danlu.jobs.local.views import mark_lost
from danlu.jobs.local.volumes import HostPath, check_host_path, resolve_volumes
from danlu.jobs.types import JobResult, JobView, LogLine, ReplicaCommand, Submission, longest_grace
from danlu.training.pod_template import pod_spec
from danlu.training.registry import find_job_framework
from danlu.training.types import JobStatus, ReplicaId
from danlu.util.decoding import decode_json
from danlu.util.files import is_disk_failure, private_directory, remove_tree
from danlu.util.json_codec import decode
from danlu.util.locks import lock_is_held
from danlu.util.paths import Paths

_JOB_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_RUN_NAME = re.compile(rf"{_JOB_NAME.pattern}(@[0-9]+)?")
_POLL_SECONDS = 0.05
_READY_TIMEOUT = 30.0
_STOP_TIMEOUT = 3.0
_MIN_LOG_POLL, _MAX_LOG_POLL = 0.01, 0.1
"""Seconds between reads of logs that have no new lines, doubling from the first to the second."""


class LocalJobs:
    """The jobs of one danlu home (:class:`danlu.jobs.types.JobBackend`).

    ``settings`` are those of new supervisors; the directories in them are filled in. With
    ``labels``, new jobs get them, and jobs without them do not exist for the caller.
    """

    def __init__(
        self,
        paths: Paths,
        settings: SupervisorSettings | None = None,
        *,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._paths = paths
        self._root = paths.jobs
        self.labels = labels or {}
        self._settings = msgspec.structs.replace(
            settings or SupervisorSettings("", "", ""),
            data=str(paths.data),
            state=str(paths.state),
            config=str(paths.config),
        )

    # -- starting ---------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Start a job; see :class:`danlu.jobs.types.JobBackend`."""
        job = submission.job
        if not _JOB_NAME.fullmatch(job.name):
            raise UsageError(
                f"invalid job name {job.name!r}",
                hint="use lowercase letters, digits, `-` and `.`",
            )
        check_gpus(submission)
        check_volumes(submission)
        check_init_containers(submission)
        same = JobDirectory(self._root / job.name)
        if same.status.exists() and not self._has_labels(same):
            raise UsageError(f"job {job.name} already exists", hint="choose another --name")
        job = msgspec.structs.replace(job, uid=job.uid or str(uuid.uuid4()))
        labels = {**submission.labels, **self.labels}
        submission = msgspec.structs.replace(submission, job=job, labels=labels)
        # Shielded: a caller that is interrupted still learns the name of a job that was started.
        with anyio.CancelScope(shield=True):
            earlier = await self._archive_run(job.name)
            try:
                job_dir, lock = await to_thread.run_sync(self._create_directory, submission)
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                raise OutsideError(
                    f"cannot start job {job.name}: {error.strerror} in {self._root}",
                    hint="free some space with `danlu jobs rm --all` and `danlu image prune`",
                ) from error
            try:
                await to_thread.run_sync(_start_supervisor, job_dir, lock, submission.tied)
            except DanluError:
                remove_tree(job_dir.directory)
                if earlier is not None:
                    with suppress(OSError):
                        os.rename(earlier, job_dir.directory)
                raise
            finally:
                os.close(lock)
        return job.name

    async def run_again(self, name: str) -> str:
        """Start a finished job as it was submitted, and return its name."""
        job_dir = self._find_directory(name)
        submission = job_dir.read_submission()
        job = msgspec.structs.replace(submission.job, uid="", status=JobStatus())
        with tempfile.TemporaryDirectory() as directory:
            files = None
            if job_dir.sent_files.exists():
                # The directory of the job is renamed before the files are copied from it.
                files = Path(directory, "files")
                await to_thread.run_sync(shutil.copytree, job_dir.sent_files, files)
            return await self.submit(
                msgspec.structs.replace(submission, job=job, files=files, tied=False)
            )

    async def _archive_run(self, name: str) -> Path | None:
        """Rename the directory of a finished job of this name to ``NAME@1``, and return it.

        Raises :class:`UsageError` if that job is not finished.
        """
        job_dir = JobDirectory(self._root / name)
        if not job_dir.status.exists():
            return None
        if not self._read_view(job_dir).finished:
            hint = f"stop it with `danlu jobs stop {name}`, or choose another --name"
            raise UsageError(f"job {name} already exists and is still running", hint=hint)
        await self._dismiss_supervisor(job_dir)
        numbers = [int(run.rpartition("@")[2]) for run in self._list_runs(name)]
        target = self._root / f"{name}@{max(numbers, default=0) + 1}"
        try:
            os.rename(job_dir.directory, target)
        except OSError:
            return None  # another process is submitting a job of the same name
        return target

    async def _dismiss_supervisor(self, job_dir: JobDirectory) -> None:
        """Make the supervisor of a finished job exit, if it is still running."""
        if lock_is_held(job_dir.lock):
            with suppress(UsageError):
                await self._send_request(job_dir, ControlRequest("leave"))
        await _wait_for_lock(job_dir)

    async def runs(self, name: str) -> Sequence[str]:
        """Return the earlier runs of a job's name, latest first: ``NAME@2``, ``NAME@1``."""
        return self._list_runs(name)

    def _list_runs(self, name: str) -> list[str]:
        pattern = re.compile(rf"{re.escape(name)}@([0-9]+)")
        numbers = [
            int(match[1])
            for path in self._root.glob(f"{name}@*")
            if (match := pattern.fullmatch(path.name))
        ]
        return [f"{name}@{number}" for number in sorted(numbers, reverse=True)]

    def _create_directory(self, submission: Submission) -> tuple[JobDirectory, int]:
        """Create the directory of a job, complete from the start, and return its held lock."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = submission.job.name
        new = JobDirectory(private_directory(self._root, f".{name}"))
        try:
            self._write_job_files(new, submission)
        except BaseException:
            remove_tree(new.directory)
            raise
        lock = os.open(new.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            # Of two processes that submit the same name one fails: rename(2) replaces no directory
            # that has files.
            os.rename(new.directory, self._root / name)
        except OSError as error:
            os.close(lock)
            remove_tree(new.directory)
            if not (self._root / name).exists():
                raise
            hint = f"remove it with `danlu jobs rm {name}`, or choose another --name"
            raise UsageError(f"job {name} already exists", hint=hint) from error
        return JobDirectory(self._root / name), lock

    def _write_job_files(self, job_dir: JobDirectory, submission: Submission) -> None:
        job_dir.write_submission(submission)
        # Resolved here: inside a user namespace the supervisor does not know its user's id.
        ledger = self._settings.ledger or str(ledger_file())
        job_dir.write_settings(msgspec.structs.replace(self._settings, ledger=ledger))
        job_dir.logs.mkdir()
        job_dir.reserve_space()
        job_dir.write_view(_initial_view(submission))
        if submission.files is not None:
            file_exchange.copy_files(submission.files, job_dir)

    # -- reading ----------------------------------------------------------------------------------

    async def names(self) -> Sequence[str]:
        """Return the names of all jobs, newest first."""
        return self._list_names()

    def _list_names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        jobs = []
        for path in self._root.iterdir():
            if not path.name.startswith(".") and "@" not in path.name:
                with suppress(FileNotFoundError):
                    modified = (path / "submission.json").stat().st_mtime_ns
                    if self._has_labels(JobDirectory(path)):
                        jobs.append((modified, path.name))
        return [name for _, name in sorted(jobs, reverse=True)]

    def _find_directory(self, name: str) -> JobDirectory:
        job_dir = JobDirectory(self._root / name)
        if _RUN_NAME.fullmatch(name) and job_dir.status.exists() and self._has_labels(job_dir):
            return job_dir
        raise self._not_found_error(name)

    def _has_labels(self, job_dir: JobDirectory) -> bool:
        return not self.labels or self.labels.items() <= job_dir.read_submission().labels.items()

    def _not_found_error(self, name: str) -> UsageError:
        existing = ", ".join(self._list_names())
        hint = f"existing jobs: {existing}" if existing else "there are no jobs here"
        return UsageError(f"job {name!r} not found", hint=hint)

    async def view(self, name: str) -> JobView:
        """Return the current view of a job."""
        return self._read_view(self._find_directory(name))

    def _read_view(self, job_dir: JobDirectory) -> JobView:
        # Check the lock first: a supervisor writes the job's end before it releases the lock.
        alive = lock_is_held(job_dir.lock)
        try:
            view = job_dir.read_view()
        except FileNotFoundError as error:
            raise self._not_found_error(job_dir.name) from error
        if "@" in job_dir.name:
            # The directory was renamed after the job's end.
            view = msgspec.structs.replace(view, name=job_dir.name)
        return view if alive or view.finished else mark_lost(view, job_dir.last_error())

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        """Yield the job's view now and after every change, until it is finished."""
        job_dir, before = self._find_directory(name), None
        while True:
            view = self._read_view(job_dir)
            if view != before:
                yield view
            if view.finished:
                return
            before = view
            await _wait_for_change(job_dir)

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines of the replicas' logs, ordered by time."""
        job_dir = self._find_directory(name)
        reader = MergedLogReader(job_dir.logs, tail=tail, newest=newest)
        pause = _MIN_LOG_POLL
        try:
            while True:
                # Check before reading: a finished job writes no more lines.
                last = not follow or self._is_over(job_dir)
                lines = reader.read(replicas or self._logged_replicas(job_dir))
                for line in lines:
                    yield line
                if reader.has_more:
                    await anyio.lowlevel.checkpoint()
                    continue
                if last:
                    return
                pause = _MIN_LOG_POLL if lines else min(2 * pause, _MAX_LOG_POLL)
                await anyio.sleep(pause)
        finally:
            reader.close()

    def _is_over(self, job_dir: JobDirectory) -> bool:
        try:
            return self._read_view(job_dir).finished
        except UsageError:
            return True  # removed meanwhile

    def _logged_replicas(self, job_dir: JobDirectory) -> list[ReplicaId]:
        """Return the replicas that have a log, including those removed by scaling down."""
        types = {view.id.type.lower(): view.id.type for view in job_dir.read_view().replicas}
        replicas = []
        for file in job_dir.logs.glob("*.log"):
            type, _, index = file.stem.rpartition("-")
            if type in types and index.isdigit():
                replicas.append(ReplicaId(types[type], int(index)))
        return sorted(replicas)

    def log_directory(self, name: str) -> Path:
        """Return the directory of a job's logs (:mod:`.log_files`)."""
        return self._find_directory(name).logs

    def list_logged_replicas(self, name: str) -> Sequence[ReplicaId]:
        """Return the replicas that have a log, including those removed by scaling down."""
        return self._logged_replicas(self._find_directory(name))

    def read_stamp(self, name: str = "") -> Hashable:
        """Return a value that differs after a job has changed; without a name, the list of jobs."""
        try:
            if not name:
                return os.stat(self._root).st_mtime_ns
            job_dir = JobDirectory(self._root / name)
            return _status_stamp(job_dir), lock_is_held(job_dir.lock)
        except FileNotFoundError:
            return None

    async def submission(self, name: str) -> Submission:
        """Return what was submitted."""
        return self._find_directory(name).read_submission()

    async def events(self, name: str) -> tuple[EventRecord, ...]:
        """Return the events of a job, in order."""
        return self._find_directory(name).read_events()

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        """Return the last command of a replica."""
        try:
            return self._find_directory(name).read_command(replica)
        except FileNotFoundError as error:
            raise UsageError(f"{replica} of job {name} has not run yet") from error

    async def result(self, name: str) -> JobResult:
        """Wait for the end of a job and return its result."""
        job_dir = self._find_directory(name)
        async for view in self.watch(name):
            last = view
        values, submission = file_exchange.read_values(job_dir), job_dir.read_submission()
        value = values.get(str(file_exchange.leader_of(submission)))
        return JobResult(
            last,
            value,
            values,
            file_exchange.read_errors(job_dir),
            trusted=file_exchange.may_unpickle(submission),
        )

    # -- changing ---------------------------------------------------------------------------------

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        """Stop a job, and wait until none of its replicas runs."""
        job_dir = self._find_directory(name)
        if self._read_view(job_dir).finished:
            return
        limit = grace
        if limit is None:
            default = job_dir.read_settings().grace
            limit = longest_grace(job_dir.read_submission().job, default=default)
        with anyio.move_on_after(limit + _STOP_TIMEOUT), suppress(UsageError):
            await self._send_request(job_dir, ControlRequest("stop", grace=grace))
            async for _ in self.watch(name):
                pass
        if not self._is_over(job_dir):
            # The supervisor hangs. When it dies, its reaper kills everything it left.
            job_dir.kill_supervisor()
            await _wait_for_lock(job_dir)

    async def remove(self, name: str) -> None:
        """Delete a finished job with its logs, and all earlier runs of its name."""
        if not self._read_view(self._find_directory(name)).finished:
            hint = f"stop it with `danlu jobs stop {name}`"
            raise UsageError(f"job {name} is still running", hint=hint)
        for run in (*self._list_runs(name), name):
            await self.remove_run(run)

    async def remove_run(self, name: str) -> None:
        """Delete one finished run; raises :class:`UsageError` if it is not finished."""
        job_dir = self._find_directory(name)
        if not self._read_view(job_dir).finished:
            raise UsageError(f"job {name} is still running")
        await self._dismiss_supervisor(job_dir)
        await to_thread.run_sync(remove_directory, job_dir.directory, self._paths)

    async def all_runs(self) -> Sequence[JobRun]:
        """Return all runs with their sizes, including running jobs and earlier runs."""
        return await to_thread.run_sync(self._list_all_runs)

    def _list_all_runs(self) -> list[JobRun]:
        runs = []
        for name in self._list_names():
            for run in (name, *self._list_runs(name)):
                with suppress(UsageError):
                    runs.append(self._describe_run(self._find_directory(run)))
        return runs

    def _describe_run(self, job_dir: JobDirectory) -> JobRun:
        view = self._read_view(job_dir)
        ended = view.status.completion_time
        if view.finished and ended is None:
            # A lost job: its supervisor could not record the end.
            ended = datetime.fromtimestamp(job_dir.status.stat().st_mtime, UTC)
        size = size_of(job_dir.directory)
        return JobRun(job_dir.name, view.state, ended if view.finished else None, size)

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job or resume it."""
        request = ControlRequest("suspend", suspended=suspended)
        await self._send_request(self._find_active(name), request)

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Change the number of replicas, by type."""
        request = ControlRequest("scale", replicas=dict(replicas))
        await self._send_request(self._find_active(name), request)

    def _find_active(self, name: str) -> JobDirectory:
        job_dir = self._find_directory(name)
        if self._read_view(job_dir).finished:
            raise UsageError(f"job {name} is already finished")
        return job_dir

    async def _send_request(self, job_dir: JobDirectory, request: ControlRequest) -> None:
        try:
            data = await to_thread.run_sync(
                send_request,
                job_dir.control_socket,
                msgspec.json.encode(request),
                abandon_on_cancel=True,
            )
        except OSError as error:
            raise UsageError(f"job {job_dir.name} is already finished") from error
        response = decode_json(data, SupervisorResponse)
        # Supervisors of older versions sent no code.
        if response.error:
            raise UsageError(response.error, hint=response.hint)


def check_gpus(submission: Submission) -> None:
    """Raise :class:`MachineError` if a job requests GPUs that this machine cannot provide."""
    specs = submission.job.replicas.values()
    total = sum(requested_gpus(spec.template) * spec.replicas for spec in specs)
    if not total:
        return
    available = len(available_gpus())
    if total > available:
        raise MachineError(
            f"the job requests {total} GPUs, but this machine has {available}",
            hint="request fewer, or none with --gpu 0",
        )


def check_volumes(submission: Submission) -> None:
    """Raise :class:`UsageError` for a volume that this machine cannot provide."""
    job, objects = submission.job, submission.objects
    # They do not exist yet.
    claims = dict.fromkeys(find_job_framework(job).list_claims(job), Path("/"))
    for spec in job.replicas.values():
        for name, source in resolve_volumes(pod_spec(spec.template), objects, claims).items():
            if isinstance(source, HostPath):
                check_host_path(name, source)


def check_init_containers(submission: Submission) -> None:
    """Raise :class:`UsageError` for an init container that runs next to the others."""
    for spec in submission.job.replicas.values():
        for container in pod_spec(spec.template).get("initContainers") or ():
            if container.get("restartPolicy") == "Always":
                raise UsageError(
                    f"init container {container['name']}: restartPolicy Always (a native sidecar)"
                    " is not supported on this machine",
                    hint="move it to `containers`",
                )


def _initial_view(submission: Submission) -> JobView:
    """Return the view of a job whose supervisor has not published one yet."""
    job = submission.job
    return JobView(
        name=job.name,
        kind=job.kind,
        framework=find_job_framework(job).name,
        state="Pending",
        status=job.status,
        warnings=describe_unread_fields(submission),
        created=utc_now(),
        directory=str(submission.directory),
        labels=submission.labels,
    )


def _start_supervisor(job_dir: JobDirectory, lock: int, tied: bool) -> None:
    """Start the reaper, which starts the supervisor, and wait until that accepts requests.

    With ``tied`` the job is stopped when this process exits. Raises the supervisor's error.
    """
    reaper = str(Path(__file__).parent / "reaper.py")
    submitter = [os.pidfd_open(os.getpid())] if tied else []
    # The numbers of its descriptors: the report, the lock and the submitter.
    numbers = ["3", "4", sys.executable, *(["5"] if tied else [])]
    command = [sys.executable, "-I", "-S", reaper, str(job_dir.directory), *numbers]
    try:
        pid, reading = spawn_program(
            command, job_dir.supervisor_log, descriptors=(lock, *submitter)
        )
    finally:
        for descriptor in submitter:
            os.close(descriptor)
    # The reaper forks and its first process exits immediately.
    os.waitpid(pid, 0)
    report = read_report(reading)
    if not report:
        reason = job_dir.last_error() or "it printed no error"
        raise OutsideError(f"the job's supervisor did not start: {reason}")
    decode(report, SupervisorResponse).raise_error()


async def _wait_for_lock(job_dir: JobDirectory) -> None:
    """Wait until the supervisor and its reaper are gone, within a limit."""
    with anyio.move_on_after(_READY_TIMEOUT):
        while lock_is_held(job_dir.lock):
            await anyio.sleep(_POLL_SECONDS)


async def _wait_for_change(job_dir: JobDirectory) -> None:
    """Wait until the status is rewritten, one second at most: the supervisor may have died."""
    before = _status_stamp(job_dir)
    for _ in range(20):
        await anyio.sleep(_POLL_SECONDS)
        if _status_stamp(job_dir) != before:
            return


def _status_stamp(job_dir: JobDirectory) -> tuple[int, int]:
    try:
        status = os.stat(job_dir.status)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns
