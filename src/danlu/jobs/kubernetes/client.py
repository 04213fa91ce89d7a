"""Jobs on a cluster, as commands use them: creates and reads Kubernetes objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.job_watcher import JobWatcher
from danlu.jobs.kubernetes.kueue import join_queue, list_workloads, queue_of, set_active
from danlu.jobs.kubernetes.log_stream import JobLogStream
from danlu.jobs.kubernetes.lookup import find_job, job_not_found_error, list_jobs
from danlu.jobs.kubernetes.manifests import prepare_job
from danlu.jobs.kubernetes.objects import POD, REPORT, PodObject, ReportObject, job_resource
from danlu.jobs.kubernetes.results import collect_result
from danlu.jobs.kubernetes.runtimes import add_runtimes
from danlu.jobs.kubernetes.submit import LeaseRenewer, ensure_name_free, submit_job
from danlu.jobs.kubernetes.views import build_view, own_report, replica_command
from danlu.jobs.kubernetes.waiting_reasons import (
    NO_REASONS,
    find_admissions,
    find_waiting_reasons,
)
from danlu.jobs.types import JobResult, JobView, LogLine, ReplicaCommand, Submission, longest_grace
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import Conflict, Forbidden, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.watch import ListOptions
from danlu.training.framework import PodLabels
from danlu.training.names import STOPPED_ANNOTATION, reports_config_map_name, submitter_lease_name
from danlu.training.registry import TRAIN_JOB, find_job_framework
from danlu.training.replicas import with_replicas
from danlu.training.types import ReplicaId
from danlu.util.tasks import run_concurrently

_STOPPED_BY_USER = "stopped by its user"
_STOP_TIMEOUT = 30.0
_MAX_REQUESTS = 32


class KubernetesJobs:
    """The jobs of one namespace of a cluster (:class:`danlu.jobs.types.JobBackend`).

    Args:
        where: The name of the target (``kubernetes:CONTEXT``).
        pull_secret: A Secret of the namespace with which nodes pull images.
        checkpoint_claim: A PersistentVolumeClaim of the namespace for checkpoints.
        renewing: A configuration for the thread that renews Leases, because credentials are bound
            to an event loop.
        trusted: The user trusts everyone who may write to the namespace, so that pickles among
            results may be loaded.
        labels: New jobs get them, and jobs without them do not exist for the caller.
    """

    def __init__(
        self,
        access: ClusterConfig,
        *,
        namespace: str = "",
        where: str = "kubernetes",
        pull_secret: str = "",
        checkpoint_claim: str = "",
        renewing: ClusterConfig | None = None,
        trusted: bool = False,
        labels: Mapping[str, str] | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.where = where
        self.namespace = namespace or access.namespace or "default"
        self._access = access
        self._clock = clock
        self._pull_secret = pull_secret
        self._checkpoint_claim = checkpoint_claim
        self._trusted = trusted
        self.labels = labels or {}
        self._lease_renewer = LeaseRenewer(renewing or access)

    def _open_client(self) -> Client:
        # One per call: connections are bound to an event loop, and each call may have its own.
        return Client(self._access, connections=0, clock=self._clock, manager="danlu")

    @asynccontextmanager
    async def _open_job(self, name: str) -> AsyncIterator[tuple[Client, ClusterJob]]:
        """Yield a client and the job; raises :class:`UsageError` if it does not exist."""
        async with self._open_client() as client:
            yield client, await find_job(client, self.namespace, name, self.labels)

    # -- starting ---------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Create a job; see :class:`danlu.jobs.types.JobBackend`."""
        labelled = msgspec.structs.replace(submission, labels={**submission.labels, **self.labels})
        with anyio.CancelScope() as scope:
            async with self._open_client() as client:
                ready = prepare_job(
                    await self._join_queue(client, labelled),
                    namespace=self.namespace,
                    pull_secret=self._pull_secret,
                    checkpoint_claim=self._checkpoint_claim,
                )
                await ensure_name_free(client, ready, where=self.where)
                # An interrupted submission must not leave a half-created job behind.
                scope.shield = True
                await submit_job(client, ready, where=self.where)
        if ready.lease:
            self._lease_renewer.add(self.namespace, ready.lease)
        return submission.job.name

    async def _join_queue(self, client: Client, submission: Submission) -> Submission:
        if not submission.queue:
            return submission
        job = await join_queue(client, self.namespace, submission.job, submission.queue)
        if submission.manifests and job != submission.job:
            raise UsageError(
                f"{submission.queue} is a queue of Volcano, which a TrainJob's runtime names",
                hint="it is the annotation scheduling.volcano.sh/queue-name of spec.template there",
            )
        return msgspec.structs.replace(submission, job=job)

    # -- reading ----------------------------------------------------------------------------------

    async def names(self) -> Sequence[str]:
        """Return the names of all jobs of the namespace, newest first."""
        async with self._open_client() as client:
            jobs = await list_jobs(client, self.namespace, self.labels)
            return [found.unique_name for found in jobs]

    async def view(self, name: str) -> JobView:
        """Return the current view of a job."""
        async with self._open_job(name) as (client, found):
            return await self._load_view(client, found)

    async def views(self, warn: Callable[[str], object] = lambda text: None) -> Sequence[JobView]:
        """Return the views of all jobs, newest first, without what v1 kinds have reported.

        Takes one list request per kind and one per training runtime, instead of several requests
        per job. ``warn`` is called with a sentence about kinds that the user may not list.
        """
        async with self._open_client() as client:
            jobs = await list_jobs(client, self.namespace, self.labels, warn=warn)
            jobs = await add_runtimes(client, jobs)
            pods = await self._list_all_pods(client, jobs)
            admissions = await find_admissions(
                client, self.namespace, [found.job for found in jobs]
            )
        return [
            build_view(
                found,
                pods=found.select_pods(pods.get((found.framework.pod_labels, found.name), ())),
                report=None,
                where=self.where,
                now=self._clock.now(),
                reasons=admissions.get(found.uid, NO_REASONS),
            )
            for found in jobs
        ]

    async def _list_all_pods(
        self, client: Client, jobs: Sequence[ClusterJob]
    ) -> Mapping[tuple[PodLabels, str], list[PodObject]]:
        """Return the pods of all jobs, by the labels of their kind and the name of the job."""
        pods: dict[tuple[PodLabels, str], list[PodObject]] = {}
        for labels in dict.fromkeys(found.framework.pod_labels for found in jobs):
            selection = ListOptions(self.namespace, labels=labels.job)
            for pod in (await client.list(POD, selection)).items:
                pods.setdefault((labels, pod.metadata.labels[labels.job]), []).append(pod)
        return pods

    async def _load_view(self, client: Client, found: ClusterJob) -> JobView:
        pods = await self._list_pods(client, found)
        build = partial(
            build_view,
            found,
            pods=pods,
            report=await self._get_report(client, found),
            where=self.where,
            now=self._clock.now(),
        )
        reasons = await find_waiting_reasons(client, found.job, build(), pods)
        return build(reasons=reasons)

    async def _list_pods(self, client: Client, found: ClusterJob) -> list[PodObject]:
        return found.select_pods((await client.list(POD, found.pod_selection)).items)

    async def _get_report(self, client: Client, found: ClusterJob) -> ReportObject | None:
        # Users without permission to read ConfigMaps still see the job.
        with suppress(NotFound, Forbidden):
            name = reports_config_map_name(found.name)
            report = await client.get(REPORT, name, namespace=self.namespace)
            return own_report(report, found.uid)
        return None

    def _open_watcher(self, client: Client, found: ClusterJob) -> JobWatcher:
        return JobWatcher(client, found, where=self.where)

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        """Yield the job's view now and after every change, until it is finished."""
        async with (
            self._open_job(name) as (client, found),
            self._open_watcher(client, found) as watcher,
        ):
            before = None
            while True:
                generation = watcher.generation
                view = watcher.view()
                if view is None:
                    raise await job_not_found_error(client, self.namespace, name, self.labels)
                if view != before:
                    yield view
                if view.finished:
                    self._lease_renewer.discard(self.namespace, submitter_lease_name(found.name))
                    return
                before = view
                await watcher.wait_for_change(generation)

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines of the replicas' logs: existing ones by time, then new ones as they come.

        With ``newest`` a slow consumer is at most about ten thousand lines behind; older ones are
        skipped.
        """
        async with (
            self._open_job(name) as (client, found),
            self._open_watcher(client, found) as watcher,
        ):
            stream = JobLogStream(client, watcher, replicas, newest=newest)
            async with aclosing(stream.read_existing(tail=tail)) as lines:
                async for line in lines:
                    yield line
            if follow:
                async with aclosing(stream.follow()) as lines:
                    async for line in lines:
                        yield line

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        """Return the last command of a replica."""
        async with self._open_job(name) as (client, found):
            pods = found.newest_pods(await self._list_pods(client, found))
        if replica not in pods:
            raise UsageError(f"{replica} of job {name} has not run yet, or its pod was deleted")
        return replica_command(pods[replica], found.framework)

    async def result(self, name: str) -> JobResult:
        """Wait for the end of a job and return its result."""
        async for view in self.watch(name):
            last = view
        async with self._open_job(name) as (client, found):
            pods = await self._list_pods(client, found)
            report = await self._get_report(client, found)
        replicas = found.newest_pods(pods)
        job = found.decode(replicas)
        leader = find_job_framework(job).leader(job)
        result = collect_result(last, leader, pods=replicas, report=report)
        return msgspec.structs.replace(result, trusted=self._trusted)

    # -- changing ---------------------------------------------------------------------------------

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        """Stop a job, and wait until none of its pods runs, or the cluster takes too long."""
        async with self._open_job(name) as (client, found):
            if (await self._load_view(client, found)).finished:
                return
            await self._mark_stopped_by_user(client, found)
            # The operator deletes the pods as well, but with the grace period of their template.
            options = DeleteOptions(grace=None if grace is None else round(grace))
            pods = await self._list_pods(client, found)
            deletions = (partial(self._delete_pod, client, pod, options) for pod in pods)
            await run_concurrently(deletions, limit=_MAX_REQUESTS)
        limit = longest_grace(found.decode()) if grace is None else grace
        with anyio.move_on_after(limit + _STOP_TIMEOUT), suppress(UsageError):
            async for _ in self.watch(name):
                pass

    async def _delete_pod(self, client: Client, pod: PodObject, options: DeleteOptions) -> None:
        metadata = pod.metadata
        options = msgspec.structs.replace(options, uid=metadata.uid)
        with suppress(NotFound, Conflict):
            await client.delete(POD, metadata.name, namespace=self.namespace, options=options)

    async def _mark_stopped_by_user(self, client: Client, found: ClusterJob) -> None:
        await self._change_workload(client, found, active=False)
        # Suspending works with any operator; the annotation makes it final for danlu.
        change = {
            "metadata": {"annotations": {STOPPED_ANNOTATION: _STOPPED_BY_USER}},
            "spec": found.framework.change_suspension(suspended=True),
        }
        await self._patch_job(client, found, change)

    async def _patch_job(
        self, client: Client, found: ClusterJob, change: Mapping[str, Any]
    ) -> None:
        resource = job_resource(found.framework)
        patch = merge_patch(change)
        await client.patch(resource, found.name, patch, namespace=self.namespace)

    async def remove(self, name: str) -> None:
        """Delete a finished job, and with it its pods and their logs."""
        async with self._open_job(name) as (client, found):
            if not (await self._load_view(client, found)).finished:
                hint = f"stop it with `danlu jobs stop {name} --on {self.where}`"
                raise UsageError(f"job {name} is still running", hint=hint)
            resource = job_resource(found.framework)
            # With the uid as a precondition: not a new job of the same name.
            options = DeleteOptions(propagation="Background", uid=found.uid)
            with suppress(NotFound):
                await client.delete(resource, found.name, namespace=self.namespace, options=options)

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job or resume it."""
        async with self._open_job(name) as (client, found):
            await self._require_active(client, found)
            if not await self._change_workload(client, found, active=not suspended):
                change = found.framework.change_suspension(suspended=suspended)
                await self._patch_job(client, found, {"spec": change})

    async def _change_workload(self, client: Client, found: ClusterJob, *, active: bool) -> bool:
        """Suspend or resume a job in a queue of Kueue; False if it is in none.

        Kueue resumes an admitted job that is suspended in another way.
        """
        if not queue_of(found.job.metadata.labels):
            return False
        workloads = await list_workloads(client, self.namespace, uid=found.uid)
        workload = (workloads or {}).get(found.uid)
        if workload is None:
            return False
        try:
            await set_active(client, workload, active=active)
        except Forbidden as error:
            kind, workload_name = found.framework.kind.lower(), workload.metadata.name
            raise OutsideError(
                f"job {found.name} is in a queue of Kueue, and you may not patch its Workload"
                f" {workload_name}: Kueue would resume it",
                hint="ask for Kueue's role batch-admin in the namespace, or"
                f" `kubectl delete {kind} {found.name} -n {self.namespace}`",
            ) from error
        return True

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Change the number of replicas, by type."""
        async with self._open_job(name) as (client, found):
            await self._require_active(client, found)
            if found.framework is TRAIN_JOB:
                raise UsageError(
                    f"job {name} is a TrainJob, whose nodes cannot be changed after it was created",
                    hint="remove it, and submit it with another spec.trainer.numNodes",
                )
            job = with_replicas(found.decode(), replicas, found.framework)
            # The manifest may spell a type differently ("worker"); patch the key that it has.
            field = found.framework.replicas_field
            spelling = {type.lower(): type for type in found.job.spec.get(field) or {}}
            changed = {type.lower() for type in replicas}
            numbers = {
                spelling[type.lower()]: {"replicas": spec.replicas}
                for type, spec in job.replicas.items()
                if type.lower() in changed
            }
            await self._patch_job(client, found, {"spec": {field: numbers}})

    async def _require_active(self, client: Client, found: ClusterJob) -> None:
        if (await self._load_view(client, found)).finished:
            raise UsageError(f"job {found.name} is already finished")
