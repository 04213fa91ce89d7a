"""Manifests of the objects that a job owns: pure functions, deterministic output."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from danlu.kube.resources import Resource
from danlu.kube.types import Manifest
from danlu.operator.gang_scheduling import add_scheduler_fields
from danlu.operator.types import OperatorSettings
from danlu.training.framework import Framework
from danlu.training.pod_template import find_main_container, pod_spec
from danlu.training.rendering import REPLICA_INDEX, render_pod, type_labels
from danlu.training.replicas import replica_ids
from danlu.training.topology import ServiceTopology
from danlu.training.types import (
    API_VERSION,
    CleanPodPolicy,
    ConditionType,
    CreateReplica,
    Decision,
    DeleteReplica,
    Job,
    ObservedReplicas,
    ReplicaId,
    Topology,
)

AUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", Manifest
)
_CONTAINER_LISTS = ("initContainers", "containers")


def build_topology(job: Job, framework: Framework, settings: OperatorSettings) -> ServiceTopology:
    """Return the addresses at which the job's replicas reach one another."""
    return ServiceTopology(job, framework, settings.cluster_domain)


def owner_reference(api_version: str, kind: str, name: str, uid: str) -> Manifest:
    """Return a reference to a job as the controller of an object."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def add_owner(job: Job, manifest: Mapping[str, Any]) -> Manifest:
    """Return ``manifest`` in the job's namespace, controlled by the job."""
    reference = owner_reference(job.api_version, job.kind, job.name, job.uid)
    owner = {"namespace": job.namespace, "ownerReferences": [reference]}
    return {**manifest, "metadata": {**(manifest.get("metadata") or {}), **owner}}


def add_namespace(job: Job, manifest: Mapping[str, Any]) -> Manifest:
    """Return ``manifest`` in the job's namespace, without an owner: it outlives the job."""
    metadata = {**(manifest.get("metadata") or {}), "namespace": job.namespace}
    return {**manifest, "metadata": metadata}


# -- pods -----------------------------------------------------------------------------------------


def build_pod(
    job: Job, framework: Framework, replica: ReplicaId, *, settings: OperatorSettings
) -> Manifest:
    """Return the Pod of a replica, before pod decorators change it."""
    topology = build_topology(job, framework, settings)
    manifest = render_pod(job, framework, replica, topology)
    manifest = _replace_images(job, framework, replica, settings, manifest)
    return add_owner(
        job, add_scheduler_fields(job, framework, replica, manifest, settings=settings)
    )


def _replace_images(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    settings: OperatorSettings,
    manifest: Manifest,
) -> Manifest:
    """Replace the images of containers that the framework added, as the settings say."""
    template = pod_spec(job.replicas[replica.type].template)
    declared = {
        container.get("name") for key in _CONTAINER_LISTS for container in template.get(key) or ()
    }
    left_out = {image.image for image in framework.added_images if image.optional}
    left_out -= settings.images.keys()
    spec = dict(manifest["spec"])
    for key in _CONTAINER_LISTS:
        if key in spec:
            spec[key] = [
                container
                if container["name"] in declared
                else {**container, "image": settings.images.get(image, image)}
                for container in spec[key]
                if (image := container["image"]) not in left_out or container["name"] in declared
            ]
    return {**manifest, "spec": {name: value for name, value in spec.items() if value != []}}


# -- Services -------------------------------------------------------------------------------------


def build_service(job: Job, framework: Framework, replica: ReplicaId) -> Manifest:
    """Return the headless Service of a replica, with every port that its container declares.

    It publishes addresses that are not ready: replicas that wait for one another become ready only
    after they have found one another.
    """
    labels = {**type_labels(job, framework, replica.type), REPLICA_INDEX: str(replica.index)}
    template = job.replicas[replica.type].template
    ports = list(_service_ports(find_main_container(template, framework.container)))
    spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True}
    return add_owner(
        job,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": framework.pod_name(job, replica), "labels": labels},
            "spec": {**spec, "ports": ports} if ports else spec,
        },
    )


def _service_ports(container: Mapping[str, Any]) -> Iterator[Manifest]:
    for number, port in enumerate(container.get("ports") or ()):
        name = port.get("name") or f"port-{number}"
        protocol = {"protocol": port["protocol"]} if port.get("protocol") else {}
        yield {"name": name, "port": port["containerPort"], **protocol}


def desired_services(
    job: Job,
    framework: Framework,
    *,
    observed: ObservedReplicas,
    decision: Decision,
    existing: Collection[ReplicaId],
) -> frozenset[ReplicaId]:
    """Return the replicas that must have a Service once ``decision`` is applied.

    While a job is active, a replica keeps its Service through all its attempts. When it has
    finished, a Service is deleted with its pod, by the clean pod policy; when it is suspended, all
    are. ``existing`` are the replicas that have one now.
    """
    if not framework.services:
        return frozenset()
    if decision.status.finished:
        if job.run_policy.clean_pod_policy is CleanPodPolicy.NONE:
            return frozenset(existing)
        return _remaining_replicas(observed, decision) & frozenset(existing)
    if decision.status.has_condition(ConditionType.SUSPENDED):
        return frozenset()
    created = {action.replica for action in decision.actions if isinstance(action, CreateReplica)}
    needed = created | _remaining_replicas(observed, decision) | frozenset(existing)
    return frozenset(needed) & frozenset(replica_ids(job, framework))


def _remaining_replicas(observed: ObservedReplicas, decision: Decision) -> frozenset[ReplicaId]:
    """Return the replicas that keep a pod."""
    deleted = {action.uid for action in decision.actions if isinstance(action, DeleteReplica)}
    return frozenset(
        replica.id
        for replica in observed.replicas
        if replica.uid not in deleted and not replica.deleting
    )


# -- other objects --------------------------------------------------------------------------------


def build_config_map(
    job: Job, framework: Framework, running: Sequence[ReplicaId], *, topology: Topology
) -> Manifest | None:
    """Return the ConfigMap of the framework's files, None if it has none."""
    files = framework.files(job, topology, running)
    if not files:
        return None
    return add_owner(
        job,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": framework.files_config_map(job), "labels": {"app": job.name}},
            "data": {name: file.text for name, file in files.items()},
        },
    )


def build_autoscaler(job: Job) -> Manifest | None:
    """Return the HorizontalPodAutoscaler of an elastic job with metrics (Kubeflow's hpa.go)."""
    policy = job.elastic_policy
    if policy is None or not policy.metrics:
        return None
    spec = {
        "scaleTargetRef": {"apiVersion": API_VERSION, "kind": job.kind, "name": job.name},
        "minReplicas": policy.min_replicas,
        "maxReplicas": policy.max_replicas,
        "metrics": [dict(metric) for metric in policy.metrics],
    }
    # Without a bound the server sets a default, which must not look like a difference.
    spec = {name: value for name, value in spec.items() if value is not None}
    manifest = AUTOSCALERS.to_manifest({"metadata": {"name": job.name}, "spec": spec})
    return add_owner(job, manifest)
