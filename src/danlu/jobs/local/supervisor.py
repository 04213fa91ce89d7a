"""The supervisor of one job: observe its replicas, call ``decide``, and apply the decision.

``python -m danlu.jobs.local.supervisor DIRECTORY READY LOCK [SUBMITTER]``, started by the reaper.
READY, LOCK and SUBMITTER are inherited descriptors: the pipe on which to report the start, the
job's lock, and optionally a pidfd of the process whose exit stops the job. All state is in the
job's directory. If the supervisor dies, the job is lost, and the reaper kills its processes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup

from danlu.engine.control_socket import ControlConnection, serve_control_socket
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.engine.types import RunningContainer
from danlu.errors import DanluError, UsageError
from danlu.jobs.local.file_exchange import FILES, RAISED, VALUE
from danlu.jobs.local.job_directory import (
    ControlRequest,
    EventRecord,
    JobDirectory,
    SupervisorSettings,
    utc_now,
)
from danlu.jobs.local.pod import ReplicaEngine
from danlu.jobs.local.replica_attempt import ReplicaAttempt
from danlu.jobs.local.replica_environment import ReplicaEnvironment
from danlu.jobs.local.replica_manager import ReplicaManager
from danlu.jobs.local.views import job_state, replica_views
from danlu.jobs.types import JobView, Submission, job_notes, killed_sentence
from danlu.training.conditions import add_condition
from danlu.training.decide import decide
from danlu.training.framework import Framework
from danlu.training.names import FINISH_TIMEOUT_ANNOTATION
from danlu.training.progress import TrainingProgress
from danlu.training.registry import find_job_framework
from danlu.training.replicas import with_replicas
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Event,
    Job,
    ReplicaId,
    ReplicaPhase,
)
from danlu.util.decoding import decode_json
from danlu.util.files import is_disk_failure
from danlu.util.json_codec import encode

_PR_SET_PDEATHSIG = 1
# Changes often come together. The loop runs this many seconds after the first one.
_DEBOUNCE_SECONDS = 0.005
_LINGER_SECONDS = 1.0
_DISK_RETRY_SECONDS = 0.5
# Replicas inherit the limit, and some programs loop over all possible descriptors.
_MAX_OPEN_FILES = 8192
_REMOVAL_POLL_SECONDS = 1.0
# Launchers of MPI do not wait for their workers.
_EXEC_START_TIMEOUT, _EXEC_POLL_SECONDS = 60.0, 0.02


class _StopRequest(msgspec.Struct, frozen=True):
    """A request to stop the job; ``grace`` None means each pod's own grace period."""

    grace: float | None = None
    why: str = ""


