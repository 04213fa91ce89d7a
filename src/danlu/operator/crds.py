"""CustomResourceDefinitions of the training jobs, generated from the frameworks and the types.

Those of TrainJobs and their runtimes are in :mod:`danlu.operator.train_job_crds`.

Group, names, subresources and printer columns are those of the training operator 1.9
(``manifests/base/crds``), so that its clients and stored objects keep working. A version that
another operator serves has that one's fields and defaults. Differences:

* The pod template preserves unknown fields instead of spelling all of them out. A CRD has 15 KB
  instead of 600, which ``kubectl apply`` accepts too, and no field of a newer Kubernetes is lost.
* The server rejects invalid jobs as far as it can (bounds, enums, CEL), without a webhook. The
  operator validates the rest, and objects that were stored before these rules.
* Only ``suspend`` has a default in v1; others are set when a job is decoded, as in Kubeflow.
* The status preserves unknown fields, so that an operator that is newer than its CRDs loses no
  state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from danlu.kube.types import Manifest
from danlu.operator.cel_rules import (
    immutable_field_rules,
    main_container_rule,
    name_length_rules,
    replica_type_rules,
)
from danlu.operator.openapi import (
    ANY_VALUE,
    OPEN_OBJECT,
    QUANTITY,
    Schema,
    closed_object,
    integer_schema,
    struct_schema,
)
from danlu.operator.stored_versions import definition_name
from danlu.operator.train_job_crds import train_job_definitions
from danlu.operator.types import job_resource
from danlu.training.framework import Framework
from danlu.training.manifest_schema import MULTIKUEUE
from danlu.training.registry import TRAIN_JOB
from danlu.training.types import (
    RDZV_BACKENDS,
    CleanPodPolicy,
    ElasticPolicy,
    JobStatus,
    ReplicaStatus,
    RunPolicy,
    SchedulingPolicy,
)
from danlu.util.dns_label import DNS_1035, MAX_LABEL_LENGTH

# The name of a job is a prefix of its Services' names, which are DNS-1035 labels
# (kubeflow/trainer#1745).
_NAME_SCHEMA: Schema = {
    "type": "string",
    "maxLength": MAX_LABEL_LENGTH,
    "pattern": f"^{DNS_1035.pattern}$",
}
# Without a bound the server rejects the CEL rules as too expensive.
_MAX_CONTAINERS = 64


def custom_resource_definitions(frameworks: Iterable[Framework]) -> tuple[Manifest, ...]:
    """Return the CRDs of all ``frameworks``, sorted by name."""
    return tuple(
        definition
        for framework in sorted(frameworks, key=lambda framework: framework.plural)
        for definition in (
            train_job_definitions(framework.kind, framework.plural)
            if framework is TRAIN_JOB
            else (custom_resource_definition(framework),)
        )
    )


def custom_resource_definition(framework: Framework) -> Manifest:
    """Return the CRD of a framework's kind."""
    kind, resource = framework.kind, job_resource(framework)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition_name(framework)},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": framework.plural,
                "singular": kind.lower(),
            },
            "scope": "Namespaced",
            "versions": [_crd_version(framework)],
        },
    }


def _crd_version(framework: Framework) -> Manifest:
    return {
        "name": job_resource(framework).version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": _job_schema(framework)},
        "subresources": {"status": {}, **_scale_subresource(framework)},
    }


def _scale_subresource(framework: Framework) -> Manifest:
    type = framework.scaled_type
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


def _job_schema(framework: Framework) -> Manifest:
    fields: dict[str, Schema] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": _NAME_SCHEMA}},
        "spec": _spec_schema(framework),
        "status": _status_schema(),
    }
    job = closed_object(fields, ("spec",))
    return {**job, "x-kubernetes-validations": [*name_length_rules(framework)]}


def _spec_schema(framework: Framework) -> Manifest:
    field = framework.replicas_field
    options = {
        name: schema or _SHARED_OPTIONS.get(name, ANY_VALUE)
        for name, schema in framework.spec_options.items()
    }
    spec = closed_object(
        {**options, "runPolicy": _run_policy_schema(framework), field: _replicas_schema(framework)},
        (field,),
    )
    return {**spec, "x-kubernetes-validations": [*immutable_field_rules()]}


