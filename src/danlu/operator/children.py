"""The objects that a job has on a cluster, as documents: pure, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from danlu.kube.types import Document
from danlu.operator.gangs import with_gang
from danlu.operator.types import OperatorSettings
from danlu.training.cluster import config_name
from danlu.training.document import API_VERSION
from danlu.training.framework import Framework
from danlu.training.frameworks.pods import main_container
from danlu.training.rendering import REPLICA_INDEX, render_pod, type_labels
from danlu.training.topology import ServiceTopology, replica_name
from danlu.training.types import Job, ReplicaId, Topology

__all__ = ["config_map", "owned", "owner_reference", "pod", "service", "topology_of"]

_CONTAINERS = ("initContainers", "containers")


def topology_of(job: Job, framework: Framework, settings: OperatorSettings) -> ServiceTopology:
    """Where the job's replicas reach one another."""
    return ServiceTopology(job, settings.cluster_domain, framework)


def owner_reference(job: Job) -> Document:
    """The job as the controlling owner of an object."""
    return {
        "apiVersion": API_VERSION,
        "kind": job.kind,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned(job: Job, document: Mapping[str, Any]) -> Document:
    """``document`` in the job's namespace, and the job's own."""
    owner = {"namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
    return {**document, "metadata": {**(document.get("metadata") or {}), **owner}}


def pod(
    job: Job, framework: Framework, replica: ReplicaId, *, settings: OperatorSettings
) -> Document:
    """The Pod of one replica, undecorated by others."""
    topology = topology_of(job, framework, settings)
    document = render_pod(job, framework, replica, topology)
    document = _with_images(job, framework, replica, settings, document)
    return owned(job, with_gang(job, replica, document, settings=settings))


def service(job: Job, framework: Framework, replica: ReplicaId) -> Document:
    """The headless Service of one replica, with every port that its container declares.

    A replica is to be found before it is ready: those that wait for one another are ready when
    they found one another.
    """
    labels = {**type_labels(job, framework, replica.type), REPLICA_INDEX: str(replica.index)}
    template = job.replicas[replica.type].template
    ports = list(_ports(main_container(template, framework.container)))
    spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True}
    return owned(
        job,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": replica_name(job, replica), "labels": labels},
            "spec": {**spec, "ports": ports} if ports else spec,
        },
    )


def config_map(
    job: Job, framework: Framework, running: Sequence[ReplicaId], *, topology: Topology
) -> Document | None:
    """The ConfigMap of the framework's files, where it has any."""
    files = framework.files(job, topology, running)
    if not files:
        return None
    return owned(
        job,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config_name(job.name), "labels": {"app": job.name}},
            "data": {name: file.text for name, file in files.items()},
        },
    )


def _ports(container: Mapping[str, Any]) -> Iterator[Document]:
    for number, port in enumerate(container.get("ports") or ()):
        name = port.get("name") or f"port-{number}"
        given = {"protocol": port["protocol"]} if port.get("protocol") else {}
        yield {"name": name, "port": port["containerPort"], **given}


def _with_images(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    settings: OperatorSettings,
    document: Document,
) -> Document:
    """The pod with the images that the operator was told in place of the framework's own.

    Init containers that wait for a master are left out where nobody asked for them: names of
    Services resolve when the program looks, and it looks again.
    """
    template = job.replicas[replica.type].template.get("spec") or {}
    users = {one.get("name") for list in _CONTAINERS for one in template.get(list) or ()}
    waiting = f"init-{framework.name}"
    spec = dict(document["spec"])
    for name in _CONTAINERS:
        if name in spec:
            spec[name] = [
                one if one["name"] in users else _with_image(one, waiting, settings)
                for one in spec[name]
                if one["name"] in users or one["name"] != waiting or settings.wait_for_master
            ]
    return {**document, "spec": {name: value for name, value in spec.items() if value != []}}


def _with_image(container: Document, waiting: str, settings: OperatorSettings) -> Document:
    image = settings.images.get(container["image"], container["image"])
    if container["name"] == waiting:
        image = settings.wait_for_master
    return {**container, "image": image}