class Supervisor:
    """Runs one job to its end; ``lock`` is the job's open lock file."""

    def __init__(
        self,
        job_dir: JobDirectory,
        submission: Submission,
        settings: SupervisorSettings,
        framework: Framework,
        *,
        lock: int,
    ) -> None:
        self._job_dir = job_dir
        self._submission = submission
        self._settings = settings
        self._framework = framework
        self._job = submission.job
        self._created = utc_now()
        self._changed = anyio.Event()
        self._progress: TrainingProgress | None = None
        self._lock = lock
        self._stop_request: _StopRequest | None = None
        self._stopping_replicas = False
        self._events: deque[EventRecord] = deque()
        self._disk_failure = ""
        self._group: TaskGroup | None = None
        self._exit_requested = False
        self._published_view = b""
        self._environment = ReplicaEnvironment(job_dir, submission, settings)
        self._replicas = ReplicaManager(
            job_dir,
            submission,
            settings,
            framework,
            changed=self.wake,
            environment=self._environment,
        )

    def wake(self) -> None:
        """Run the loop again, because something changed."""
        self._changed.set()

    async def run(self, ready: int, submitter: int | None = None) -> None:
        """Run the job; report on ``ready`` when requests are accepted."""
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            stack.push_async_callback(self._replicas.close)
            await stack.enter_async_context(
                self._environment.serve_progress(self._job, self._on_progress)
            )
            self._replicas.update_topology(self._job)
            self._publish_view()
            # Containers see this directory, and their users must not control the job: the socket's
            # mode keeps them out. MPI's launcher may be any of them.
            self._job_dir.files.mkdir(mode=0o755, exist_ok=True)
            socket = self._job_dir.control_socket
            await group.start(serve_control_socket, socket, self._answer_request)
            if self._replicas.has_agent:
                socket = self._job_dir.exec_socket
                await group.start(serve_control_socket, socket, self._answer_agent, 0o666)
            _notify_ready(ready, SupervisorResponse())
            group.start_soon(self._sample_usage)
            self._group = group
            group.start_soon(self._stop_on_signal)
            group.start_soon(self._wake_on_removal)
            if submitter is not None:
                group.start_soon(self._stop_with_submitter, submitter)
            await self._run_loop(group)
            group.cancel_scope.cancel()

    # -- deciding ---------------------------------------------------------------------------------

    async def _run_loop(self, group: TaskGroup) -> None:
        while not self._exit_requested:
            # Before observing: what changes from here on starts another round.
            self._changed = anyio.Event()
            if self._is_gone():
                await self._abort_removed_job()
                return
            if self._stop_request is not None and not self._job.status.finished:
                if not self._job.status.is_finishing:
                    await self._stop_job(self._stop_request)
                    continue
                # The job has succeeded: `decide` stops and names the replicas that still run.
                self._job = _finish_immediately(self._job)
            decision = self._decide_next()
            if any(isinstance(action, DeleteJob) for action in decision.actions):
                shutil.rmtree(self._job_dir.directory, ignore_errors=True)
                return
            if decision.status.finished:
                await self._finish_job(decision)
                await self._publish_end()
            else:
                self._apply_decision(decision, group)
                self._publish_view()
            if decision.status.finished and decision.requeue_after is None:
                return
            await self._wait_for_change(decision.requeue_after, linger=decision.status.finished)

    def _decide_next(self) -> Decision:
        decision = decide(
            self._job,
            self._replicas.observe(),
            self._framework,
            now=utc_now(),
            backoff=self._settings.pace,
            finish=self._settings.finish,
        )
        self._job = msgspec.structs.replace(self._job, status=decision.status)
        self._replicas.update_status(decision.status)
        return decision

    def _apply_decision(self, decision: Decision, group: TaskGroup) -> None:
        for action in decision.actions:
            match action:
                case CreateReplica(replica, attempt):
                    self._replicas.create_attempt(replica, attempt, group)
                case DeleteReplica(_, uid):
                    group.start_soon(self._replicas.delete_attempt, uid)
                case Event():
                    self._record_event(action)
        try:
            self._replicas.refresh_files()
        except OSError as error:
            self._note_disk_failure(error)

    async def _finish_job(self, decision: Decision) -> None:
        """Stop all replicas, and decide again with their exit codes."""
        self._record_events(decision)
        if self._replicas.attempts():
            await self._stop_replicas(self._stop_request.grace if self._stop_request else None)
            # The counts in the final status include those that have just ended.
            self._record_events(self._decide_next())
            self._replicas.clear_attempts()

    async def _wait_for_change(self, limit: float | None, *, linger: bool) -> None:
        """Wait for a change; a finished job waits long enough for others to see its end."""
        if limit is not None and linger:
            limit = max(limit, _LINGER_SECONDS)
        with anyio.move_on_after(limit):
            await self._changed.wait()
            await anyio.sleep(_DEBOUNCE_SECONDS)

    # -- publishing -------------------------------------------------------------------------------

    def _record_events(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, Event):
                self._record_event(action)

    def _record_event(self, event: Event) -> None:
        self._events.append(EventRecord(utc_now(), event.type, event.reason, event.message))
        self._write_events()

    def _write_events(self) -> None:
        """Write pending events in order; those that cannot be written stay pending."""
        while self._events and not self._is_gone():
            try:
                self._job_dir.append_event(self._events[0])
            except OSError as error:
                self._note_disk_failure(error)
                return
            self._events.popleft()

    def _on_progress(self, progress: TrainingProgress) -> None:
        self._progress = progress
        self._publish_before_end()

    def _publish_view(self) -> None:
        """Write the job's view if it changed; a failed write is retried by the next call."""
        self._disk_failure = self._replicas.flush_logs()
        self._write_events()
        view = self._build_view()
        encoded = encode(view)
        if encoded == self._published_view or self._is_gone():
            return
        try:
            self._job_dir.write_view(view)
        except OSError as error:
            self._note_disk_failure(error)
            return
        self._published_view = encoded

    async def _sample_usage(self) -> None:
        while True:
            self._replicas.measure_usage()
            self._publish_before_end()
            await anyio.sleep(self._settings.sample)

    def _publish_before_end(self) -> None:
        """Write the view, unless it says that the job is finished: then it is the last one.

        Replicas may still be stopping, and their last lines are not in the logs yet.
        """
        if not self._job.status.finished:
            self._publish_view()

    async def _publish_end(self) -> None:
        """Write the end of the job, retrying until it fits on the disk."""
        # The last lines may be the first that do not fit.
        if self._replicas.flush_logs() or self._disk_failure:
            self._job_dir.release_space(all=True)
        # Logs first: a client that sees the end in the view reads them once more, then stops.
        self._replicas.close_logs()
        self._publish_view()
        while self._events or self._published_view != encode(self._build_view()):
            if self._is_gone():
                return
            self._job_dir.release_space(all=True)
            self._publish_view()
            await anyio.sleep(_DISK_RETRY_SECONDS)
        self._job_dir.release_space(all=True)

    def _note_disk_failure(self, error: OSError) -> None:
        """On a full disk, continue with half of the reserved space; raise other errors."""
        if not is_disk_failure(error):
            raise error
        self._disk_failure = error.strerror or str(error)
        self._job_dir.release_space(all=False)

    def _build_view(self) -> JobView:
        latest = self._replicas.latest
        return JobView(
            name=self._job.name,
            kind=self._job.kind,
            framework=self._framework.name,
            state=self._current_state(latest),
            status=self._job.status,
            replicas=replica_views(self._job, self._framework, latest, self._replicas.used),
            progress=self._progress,
            warnings=(
                *self._replicas.warnings(),
                *self._environment.warnings(),
                *self._disk_warnings(),
                *job_notes(self._job.status),
            ),
            created=self._created,
            directory=str(self._submission.directory),
            labels=self._submission.labels,
        )

    def _disk_warnings(self) -> Iterator[str]:
        if self._disk_failure:
            where = self._job_dir.directory.parent
            yield (
                f"the disk of {where} is full ({self._disk_failure}): the job continues, and only"
                " the newest output of its replicas is kept"
            )

    def _current_state(self, latest: Mapping[ReplicaId, ReplicaAttempt]) -> str:
        if self._stop_request is not None and not self._job.status.finished:
            return "Stopping"
        return job_state(self._job, latest)

    # -- requests ---------------------------------------------------------------------------------

    async def _answer_request(self, connection: ControlConnection) -> SupervisorResponse:
        request = decode_json(connection.request, ControlRequest)
        match request.do:
            case "stop":
                self._request_stop(request.grace)
            case "leave":
                self._exit_requested = True
                self.wake()
            case "suspend":
                policy = msgspec.structs.replace(self._job.run_policy, suspend=request.suspended)
                self._update_job(msgspec.structs.replace(self._job, run_policy=policy))
            case "scale":
                self._update_job(with_replicas(self._job, request.replicas, self._framework))
            case "exec":
                return await self._run_exec(request, connection)
            case _:
                raise UsageError(f"unknown request: {request.do}")
        return SupervisorResponse()

    async def _answer_agent(self, connection: ControlConnection) -> SupervisorResponse:
        request = decode_json(connection.request, ControlRequest)
        if request.do != "exec":
            raise UsageError(f"the job's programs cannot request: {request.do}")
        return await self._run_exec(request, connection)

    async def _run_exec(
        self, request: ControlRequest, connection: ControlConnection
    ) -> SupervisorResponse:
        streams = connection.streams()
        engine, main = await self._wait_for_replica(request.target)
        program = await engine.exec(main, request.args, streams)
        connection.close_descriptors()

        async def stop_on_disconnect() -> None:
            while await connection.read_message() is not None:
                pass  # clients send nothing more
            await program.stop(grace=1.0)

        async with anyio.create_task_group() as group:
            group.start_soon(stop_on_disconnect)
            exit = await program.wait()
            group.cancel_scope.cancel()
        error = exit.message if exit.reason == "StartError" else ""
        return SupervisorResponse(error, code=exit.code)

    async def _wait_for_replica(self, target: str) -> tuple[ReplicaEngine, RunningContainer]:
        """Return what runs in a replica, waiting for its start."""
        replica = self._replicas.topology.find_replica(target)
        with anyio.move_on_after(_EXEC_START_TIMEOUT):
            while replica is not None:
                attempt = self._replicas.latest.get(replica)
                if attempt is not None and attempt.phase is ReplicaPhase.RUNNING:
                    assert attempt.engine is not None
                    assert attempt.running is not None
                    return attempt.engine, attempt.running
                await anyio.sleep(_EXEC_POLL_SECONDS)
        raise UsageError(f"replica {target} is not running")

    def _update_job(self, job: Job) -> None:
        self._job = msgspec.structs.replace(job, status=self._job.status)
        self._replicas.update_topology(self._job)
        self.wake()

    def _request_stop(self, grace: float | None = None, why: str = "") -> None:
        """Stop the job; if that is in progress, a shorter ``grace`` takes effect immediately."""
        # A second request without a grace period (a signal, a submitter that exits) must not
        # lengthen the one that is running.
        if self._stop_request is None or grace is not None:
            first_reason = self._stop_request.why if self._stop_request else why
            self._stop_request = _StopRequest(grace, first_reason)
        if self._stopping_replicas and grace is not None and self._group is not None:
            self._group.start_soon(partial(self._replicas.stop_all, grace=grace))
        self.wake()

    async def _stop_job(self, request: _StopRequest) -> None:
        self._publish_view()
        await self._stop_replicas(request.grace)
        self._replicas.clear_attempts()
        time, status = utc_now(), self._job.status
        why = f": {request.why}" if request.why else ""
        latest = self._replicas.latest
        killed = killed_sentence([id for id, attempt in latest.items() if attempt.was_killed])
        killed = f" {killed}." if killed else ""
        reason, message = f"{self._job.kind}Stopped", f"{self._job.name} was stopped{why}.{killed}"
        conditions = add_condition(
            status.conditions, ConditionType.FAILED, reason=reason, message=message, now=time
        )
        status = msgspec.structs.replace(status, conditions=conditions, completion_time=time)
        self._job = msgspec.structs.replace(self._job, status=status)
        self._record_event(Event("Warning" if killed else "Normal", reason, message))

    async def _stop_replicas(self, grace: float | None) -> None:
        self._stopping_replicas = True
        try:
            await self._replicas.stop_all(grace=grace)
        finally:
            self._stopping_replicas = False

    # -- triggers from outside --------------------------------------------------------------------

    async def _stop_on_signal(self) -> None:
        """Stop the job on SIGTERM: sent by a user, at shutdown, or because the reaper died."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            async for _ in received:
                self._request_stop()

    async def _stop_with_submitter(self, submitter: int) -> None:
        """Stop the job when the process of the pidfd ``submitter`` exits.

        The submitter opened it itself (pidfd_open(2)), so it is valid in any namespace, and a later
        process with the same number is not mistaken for it.
        """
        await anyio.wait_readable(submitter)
        self._request_stop(why="the process that submitted it has exited")

    async def _wake_on_removal(self) -> None:
        while not self._is_gone():
            await anyio.sleep(_REMOVAL_POLL_SECONDS)
        self.wake()

    def _is_gone(self) -> bool:
        """Return whether the job's directory was removed: its open lock file was unlinked."""
        return os.fstat(self._lock).st_nlink == 0

    async def _abort_removed_job(self) -> None:
        """Stop a job whose directory was removed, without publishing anything."""
        await self._stop_replicas(None)
        self._replicas.clear_attempts()
        # Files may have been written since the removal. If there is a lock file, though, the
        # directory belongs to a new job of the same name.
        if not self._job_dir.lock.exists():
            shutil.rmtree(self._job_dir.directory, ignore_errors=True)


