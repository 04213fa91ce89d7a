"""The CustomResourceDefinition of every kind of training job, made of the framework and the types.

Group, names, subresources and printer columns are those of the training operator 1.9
(``manifests/base/crds``), so that its clients and its stored objects go on. What differs:

* A pod's template is kept as it is written instead of spelled out: 15 KB a kind instead of 600,
  which ``kubectl apply`` takes too, and no field of a newer Kubernetes is lost.
* What danlu refuses the server refuses where it can (bounds, enumerations, CEL), with no webhook:
  an object that came before, or through a server without these rules, is judged by the operator.
* Nothing but ``suspend`` has a default: others are filled in where a job is read, as Kubeflow does.
* Of a status even unknown fields are kept, so that an operator that is newer than its
  definitions loses nothing it has to remember.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from danlu.kube.types import Document
from danlu.operator.celrules import LONGEST, constant, known_types, main_container, short_enough
from danlu.operator.openapi import ANYTHING, OPEN, QUANTITY, Schema, closed, integer, schema_of
from danlu.training.cluster import GROUP, VERSION
from danlu.training.fields import MANAGERS
from danlu.training.framework import Framework
from danlu.training.frameworks.mxnet import MODES
from danlu.training.frameworks.pytorch import BACKENDS
from danlu.training.types import (
    CleanPodPolicy,
    ElasticPolicy,
    JobStatus,
    ReplicaStatus,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
    SchedulingPolicy,
)

__all__ = ["SCALED", "definition", "definitions"]

SCALED: Mapping[str, ReplicaType] = dict.fromkeys(
    ("PyTorchJob", "PaddleJob", "JAXJob"), ReplicaType("Worker")
)
"""The kinds that have a scale subresource, and the replicas that it counts."""

# A job's name begins those of its Services: a DNS-1035 label (kubeflow/trainer#1745).
_NAME: Schema = {"type": "string", "maxLength": LONGEST, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}
# A bound without which the server could not say that the rules are cheap.
_MOST_CONTAINERS = 64


def definitions(frameworks: Iterable[Framework]) -> tuple[Document, ...]:
    """The definitions of all ``frameworks``, by name."""
    return tuple(definition(one) for one in sorted(frameworks, key=lambda one: one.plural))


def definition(framework: Framework) -> Document:
    """The CustomResourceDefinition of ``framework``'s kind."""
    kind = framework.kind
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{framework.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": framework.plural,
                "singular": kind.lower(),
            },
            "scope": "Namespaced",
            "versions": [_version(framework)],
        },
    }


def _version(framework: Framework) -> Document:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": _job(framework)},
        "subresources": {"status": {}, **_scale(framework)},
    }


def _scale(framework: Framework) -> Document:
    type = SCALED.get(framework.kind)
    if type is None:
        return {}
    return {
        "scale": {
            "specReplicasPath": f".spec.{framework.replicas_field}.{type}.replicas",
            "statusReplicasPath": f".status.replicaStatuses.{type}.active",
            "labelSelectorPath": f".status.replicaStatuses.{type}.selector",
        }
    }


# -- the schema -----------------------------------------------------------------------------------


def _job(framework: Framework) -> Document:
    fields: dict[str, Schema] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": _NAME}},
        "spec": _spec(framework),
        "status": _status(),
    }
    job = closed(fields, ("spec",))
    return {**job, "x-kubernetes-validations": [*short_enough(framework)]}


def _spec(framework: Framework) -> Document:
    field = framework.replicas_field
    options = {name: OPTIONS.get(name, ANYTHING) for name in framework.options}
    spec = closed({**options, "runPolicy": _run_policy(), field: _replicas(framework)}, (field,))
    return {**spec, "x-kubernetes-validations": [*constant()]}


def _replicas(framework: Framework) -> Document:
    """The replicas by type, whose letter case is the user's."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": len(framework.types),
        "additionalProperties": _replica(framework),
        "x-kubernetes-validations": [*known_types(framework)],
    }


def _replica(framework: Framework) -> Document:
    fields: dict[str, Schema] = {
        "replicas": integer(),
        "restartPolicy": _choice(RestartPolicy),
        "template": _template(framework),
        "label": {"type": "string"},
    }
    return closed(fields, ("template",))


def _template(framework: Framework) -> Document:
    """A PodTemplateSpec: kept as it is, but for what every pod needs."""
    name: Schema = {"type": "string", "maxLength": LONGEST, "minLength": 1}
    image: Schema = {"type": "string", "minLength": 1}
    container = {**closed({"name": name, "image": image}, ("name", "image")), **OPEN}
    containers = {
        "type": "array",
        "minItems": 1,
        "maxItems": _MOST_CONTAINERS,
        "items": container,
    }
    if not framework.any_container:
        containers["x-kubernetes-validations"] = [main_container(framework)]
    pod = {**closed({"containers": containers}, ("containers",)), **OPEN}
    return {**closed({"spec": pod}, ("spec",)), **OPEN}


def _run_policy() -> Document:
    scheduling = schema_of(
        SchedulingPolicy,
        minAvailable=integer(),
        minResources={"type": "object", "additionalProperties": QUANTITY},
        scheduleTimeoutSeconds=integer(),
        queue={"type": "string"},
    )
    return schema_of(
        RunPolicy,
        cleanPodPolicy=_choice(CleanPodPolicy),
        ttlSecondsAfterFinished=integer(),
        activeDeadlineSeconds=integer(0, 2**63 - 1),
        backoffLimit=integer(),
        schedulingPolicy=scheduling,
        suspend={"type": "boolean", "default": False},
        managedBy=_choice(MANAGERS),
    )


def _elastic_policy() -> Document:
    key: Schema = {"type": "string", "minLength": 1}
    policy = schema_of(
        ElasticPolicy,
        minReplicas=integer(1),
        maxReplicas=integer(1),
        rdzvBackend=_choice(BACKENDS),
        rdzvPort=integer(1, 65535),
        rdzvConf={
            "type": "array",
            "items": closed({"key": key, "value": {"type": "string"}}, ("key",)),
        },
        nProcPerNode=integer(1),
        maxRestarts=integer(),
        metrics={"type": "array", "items": OPEN},
    )
    rule = {
        "rule": "!has(self.minReplicas) || !has(self.maxReplicas)"
        " || self.minReplicas <= self.maxReplicas",
        "message": "minReplicas is more than maxReplicas",
    }
    return {**policy, "x-kubernetes-validations": [rule]}


def _status() -> Document:
    # Kubeflow's operators before 1.7 wrote a whole selector beside its text.
    counts = {**schema_of(ReplicaStatus), **OPEN}
    status = schema_of(
        JobStatus, replicaStatuses={"type": "object", "additionalProperties": counts}
    )
    return {**status, **OPEN}


def _choice(names: Iterable[str]) -> Schema:
    """One of ``names``, or empty text, which counts as absent."""
    return {"type": "string", "enum": ["", *(str(name) for name in names)]}


OPTIONS: Mapping[str, Schema] = {
    "elasticPolicy": _elastic_policy(),
    "successPolicy": {"type": "string"},
    "enableDynamicWorker": {"type": "boolean"},
    "nprocPerNode": {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": "^(auto|cpu|gpu|[1-9][0-9]*)$",
    },
    "slotsPerWorker": integer(1),
    "mainContainer": {"type": "string"},
    "cleanPodPolicy": _choice(CleanPodPolicy),
    "jobMode": _choice(MODES),
}
"""The kinds' further fields, where Kubeflow's kinds have them; a framework's others are open."""