def _replicas_schema(framework: Framework) -> Manifest:
    """Return the schema of the replica map, whose keys users write in any case."""
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": len(framework.replica_types),
        "additionalProperties": _replica_schema(framework),
        "x-kubernetes-validations": [*replica_type_rules(framework)],
    }


def _replica_schema(framework: Framework) -> Manifest:
    fields: dict[str, Schema] = {
        "replicas": integer_schema(),
        "restartPolicy": _enum_schema(framework.restart_policies),
        "template": _template_schema(framework),
        "label": {"type": "string"},
    }
    return closed_object(fields, ("template",))


def _template_schema(framework: Framework) -> Manifest:
    """Return the schema of a PodTemplateSpec: preserved as is, except for required fields."""
    name: Schema = {"type": "string", "maxLength": MAX_LABEL_LENGTH, "minLength": 1}
    image: Schema = {"type": "string", "minLength": 1}
    container = {**closed_object({"name": name, "image": image}, ("name", "image")), **OPEN_OBJECT}
    containers = {
        "type": "array",
        "minItems": 1,
        "maxItems": _MAX_CONTAINERS,
        "items": container,
    }
    if not framework.any_container:
        containers["x-kubernetes-validations"] = [main_container_rule(framework)]
    pod = {**closed_object({"containers": containers}, ("containers",)), **OPEN_OBJECT}
    return {**closed_object({"spec": pod}, ("spec",)), **OPEN_OBJECT}


def _run_policy_schema(framework: Framework) -> Manifest:
    scheduling = struct_schema(
        SchedulingPolicy,
        minAvailable=integer_schema(),
        minResources={"type": "object", "additionalProperties": QUANTITY},
        scheduleTimeoutSeconds=integer_schema(),
        queue={"type": "string"},
    )
    return struct_schema(
        RunPolicy,
        cleanPodPolicy=_enum_schema(CleanPodPolicy),
        ttlSecondsAfterFinished=integer_schema(),
        activeDeadlineSeconds=integer_schema(0, 2**63 - 1),
        backoffLimit=integer_schema(),
        schedulingPolicy=scheduling,
        suspend={"type": "boolean", "default": False},
        managedBy=_enum_schema((framework.manager, MULTIKUEUE)),
    )


def _elastic_policy_schema() -> Manifest:
    key: Schema = {"type": "string", "minLength": 1}
    policy = struct_schema(
        ElasticPolicy,
        minReplicas=integer_schema(1),
        maxReplicas=integer_schema(1),
        rdzvBackend=_enum_schema(RDZV_BACKENDS),
        rdzvPort=integer_schema(1, 65535),
        rdzvConf={
            "type": "array",
            "items": closed_object({"key": key, "value": {"type": "string"}}, ("key",)),
        },
        nProcPerNode=integer_schema(1),
        maxRestarts=integer_schema(),
        metrics={"type": "array", "items": OPEN_OBJECT},
    )
    rule = {
        "rule": "!has(self.minReplicas) || !has(self.maxReplicas)"
        " || self.minReplicas <= self.maxReplicas",
        "message": "minReplicas must not exceed maxReplicas",
    }
    return {**policy, "x-kubernetes-validations": [rule]}


def _status_schema() -> Manifest:
    # Kubeflow's operators before 1.7 wrote a whole selector in addition to its text.
    counts = {**struct_schema(ReplicaStatus), **OPEN_OBJECT}
    status = struct_schema(
        JobStatus, replicaStatuses={"type": "object", "additionalProperties": counts}
    )
    return {**status, **OPEN_OBJECT}


def _enum_schema(names: Iterable[str]) -> Schema:
    """Return a schema for one of ``names``, or the empty string, which counts as absent."""
    return {"type": "string", "enum": ["", *(str(name) for name in names)]}


_SHARED_OPTIONS: Mapping[str, Schema] = {
    "elasticPolicy": _elastic_policy_schema(),
    "successPolicy": {"type": "string"},
    "cleanPodPolicy": _enum_schema(CleanPodPolicy),
}
