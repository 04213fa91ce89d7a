"""Create a job and the objects it needs on a cluster, and renew the Leases of submitters.

A job that ends with its submitter has a Lease, which this process renews in a thread. The operator
stops the job when the Lease expires.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import anyio

from danlu.errors import DanluError, OutsideError, TemporaryError, UsageError
from danlu.jobs.kubernetes.lookup import list_by_name
from danlu.jobs.kubernetes.manifests import PreparedJob
from danlu.jobs.kubernetes.objects import JobObject, job_resource
from danlu.jobs.kubernetes.runtimes import (
    find_missing_runtimes,
    missing_crds_error,
    runtime_resource,
)
from danlu.kube.client import Client, DeleteOptions
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import AlreadyExists, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CONFIG_MAPS, LEASES, SECRETS, Resource
from danlu.kube.types import Key, Manifest, includes_fields
from danlu.training.names import SUBMITTER_LEASE_ANNOTATION, code_config_map_name
from danlu.training.registry import TRAIN_JOB

_log = logging.getLogger(__name__)

_RESOURCES: dict[str, Resource[Manifest]] = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}

LEASE_SECONDS = 15
"""Duration of a submitter's Lease: how long it lasts without being renewed."""
_RENEW_SECONDS = LEASE_SECONDS / 3


async def submit_job(client: Client, ready: PreparedJob, *, where: str) -> JobObject:
    """Create a job and everything it needs; on an error, remove what was created.

    ``where`` is the target, for hints. Raises :class:`UsageError` for a name in use,
    :class:`OutsideError` for a cluster without the job's CRD, and errors of the API server.
    """
    for runtime in await find_missing_runtimes(client, ready):
        resource = runtime_resource(runtime["kind"])
        await client.create(resource, runtime, strict=True)
    for document in ready.objects:
        await client.create_or_patch(_RESOURCES[document["kind"]], document)
    if ready.code is not None:
        await _create_or_replace(client, CONFIG_MAPS, ready.code)
    job = None
    try:
        job = await _create_job(client, ready, where)
        await _set_owner(client, ready, job)
    except BaseException:
        await _roll_back(client, ready, job)
        raise
    return job


async def ensure_name_free(client: Client, ready: PreparedJob, *, where: str) -> None:
    """Raise :class:`UsageError` if there is a job of the same name.

    It may be of any kind, because pods are named after their job whatever its kind.
    """
    metadata = ready.job["metadata"]
    if await list_by_name(client, metadata["namespace"], metadata["name"]):
        raise _name_in_use_error(metadata["name"], where)


def _name_in_use_error(name: str, where: str) -> UsageError:
    hint = f"remove it with `danlu jobs rm {name} --on {where}`, or choose another --name"
    return UsageError(f"job {name} already exists", hint=hint)


async def _create_or_replace(
    client: Client, resource: Resource[Manifest], document: Manifest
) -> None:
    """Create an object, replacing one left behind by an earlier job of the same name."""
    metadata = document["metadata"]
    try:
        await client.create(resource, document)
    except AlreadyExists:
        with suppress(NotFound):
            await client.delete(resource, metadata["name"], namespace=metadata["namespace"])
        await client.create(resource, document)


async def _create_job(client: Client, ready: PreparedJob, where: str) -> JobObject:
    metadata = ready.job["metadata"]
    try:
        # danlu has checked other kinds itself.
        strict = ready.framework is TRAIN_JOB
        return await client.create(job_resource(ready.framework), ready.job, strict=strict)
    except AlreadyExists:
        raise _name_in_use_error(metadata["name"], where) from None
    except NotFound as error:
        group = job_resource(ready.framework).group
        if await client.serves_group(group):
            raise  # the namespace
        raise missing_crds_error(client, group) from error
    except TemporaryError:
        # The request may have succeeded, and only the response was lost.
        job = await _find_own_job(client, ready)
        if job is None:
            raise
        return job


