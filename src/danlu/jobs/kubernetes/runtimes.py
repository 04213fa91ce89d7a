"""Read the training runtimes of TrainJobs from a cluster, and check those of a submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from danlu.errors import DanluError, OutsideError, UsageError
from danlu.jobs.kubernetes.cluster_job import ClusterJob
from danlu.jobs.kubernetes.manifests import PreparedJob
from danlu.kube.client import Client
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.resources import CONFIG_MAPS, Resource, custom_resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.training.document import ManifestError
from danlu.training.names import KUBEFLOW_GROUP, SNAPSHOT_KEY, runtime_snapshot_name
from danlu.training.registry import TRAIN_JOB
from danlu.training.train_job.reader import read_train_job
from danlu.training.train_job.schema import API_VERSION, CLUSTER_RUNTIME, RUNTIME_KINDS
from danlu.util.suggest import did_you_mean
from danlu.util.tasks import run_concurrently
from danlu.util.yaml_with_lines import read_yaml

_Reference = tuple[str, str]


def runtime_resource(kind: str) -> Resource[Manifest]:
    """Return the resource of a kind of runtimes."""
    return custom_resource(API_VERSION, kind, Manifest, namespaced=kind != CLUSTER_RUNTIME)


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
    return _name_reference(found.job.spec) if found.framework is TRAIN_JOB else None


def _name_reference(spec: Mapping[str, Any]) -> _Reference | None:
    reference = spec.get("runtimeRef")
    if not isinstance(reference, Mapping):
        return None
    kind = reference.get("kind") or CLUSTER_RUNTIME
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


# -- submitting -----------------------------------------------------------------------------------


async def find_missing_runtimes(client: Client, ready: PreparedJob) -> list[Manifest]:
    """Return the runtimes of a submission that have to be created in its namespace.

    Raises :class:`UsageError` if the runtime of a TrainJob does not exist, if another one has its
    name, and for a ClusterTrainingRuntime that does not exist: that would be everybody's. Raises
    :class:`OutsideError` if the cluster has no TrainJobs.
    """
    if ready.framework is not TRAIN_JOB:
        return []
    given = {(each["kind"], each["metadata"]["name"]): each for each in ready.runtimes}
    wanted = _name_reference(ready.job["spec"])
    missing = []
    for reference in dict.fromkeys((*given, *([wanted] if wanted else []))):
        existing = await _find_runtime(client, ready, reference)
        runtime = given.get(reference)
        if existing is None:
            if runtime is None:
                raise await _missing_runtime_error(client, ready, reference)
            if not runtime_resource(reference[0]).namespaced:
                raise UsageError(
                    f"{' '.join(reference)} is not in the cluster, where it would be everybody's",
                    hint="`kubectl apply --server-side` its file, or write it as a TrainingRuntime",
                )
            missing.append(runtime)
        elif runtime is not None and not _are_equivalent(ready.job, runtime, existing):
            raise UsageError(
                f"{' '.join(reference)} of the manifest differs from the one in the cluster",
                hint="`kubectl apply --server-side` its file, rename it, or leave it out",
            )
    return missing


async def _find_runtime(
    client: Client, ready: PreparedJob, reference: _Reference
) -> Mapping[str, Any] | None:
    """Return a runtime; None if it does not exist, ``{}`` if the user may not read it."""
    resource, namespace = runtime_resource(reference[0]), ready.job["metadata"]["namespace"]
    try:
        found = await client.get(resource, reference[1], namespace=namespace)
        return _name_runtime(reference, found)
    except NotFound as error:
        if not await client.serves_group(resource.group):
            raise missing_crds_error(client, resource.group) from error
        return None
    except Forbidden:
        return {}


async def _missing_runtime_error(
    client: Client, ready: PreparedJob, reference: _Reference
) -> UsageError:
    kind, name = reference
    resource, selection = runtime_resource(kind), ListOptions(ready.job["metadata"]["namespace"])
    names: list[str] = []
    with suppress(OutsideError):
        listed = await client.list(resource, selection)
        names = sorted(found["metadata"]["name"] for found in listed.items)
    if not names and resource.namespaced:
        hint = f"namespace {selection.namespace} has none; add its file with a further -f"
    elif names:
        listed_names = f"those in the cluster: {', '.join(names)}"
        hint = "\n".join(filter(None, (did_you_mean(name, names), listed_names)))
    else:
        hint = "the cluster has none; `danlu operator runtimes` prints those of Kubeflow Trainer"
    return UsageError(f"{kind} {name!r} not found", hint=hint)


def _are_equivalent(
    job: Mapping[str, Any], runtime: Mapping[str, Any], existing: Mapping[str, Any]
) -> bool:
    """Return whether a TrainJob is the same with both runtimes; servers add defaults to one.

    If danlu cannot read them, they have to be equal. One that the user may not read is taken for
    the same.
    """
    if not existing or runtime["spec"] == existing["spec"]:
        return True
    try:
        reference = {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
        job = {**job, "spec": {**job["spec"], "runtimeRef": reference}}
        return read_train_job(job, [runtime]) == read_train_job(job, [existing])
    except ManifestError:
        return False


def missing_crds_error(client: Client, group: str = KUBEFLOW_GROUP) -> OutsideError:
    """Return the error for a cluster without CRDs of training jobs."""
    return OutsideError(
        f"the cluster at {client.config.server} has no CRDs of {group}",
        hint="install the operator and its CRDs with"
        " `danlu operator manifests --image REF | kubectl apply --server-side -f -`"
        f"{'' if group == KUBEFLOW_GROUP else ', or Kubeflow Trainer'}",
    )
