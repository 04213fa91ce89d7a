"""Jobs on a cluster as commands see them: documents are sent, and what becomes of them is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from danlu.errors import UsageError
from danlu.jobs.kubernetes.commands import command_of
from danlu.jobs.kubernetes.documents import prepared
from danlu.jobs.kubernetes.logs import Logs
from danlu.jobs.kubernetes.objects import POD, REPORT, PodObject, ReportObject, job_resource
from danlu.jobs.kubernetes.place import Found, all_jobs, find, unknown
from danlu.jobs.kubernetes.results import result_of
from danlu.jobs.kubernetes.sending import check_new, send
from danlu.jobs.kubernetes.sight import Sight
from danlu.jobs.kubernetes.told import concerned, warnings_of
from danlu.jobs.kubernetes.tying import Ties
from danlu.jobs.kubernetes.views import job_of, newest, own_pods, own_report, view_of
from danlu.jobs.scaling import scaled
from danlu.jobs.types import Command, JobView, LogLine, Result, Submission
from danlu.kube.client import Client, Deletion, Selection
from danlu.kube.clock import REAL
from danlu.kube.failures import Forbidden, NotFound
from danlu.kube.patches import merge_patch
from danlu.training.cluster import STOPPED, lease_name, reports_name
from danlu.training.types import ReplicaId

if TYPE_CHECKING:
    from danlu.kube.access import Access
    from danlu.kube.types import Clock

__all__ = ["KubernetesJobs"]

_BY_USER = "stopped by its user"
_PATIENCE = 30.0
_JOB = "training.kubeflow.org/job-name"


class KubernetesJobs:
    """The jobs of one namespace of a cluster (:class:`danlu.jobs.types.Jobs`).

    ``where`` is what the place is called (``kubernetes:CONTEXT``). ``pull_secret`` names a Secret
    of the namespace by which nodes may pull images. ``renewing`` is an access for the thread that
    renews ties, where credentials are of an event loop.
    """

    def __init__(
        self,
        access: Access,
        *,
        namespace: str = "",
        where: str = "kubernetes",
        pull_secret: str = "",
        renewing: Access | None = None,
        clock: Clock = REAL,
    ) -> None:
        self.where = where
        self.namespace = namespace or access.namespace or "default"
        self._access = access
        self._clock = clock
        self._pull_secret = pull_secret
        self._ties = Ties(renewing or access)

    def _client(self) -> Client:
        # One a call: callers have an event loop for each, and connections belong to one.
        return Client(self._access, connections=0, clock=self._clock, manager="danlu")

    # -- starting ---------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Create a job; see :class:`danlu.jobs.types.Jobs`."""
        ready = prepared(submission, namespace=self.namespace, pull_secret=self._pull_secret)
        with anyio.CancelScope() as scope:
            async with self._client() as client:
                await check_new(client, ready, where=self.where)
                # What began is whole and named: nobody may be left with a half of it.
                scope.shield = True
                await send(client, ready, where=self.where)
        if ready.lease:
            self._ties.hold(self.namespace, ready.lease)
        return submission.job.name

    # -- looking ----------------------------------------------------------------------------------

    async def names(self) -> Sequence[str]:
        """All jobs of the namespace, the newest first."""
        async with self._client() as client:
            return [one.job.metadata.name for one in await all_jobs(client, self.namespace)]

    async def view(self, name: str) -> JobView:
        """A job as it stands now."""
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            return await self._viewed(client, found)

    async def views(self) -> Sequence[JobView]:
        """All jobs as they stand, the newest first, without their progress: a list of each kind."""
        async with self._client() as client:
            found = await all_jobs(client, self.namespace)
            pods = (await client.list(POD, Selection(self.namespace, labels=_JOB))).items
        by_uid: dict[str, list[PodObject]] = {}
        for pod in pods:
            owner = pod.metadata.controller
            by_uid.setdefault(owner.uid if owner else "", []).append(pod)
        return [
            view_of(
                one.job,
                one.framework,
                pods=own_pods(by_uid.get(one.job.metadata.uid, []), one.job.metadata.uid),
                report=None,
                where=self.where,
                now=self._clock.now(),
            )
            for one in found
        ]

    async def _viewed(self, client: Client, found: Found) -> JobView:
        pods, uid = await self._pods(client, found), found.job.metadata.uid
        view = partial(
            view_of,
            found.job,
            found.framework,
            pods=pods,
            report=await self._report(client, found),
            where=self.where,
            now=self._clock.now(),
        )
        about = concerned(view(), pods, uid)
        return view(warned=await warnings_of(client, self.namespace, about))

    async def _pods(self, client: Client, found: Found) -> list[PodObject]:
        listing = await client.list(POD, self._mine(found.job.metadata.name))
        return own_pods(listing.items, found.job.metadata.uid)

    def _mine(self, name: str) -> Selection:
        return Selection(self.namespace, labels=f"{_JOB}={name}")

    async def _report(self, client: Client, found: Found) -> ReportObject | None:
        name, uid = reports_name(found.job.metadata.name), found.job.metadata.uid
        # Whoever may not read it still sees the job.
        with suppress(NotFound, Forbidden):
            report = await client.get(REPORT, name, namespace=self.namespace)
            return own_report(report, uid)
        return None

    def _sight(self, client: Client, found: Found) -> Sight:
        return Sight(
            client,
            found.framework,
            namespace=self.namespace,
            name=found.job.metadata.name,
            where=self.where,
        )

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        """The job now and after every change, until it is finished."""
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            async with self._sight(client, found) as sight:
                before = None
                while True:
                    changes = sight.changes
                    view = sight.view()
                    if view is None:
                        raise await unknown(client, self.namespace, name)
                    if view != before:
                        yield view
                    if view.finished:
                        self._ties.release(self.namespace, lease_name(name))
                        return
                    before = view
                    await sight.changed(changes)

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Lines of the replicas' logs: those that are there by their times, then as they come.

        With ``newest`` who reads is at most some ten thousand lines behind: of more that wait, the
        oldest are passed over.
        """
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            async with self._sight(client, found) as sight:
                logs = Logs(client, sight, replicas, newest=newest)
                async with aclosing(logs.there(tail=tail)) as lines:
                    async for line in lines:
                        yield line
                if follow:
                    async with aclosing(logs.coming()) as lines:
                        async for line in lines:
                            yield line

    async def command(self, name: str, replica: ReplicaId) -> Command:
        """What a replica ran last."""
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            pods = newest(await self._pods(client, found), found.framework.types)
        if replica not in pods:
            raise UsageError(f"{replica} of {name} has not run yet, or its pod is gone")
        return command_of(pods[replica], found.framework)

    async def result(self, name: str) -> Result:
        """Wait for the end and give it."""
        async for view in self.watch(name):
            last = view
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            pods = await self._pods(client, found)
            report = await self._report(client, found)
        leader = found.framework.leader(job_of(found.job, found.framework))
        return result_of(last, leader, pods=newest(pods, found.framework.types), report=report)

    # -- ordering ---------------------------------------------------------------------------------

    async def stop(self, name: str, *, grace: float = 5.0) -> None:
        """End a job; returns when nothing of it runs, or the cluster took too long."""
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            if (await self._viewed(client, found)).finished:
                return
            await self._stop(client, found)
            # Its operator ends them too, with the time that their template gives.
            with suppress(NotFound):
                how = Deletion(grace=round(grace))
                await client.delete_all(POD, self._mine(name), how=how)
        with anyio.move_on_after(grace + _PATIENCE), suppress(UsageError):
            async for _ in self.watch(name):
                pass

    async def _stop(self, client: Client, found: Found) -> None:
        change = {
            "metadata": {"annotations": {STOPPED: _BY_USER}},
            "spec": {"runPolicy": {"suspend": True}},
        }
        await self._patch(client, found, change)

    async def _patch(self, client: Client, found: Found, change: Mapping[str, Any]) -> None:
        await client.patch(
            job_resource(found.framework),
            found.job.metadata.name,
            merge_patch(change),
            namespace=self.namespace,
        )

    async def remove(self, name: str) -> None:
        """Forget a finished job, its pods and their logs."""
        async with self._client() as client:
            found = await find(client, self.namespace, name)
            if not (await self._viewed(client, found)).finished:
                hint = f"`danlu jobs stop {name} --on {self.where}` ends it"
                raise UsageError(f"the job {name} is not over", hint=hint)
            resource = job_resource(found.framework)
            how = Deletion(propagation="Background", uid=found.job.metadata.uid)
            with suppress(NotFound):
                await client.delete(resource, name, namespace=self.namespace, how=how)

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job or resume it."""
        async with self._client() as client:
            found = await self._active(client, name)
            await self._patch(client, found, {"spec": {"runPolicy": {"suspend": suspended}}})

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Ask for other numbers of replicas."""
        async with self._client() as client:
            found = await self._active(client, name)
            job = scaled(job_of(found.job, found.framework), replicas)
            # Of the manifest's own spelling of a type there may be another than the framework's.
            field = found.framework.replicas_field
            written = {one.lower(): one for one in found.job.spec.get(field) or {}}
            asked = {name.lower() for name in replicas}
            numbers = {
                written[type.lower()]: {"replicas": spec.replicas}
                for type, spec in job.replicas.items()
                if type.lower() in asked
            }
            await self._patch(client, found, {"spec": {field: numbers}})

    async def _active(self, client: Client, name: str) -> Found:
        found = await find(client, self.namespace, name)
        if (await self._viewed(client, found)).finished:
            raise UsageError(f"the job {name} is over")
        return found
