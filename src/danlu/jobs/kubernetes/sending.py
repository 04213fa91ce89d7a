"""Documents onto a cluster: what a job needs is there before it, and goes with it."""

from __future__ import annotations

from contextlib import suppress

from danlu.errors import OutsideError, TemporaryError, UsageError
from danlu.jobs.kubernetes.documents import Ready
from danlu.jobs.kubernetes.objects import JobObject, job_resource
from danlu.jobs.kubernetes.place import look, no_kinds
from danlu.kube.client import Client, Deletion
from danlu.kube.failures import AlreadyExists, NotFound
from danlu.kube.patches import merge_patch
from danlu.kube.resources import CONFIG_MAPS, LEASES, SECRETS, Resource
from danlu.kube.types import Document
from danlu.training.cluster import TIED, code_name

__all__ = ["check_new", "send"]

_KINDS: dict[str, Resource[Document]] = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}

LEASE_SECONDS = 15
"""How long a Lease holds without being renewed."""


async def send(client: Client, ready: Ready, *, where: str) -> JobObject:
    """Create a job and all that it needs, or nothing of it; ``where`` is the place for errors.

    Raises :class:`UsageError` for a name in use, :class:`OutsideError` for a cluster that knows no
    such kind, and the API server's refusals.
    """
    for document in ready.objects:
        await client.apply(_KINDS[document["kind"]], document, force=True)
    if ready.code is not None:
        await _put(client, CONFIG_MAPS, ready.code)
    job = None
    try:
        job = await _create(client, ready, where)
        await _own(client, ready, job)
    except BaseException:
        await _forget(client, ready, job)
        raise
    return job


async def check_new(client: Client, ready: Ready, *, where: str) -> None:
    """Before anything is written: what is there under the name is somebody's.

    Raises :class:`UsageError` where something is.
    """
    metadata = ready.job["metadata"]
    # Of any kind: pods are called after their job, whatever that is.
    if await look(client, metadata["namespace"], metadata["name"]):
        raise _in_use(metadata["name"], where)


def _in_use(name: str, where: str) -> UsageError:
    hint = f"`danlu jobs rm {name} --on {where}` forgets it when it is over; or choose another name"
    return UsageError(f"there is a job {name} already", hint=hint)


async def _put(client: Client, kind: Resource[Document], document: Document) -> None:
    """Create an object, in the place of what an earlier job of the name left."""
    metadata = document["metadata"]
    try:
        await client.create(kind, document)
    except AlreadyExists:
        with suppress(NotFound):
            await client.delete(kind, metadata["name"], namespace=metadata["namespace"])
        await client.create(kind, document)


async def _create(client: Client, ready: Ready, where: str) -> JobObject:
    metadata = ready.job["metadata"]
    try:
        return await client.create(job_resource(ready.framework), ready.job)
    except AlreadyExists:
        raise _in_use(metadata["name"], where) from None
    except NotFound as error:
        raise no_kinds(client) from error
    except TemporaryError:
        # It may have been made, and only the answer was lost.
        found = await _made(client, ready)
        if found is None:
            raise
        return found


async def _made(client: Client, ready: Ready) -> JobObject | None:
    """The job, if it is there as it was sent: before it was, there was none of its name."""
    metadata = ready.job["metadata"]
    with suppress(OutsideError):
        resource = job_resource(ready.framework)
        found = await client.get(resource, metadata["name"], namespace=metadata["namespace"])
        if found.spec == ready.job["spec"]:
            return found
    return None


async def _forget(client: Client, ready: Ready, job: JobObject | None) -> None:
    """Take back what was made of a job that came to nothing, as far as that can be done."""
    if job is not None:
        how = Deletion(propagation="Background", uid=job.metadata.uid)
        key = job.metadata
        with suppress(OutsideError):
            resource = job_resource(ready.framework)
            await client.delete(resource, key.name, namespace=key.namespace, how=how)
    if ready.code is not None:
        metadata = ready.code["metadata"]
        with suppress(OutsideError):
            await client.delete(CONFIG_MAPS, metadata["name"], namespace=metadata["namespace"])


async def _own(client: Client, ready: Ready, job: JobObject) -> None:
    """Give the job what was made for it: it goes when the job goes."""
    namespace = job.metadata.namespace
    owner = _owner(ready, job)
    if ready.code is not None:
        patch = merge_patch({"metadata": {"ownerReferences": [owner]}})
        await client.patch(CONFIG_MAPS, code_name(job.metadata.name), patch, namespace=namespace)
    if ready.lease:
        await _tie(client, ready.lease, namespace, owner)


async def _tie(client: Client, name: str, namespace: str, owner: Document) -> None:
    spec = {
        "holderIdentity": "danlu",
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": f"{client.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {TIED: "true"},
        "ownerReferences": [owner],
    }
    await _put(client, LEASES, LEASES.document({"metadata": metadata, "spec": spec}))


def _owner(ready: Ready, job: JobObject) -> Document:
    return {
        "apiVersion": ready.job["apiVersion"],
        "kind": ready.framework.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
    }
