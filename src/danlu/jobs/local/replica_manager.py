"""The replicas of a job: starts attempts at them, stops them, and observes their state."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from danlu.engine.gpu.usage import GpuMeter, GpuUsage
from danlu.engine.resource_allocator import ResourceAllocator
from danlu.engine.types import UsageRate
from danlu.jobs.local.file_exchange import exchange_env, exchange_mounts
from danlu.jobs.local.host_resources import (
    available_cores,
    available_gpus,
    thread_environment,
)
from danlu.jobs.local.job_directory import JobDirectory, SupervisorSettings, utc_now
from danlu.jobs.local.log_files import LogWriter, log_file
from danlu.jobs.local.pod import (
    PodContainers,
    PodContext,
    ReplicaContainer,
    ReplicaEngine,
    build_pod,
    requested_gpus,
)
from danlu.jobs.local.process_engine import ProcessEngine
from danlu.jobs.local.replica_attempt import ReplicaAttempt
from danlu.jobs.local.replica_environment import ReplicaEnvironment, write_framework_files
from danlu.jobs.local.topology import (
    LocalTopology,
    build_topology,
    render_local_pod,
    runs_in_container,
)
from danlu.jobs.local.tracker_runs import TrackerRuns
from danlu.jobs.types import ReplicaCommand, Submission
from danlu.sandbox.types import ResourceUsage
from danlu.training.framework import Framework
from danlu.training.replicas import replica_ids
from danlu.training.types import Job, JobStatus, ObservedReplicas, ReplicaId, ReplicaPhase
from danlu.util.files import is_disk_failure

_GPU_POLL_SECONDS = 0.5
# For all replicas together, when the job ends on a full disk.
_MAX_FINAL_LOG_BYTES = 64 << 10
_MEMORY_GRANULARITY = 1 << 20


class ReplicaManager:
    """All attempts of one job.

    ``changed`` is called on every change of an attempt. ``environment`` provides what programs
    find in addition to their pod. ``used`` is the last measurement by uid of the attempt.
    """

    def __init__(
        self,
        job_dir: JobDirectory,
        submission: Submission,
        settings: SupervisorSettings,
        framework: Framework,
        *,
        changed: Callable[[], None],
        environment: ReplicaEnvironment,
    ) -> None:
        self.latest: dict[ReplicaId, ReplicaAttempt] = {}
        self.used: Mapping[str, UsageRate] = {}
        self._samples: Mapping[str, tuple[float, ResourceUsage]] = {}
        self.topology = LocalTopology({})
        self._job_dir = job_dir
        self._submission = submission
        self._settings = settings
        self._framework = framework
        self._on_change = changed
        self._environment = environment
        self._allocator = ResourceAllocator(Path(settings.ledger), job_dir.directory)
        self._processes = ProcessEngine(orphanage=os.getppid())
        self._containers: ReplicaEngine | None = None
        self._attempts: dict[str, ReplicaAttempt] = {}
        self._logs: dict[ReplicaId, LogWriter] = {}
        self._gpus: dict[str, tuple[int, ...]] = {}
        self._trackers = TrackerRuns(submission, self._engine_for)
        self._host_gpus: tuple[int, ...] | None = None
        self._gpu_meter = GpuMeter()
        self._count = 0
        self._files_written_for: tuple[ReplicaId, ...] | None = None
        self.has_agent = False
        """Whether programs of a replica start programs in others."""

    # -- the job ----------------------------------------------------------------------------------

    def update_topology(self, job: Job) -> None:
        """Assign a location to each replica that ``job`` should have now."""
        self._job = job
        self.topology = build_topology(
            self._submission,
            job,
            framework=self._framework,
            allocator=self._allocator,
            job_dir=self._job_dir,
        )
        self._files_written_for = None
        self.refresh_files()

    def update_status(self, status: JobStatus) -> None:
        """Start attempts from now on with this status, which says how often each was restarted."""
        self._job = msgspec.structs.replace(self._job, status=status)

    def refresh_files(self) -> None:
        """Write the framework's files again if the set of running replicas has changed."""
        running = tuple(
            attempt.id
            for attempt in self._attempts.values()
            if attempt.phase is ReplicaPhase.RUNNING
        )
        if running != self._files_written_for:
            files = self._framework.files(self._job, self.topology, running)
            self.has_agent = any(file.agent for file in files.values())
            write_framework_files(
                self._job_dir, files, python=self._submission.python or sys.executable
            )
            self._files_written_for = running

    def warnings(self) -> tuple[str, ...]:
        """Return what this machine could not enforce or provide, and lost log lines."""
        lost = (_lost_lines_warning(id, log) for id, log in sorted(self._logs.items()) if log.lost)
        engines = [self._processes, *([self._containers] if self._containers else [])]
        stopped = (text for attempt in self.latest.values() for text in attempt.warnings())
        own = (*(text for engine in engines for text in engine.warnings()), *stopped, *lost)
        return (*self._trackers.warnings(), *own)

    def close_logs(self) -> None:
        """Write all remaining lines; those that don't fit on the disk are lost."""
        for log in self._logs.values():
            log.close(last_bytes=_MAX_FINAL_LOG_BYTES // len(self._logs))

    def flush_logs(self) -> str:
        """Write the lines that could not be written before; return the error, or empty."""
        for log in self._logs.values():
            log.flush()
        return next((log.failure for log in self._logs.values() if log.failure), "")

    def observe(self) -> ObservedReplicas:
        """Return the state of all attempts as input for ``decide``."""
        return ObservedReplicas(tuple(attempt.observe() for attempt in self._attempts.values()))

    def attempts(self) -> Sequence[ReplicaAttempt]:
        """Return all attempts that have not been deleted."""
        return tuple(self._attempts.values())

    def measure_usage(self) -> None:
        """Measure what the attempts have used since the last call."""
        samples, used = {}, {}
        in_use = [gpu for attempt in self.attempts() for gpu in attempt.gpus]
        gpus = {gpu.index: gpu for gpu in self._gpu_meter.measure(in_use)} if in_use else {}
        for attempt in self.attempts():
            usage = attempt.usage()
            if usage is not None:
                samples[attempt.uid] = time.monotonic(), usage
                rate = _add_gpu_usage(
                    _usage_rate(self._samples.get(attempt.uid), samples[attempt.uid]),
                    [gpus[index] for index in attempt.gpus if index in gpus],
                )
                used[attempt.uid] = rate
                if rate.cpu:
                    attempt.active = utc_now()
        self._samples, self.used = samples, used

    # -- starting ---------------------------------------------------------------------------------

    def create_attempt(self, replica: ReplicaId, number: int, group: TaskGroup) -> None:
        """Start an attempt at ``replica``."""
        self._count += 1
        attempt = ReplicaAttempt(
            replica,
            number,
            uid=f"{replica}.{self._count}",
            grace=self._settings.grace,
            changed=self._on_change,
        )
        self._attempts[attempt.uid] = self.latest[replica] = attempt
        group.start_soon(self._run_attempt, attempt)

    async def _run_attempt(self, attempt: ReplicaAttempt) -> None:
        pod = partial(self._build_pod, attempt)
        await attempt.run(pod, engine=self._engine_for, log=self._open_log(attempt.id))

    async def _build_pod(self, attempt: ReplicaAttempt) -> PodContainers:
        attempt.gpus = await self._acquire_gpus(attempt)
        rendered = render_local_pod(self._job, self._framework, attempt.id, self.topology)
        pod = build_pod(rendered, self._submission, self._pod_context(attempt))
        main = await self._trackers.add_variables(pod.main)
        pod = msgspec.structs.replace(pod, main=main)
        try:
            command = _replica_command(pod.main, self._submission)
            self._job_dir.write_command(attempt.id, command)
        except OSError as error:
            # The replica can run even if `jobs show --command` won't know its command.
            if not is_disk_failure(error):
                raise
        return pod

    def _pod_context(self, attempt: ReplicaAttempt) -> PodContext:
        location = self.topology.locations[attempt.id]
        exchange = self._job_dir, self._submission, attempt.id
        contained = runs_in_container(self._submission, self._framework, attempt.id)
        return PodContext(
            replica=attempt.id,
            attempt=attempt.number,
            mark=f"{self._job.uid}.{attempt.uid}",
            main=self._framework.container,
            host=location.name,
            address=location.address,
            hosts=self.topology.hosts(),
            gpus=attempt.gpus,
            environment={
                "PYTHONUNBUFFERED": "1",
                **self._environment.variables(attempt.id),
                **self._submission.environment,
            },
            main_environment=exchange_env(*exchange, contained=contained),
            main_defaults=self._thread_variables(attempt.id),
            volumes=self._environment.create_volumes(attempt.id),
            mounts=(*self._environment.mounts(attempt.id), *exchange_mounts(*exchange)),
        )

    def _thread_variables(self, replica: ReplicaId) -> Mapping[str, str]:
        """Return the variables that limit the libraries' threads to the replica's cores."""
        cores = available_cores() / self._submission.concurrency
        replicas = tuple(replica_ids(self._job, self._framework))
        return thread_environment(
            self._job, self._framework, replica, members=replicas, cores=cores
        )

    def _engine_for(self, container: ReplicaContainer) -> ReplicaEngine:
        if not container.image:
            return self._processes
        if self._containers is None:
            self._containers = self._environment.open_container_engine()
        return self._containers

    def _open_log(self, replica: ReplicaId) -> LogWriter:
        if replica not in self._logs:
            path = log_file(self._job_dir.logs, replica)
            self._logs[replica] = LogWriter(
                path, limit=self._settings.log_bytes, keep=self._settings.log_files
            )
        return self._logs[replica]

    # -- GPUs -------------------------------------------------------------------------------------

    async def _acquire_gpus(self, attempt: ReplicaAttempt) -> tuple[int, ...]:
        """Wait until the whole job can have its GPUs, and return those of this attempt."""
        number = self._requested_gpus(attempt.id)
        if not number:
            return ()
        replicas = replica_ids(self._job, self._framework)
        total = sum(map(self._requested_gpus, replicas))
        if self._host_gpus is None:
            self._host_gpus = await to_thread.run_sync(available_gpus)
        while True:
            granted = self._allocator.allocate_gpus(total, self._host_gpus)
            if granted is not None:
                attempt.waiting_reason = ""
                return self._assign_gpus(attempt.uid, number, granted)
            users = " and ".join(self._allocator.list_other_users(self._host_gpus))
            why = f"in use by {users}" if users else "after jobs that came first"
            reason = f"{total} {'GPU' if total == 1 else 'GPUs'}, {why}"
            if attempt.waiting_reason != reason:
                attempt.waiting_reason = reason
                self._on_change()
            await anyio.sleep(_GPU_POLL_SECONDS)

    def _requested_gpus(self, replica: ReplicaId) -> int:
        return requested_gpus(self._job.replicas[replica.type].template)

    def _assign_gpus(self, uid: str, number: int, granted: Sequence[int]) -> tuple[int, ...]:
        alive = {attempt.uid for attempt in self._attempts.values()}
        taken = {gpu for owner, gpus in self._gpus.items() if owner in alive for gpu in gpus}
        self._gpus[uid] = tuple(gpu for gpu in granted if gpu not in taken)[:number]
        return self._gpus[uid]

    # -- stopping ---------------------------------------------------------------------------------

    async def delete_attempt(self, uid: str) -> None:
        """Stop an attempt and forget it; it stays in ``latest`` until there is a new one."""
        attempt = self._attempts[uid]
        attempt.deleting = True
        await attempt.stop()
        self._attempts.pop(uid, None)
        if not self._attempts and any(self._gpus.values()):
            self._allocator.release_gpus()
        self._on_change()

    async def stop_all(self, *, grace: float | None = None) -> None:
        """Stop all attempts at the same time; they can still be observed.

        Each has ``grace`` seconds; None is its pod's own grace period.
        """
        async with anyio.create_task_group() as group:
            for attempt in self.attempts():
                group.start_soon(partial(attempt.stop, grace=grace))

    def clear_attempts(self) -> None:
        """Forget all attempts, which must have ended."""
        self._attempts.clear()

    async def close(self) -> None:
        """Stop what still runs, and release all resources."""
        for engine in (self._processes, self._containers):
            if engine is not None:
                await engine.close()
        self.close_logs()
        # On failure they are released anyway when the job's lock is.
        with suppress(OSError):
            self._allocator.release()


def _usage_rate(
    before: tuple[float, ResourceUsage] | None, after: tuple[float, ResourceUsage]
) -> UsageRate:
    # Rounded, so that the view of an idle replica does not change.
    memory = after[1].memory // _MEMORY_GRANULARITY * _MEMORY_GRANULARITY
    if before is None or after[0] <= before[0]:
        return UsageRate(None, memory)
    cores = (after[1].cpu - before[1].cpu) / (after[0] - before[0])
    return UsageRate(max(0.0, round(cores, 2)), memory)


def _add_gpu_usage(rate: UsageRate, gpus: Sequence[GpuUsage]) -> UsageRate:
    shares = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return msgspec.structs.replace(
        rate,
        gpu=sum(shares) / len(shares) if shares else None,
        gpu_memory=sum(gpu.memory for gpu in gpus) if gpus else None,
    )


def _lost_lines_warning(replica: ReplicaId, log: LogWriter) -> str:
    return f"{log.lost:,} lines of {replica} were lost: disk full"


def _replica_command(container: ReplicaContainer, submission: Submission) -> ReplicaCommand:
    names = {image.digest: image.name or name for name, image in submission.images.items()}
    return ReplicaCommand(
        container.args,
        container.environment,
        container.directory,
        names.get(container.image, container.image),
    )
