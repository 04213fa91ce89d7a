"""Read the training runtimes of TrainJobs from a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from danlu.errors import DanluError, OutsideError
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.kube.client import Client
from danlu.kube.resources import CONFIG_MAPS, Resource
from danlu.kube.types import Manifest
from danlu.training.names import SNAPSHOT_KEY, runtime_snapshot_name
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.schema import RUNTIME_KINDS
from danlu.util.tasks import run_concurrently
from danlu.util.yaml_with_lines import read_yaml

_Reference = tuple[str, str]


def runtime_resource(kind: str) -> Resource[Manifest]:
    """Return the resource of a kind of runtimes."""
    group, _, version = TRAIN_JOB.api_version.partition("/")
    namespaced = kind != RUNTIME_KINDS[0]
    return Resource(group, version, f"{kind.lower()}s", kind, Manifest, namespaced=namespaced)


async def add_runtime(client: Client, found: ClusterJob) -> ClusterJob:
    """Return a TrainJob with the runtime that it started with, other jobs unchanged."""
    reference = _find_reference(found)
    kept = await _read_snapshot(client, found) if reference else None
    if reference is None or kept is None:
        return (await add_runtimes(client, [found]))[0]
    return msgspec.structs.replace(found, runtimes=(_name_runtime(reference, kept),))


async def add_runtimes(client: Client, jobs: Sequence[ClusterJob]) -> list[ClusterJob]:
    """Return jobs with the present runtimes of those that are TrainJobs, each read once."""
    references = [_find_reference(found) for found in jobs]
    first = dict(zip(reversed(references), reversed(jobs), strict=True))
    reads = (partial(_read_runtime, client, found, key) for key, found in first.items())
    runtimes = dict(zip(first, await run_concurrently(reads), strict=True))
    return [
        msgspec.structs.replace(found, runtimes=runtimes[reference])
        for found, reference in zip(jobs, references, strict=True)
    ]


def _find_reference(found: ClusterJob) -> _Reference | None:
    """Return the kind and name of a TrainJob's runtime."""
    reference = found.job.spec.get("runtimeRef")
    if found.framework is not TRAIN_JOB or not isinstance(reference, Mapping):
        return None
    kind = reference.get("kind") or RUNTIME_KINDS[0]
    return (kind, str(reference.get("name") or "")) if kind in RUNTIME_KINDS else None


async def _read_runtime(
    client: Client, found: ClusterJob, reference: _Reference | None
) -> tuple[Mapping[str, Any], ...]:
    """Return the runtime of a job; empty if it does not exist, or the user may not read it."""
    if reference is None:
        return ()
    resource, namespace = runtime_resource(reference[0]), found.job.metadata.namespace
    try:
        runtime = await client.get(resource, reference[1], namespace=namespace)
    except OutsideError:
        return ()
    return (_name_runtime(reference, runtime),)


async def _read_snapshot(client: Client, found: ClusterJob) -> Mapping[str, Any] | None:
    """Return the runtime that a ConfigMap of the job keeps, as in Kubeflow Trainer 2.3."""
    name = runtime_snapshot_name(found.name)
    with suppress(DanluError):
        kept = await client.get(CONFIG_MAPS, name, namespace=found.job.metadata.namespace)
        owners = kept["metadata"].get("ownerReferences") or ()
        if any(owner.get("uid") == found.uid for owner in owners):
            text = (kept.get("data") or {}).get(SNAPSHOT_KEY) or ""
            runtime = next((value for value, _ in read_yaml(text, name)), None)
            return runtime if isinstance(runtime, Mapping) else None
    return None


def _name_runtime(reference: _Reference, found: Mapping[str, Any]) -> Manifest:
    """Return a runtime without what a server adds to its metadata."""
    kind, name = reference
    fields = {"metadata": {"name": name}, "spec": found.get("spec")}
    return runtime_resource(kind).to_manifest(fields)