def _finish_immediately(job: Job) -> Job:
    annotations = {**job.annotations, FINISH_TIMEOUT_ANNOTATION: "0s"}
    return msgspec.structs.replace(job, annotations=annotations)


def _notify_ready(ready: int, result: SupervisorResponse) -> None:
    with suppress(BrokenPipeError):
        os.write(ready, encode(result))
    os.close(ready)


def _raise_fd_limit() -> None:
    """Allow for many replicas: each needs several pipes and descriptors here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(directory: str, ready: int, lock: int, submitter: int | None = None) -> None:
    """Supervise the job in ``directory``."""
    for descriptor in (ready, lock, *(() if submitter is None else (submitter,))):
        os.set_inheritable(descriptor, False)
    # Stop the job if the reaper dies.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # Set if a replica of another job submitted this one.
    for name in (FILES, VALUE, RAISED):
        os.environ.pop(name, None)
    _raise_fd_limit()
    job_dir = JobDirectory(Path(directory))
    try:
        job_dir.record_supervisor_pid()
        submission, settings = job_dir.read_submission(), job_dir.read_settings()
        framework = find_job_framework(submission.job)
        if submission.images:
            ReplicaEnvironment.enter_namespaces(settings)
        supervisor = Supervisor(job_dir, submission, settings, framework, lock=lock)
    except DanluError as error:
        _notify_ready(ready, SupervisorResponse.of(error))
        sys.exit(error.exit_code)
    anyio.run(supervisor.run, ready, submitter)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