async def _find_own_job(client: Client, ready: PreparedJob) -> JobObject | None:
    """Return the job if it exists as we sent it; there was none of its name before."""
    metadata = ready.job["metadata"]
    with suppress(OutsideError):
        resource = job_resource(ready.framework)
        job = await client.get(resource, metadata["name"], namespace=metadata["namespace"])
        if includes_fields(job.spec, ready.job["spec"]):
            return job
    return None


async def _roll_back(client: Client, ready: PreparedJob, job: JobObject | None) -> None:
    """Delete what was created for a failed submission, as far as possible."""
    if job is not None:
        options = DeleteOptions(propagation="Background", uid=job.metadata.uid)
        metadata = job.metadata
        with suppress(OutsideError):
            resource = job_resource(ready.framework)
            await client.delete(
                resource, metadata.name, namespace=metadata.namespace, options=options
            )
    if ready.code is not None:
        code = ready.code["metadata"]
        with suppress(OutsideError):
            await client.delete(CONFIG_MAPS, code["name"], namespace=code["namespace"])


async def _set_owner(client: Client, ready: PreparedJob, job: JobObject) -> None:
    """Make the job the owner of its objects, so that they are deleted with it."""
    namespace = job.metadata.namespace
    owner = _owner_reference(ready, job)
    if ready.code is not None:
        name = code_config_map_name(job.metadata.name)
        patch = merge_patch({"metadata": {"ownerReferences": [owner]}})
        await client.patch(CONFIG_MAPS, name, patch, namespace=namespace)
    if ready.lease:
        await _create_lease(client, ready.lease, namespace, owner)


async def _create_lease(client: Client, name: str, namespace: str, owner: Manifest) -> None:
    spec = {
        "holderIdentity": "danlu",
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": f"{client.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {SUBMITTER_LEASE_ANNOTATION: "true"},
        "ownerReferences": [owner],
    }
    lease = LEASES.to_manifest({"metadata": metadata, "spec": spec})
    await _create_or_replace(client, LEASES, lease)


def _owner_reference(ready: PreparedJob, job: JobObject) -> Manifest:
    return {
        "apiVersion": ready.job["apiVersion"],
        "kind": ready.framework.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }


# -- the submitter's Lease ------------------------------------------------------------------------


class LeaseRenewer:
    """Renews this process's Leases on one cluster; the thread ends with the last of them.

    A thread and not a task: the process may have several short-lived event loops, and may block
    them for minutes. Nothing is cleaned up at exit, because the missing renewal is the signal.
    """

    def __init__(
        self,
        access: ClusterConfig,
        *,
        every: float = _RENEW_SECONDS,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._access = access
        self._interval = every
        self._wait = wait
        self._leases: set[Key] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, namespace: str, name: str) -> None:
        """Renew an existing Lease until it is deleted."""
        with self._lock:
            self._leases.add(Key(namespace, name))
            if self._thread is None:
                # A daemon thread: it must not keep the process alive.
                self._thread = threading.Thread(
                    target=self._renew_loop, name="danlu lease renewer", daemon=True
                )
                self._thread.start()

    def discard(self, namespace: str, name: str) -> None:
        """Stop renewing a Lease."""
        with self._lock:
            self._leases.discard(Key(namespace, name))

    @property
    def leases(self) -> frozenset[Key]:
        """The Leases that are being renewed."""
        with self._lock:
            return frozenset(self._leases)

    def _renew_loop(self) -> None:
        while True:
            self._wait(self._interval)
            with self._lock:
                if not self._leases:
                    self._thread = None
                    return
            anyio.run(self._renew_all)

    async def _renew_all(self) -> None:
        try:
            async with Client(self._access, connections=4, manager="danlu") as client:
                with anyio.move_on_after(self._interval):
                    for key in self.leases:
                        await self._renew_lease(client, key)
        except DanluError as error:
            # Not fatal: there are several attempts before the Lease expires.
            _log.warning("cannot renew a job's Lease: %s", error)

    async def _renew_lease(self, client: Client, key: Key) -> None:
        renewed = f"{client.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}"
        patch = merge_patch({"spec": {"renewTime": renewed}})
        try:
            await client.patch(LEASES, key.name, patch, namespace=key.namespace)
        except NotFound:
            # Its job was deleted, and the Lease with it.
            self.discard(*key)
