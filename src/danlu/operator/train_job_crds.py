"""The CRDs of TrainJobs and their runtimes, with the rules of Kubeflow Trainer's.

Names, bounds, defaults, CEL rules and messages are those of its ``manifests/base/crds`` (between
2.3 and 2.4); ``tests/operator/trainer_crds.json`` has them as recorded there. What belongs to
Kubernetes' own types (templates of Jobs and of claims, volumes, affinities) is preserved instead of
spelled out. ``status.danlu`` is the operator's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.kube.types import Manifest
from danlu.operator.openapi import (
    OPEN_OBJECT,
    QUANTITY,
    Schema,
    closed_object,
    integer_schema,
)
from danlu.operator.types import runtime_resource
from danlu.training.frameworks.train_job import API_GROUP, MPI, POLICIES
from danlu.training.manifest_schema import VOLUME_SOURCES
from danlu.training.names import STATUS_FIELD
from danlu.training.train_job.schema import API_VERSION, MANAGERS, RUNTIME_KINDS

_TEXT: Schema = {"type": "string"}
_EMPTY: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "integer", "format": "int32"}
_COUNT = integer_schema()
_TIME: Schema = {"type": "string", "format": "date-time"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_ATOMIC_TEXTS: Schema = {**_TEXTS, "x-kubernetes-list-type": "atomic"}
_TEXT_MAP: Schema = {"type": "object", "additionalProperties": _TEXT}
_IMMUTABLE: Schema = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "field is immutable"}]
}
_FIXED_VALUE: Schema = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}]
}
_URI_RULE = {
    "rule": "self == '' || self.matches('^[A-Za-z][A-Za-z0-9+.-]*://.+$')",
    "message": "storageUri may be empty, or it must be a valid URI (scheme://...)",
}
_NAME_RULES = (
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "metadata.name must match RFC 1035 DNS label format",
    },
    {
        "rule": "size(self.metadata.name) <= 63",
        "message": "metadata.name must be no more than 63 characters",
    },
)
_ONE_POLICY = {
    "rule": "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)]"
    ".filter(x, x).size() <= 1",
    "message": "Only one of the policy can be configured",
}
_INJECTION_RULE = {
    "rule": "!self.exists(c, c == 'node')",
    "message": "containerNames must not include the main node container because PET_* envs are"
    " always injected into it",
}
_STARTUP_RULE = {
    "rule": "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder'"
    " && self.replicatedJobs.exists(x, has(x.dependsOn)))",
    "message": "StartupPolicy and DependsOn APIs are mutually exclusive",
}
_CLAIM_RULE = {
    "rule": "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)",
    "message": "namespace cannot be set for VolumeClaimPolicies templates",
}
_MANAGER_RULE = {
    "rule": f"self in {list(MANAGERS)}",
    "message": f"ManagedBy must be {' or '.join(MANAGERS)} if set",
}


def train_job_definitions(kind: str, plural: str) -> tuple[Manifest, ...]:
    """Return the CRDs of TrainJobs and of both kinds of runtimes."""
    runtimes = (
        _build_definition(
            resource.kind, resource.plural, _runtime_schema(), namespaced=resource.namespaced
        )
        for resource in map(runtime_resource, RUNTIME_KINDS)
    )
    job = _build_definition(kind, plural, _train_job_schema())
    job["spec"]["versions"][0] |= {
        "additionalPrinterColumns": [
            {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "subresources": {"status": {}},
    }
    return (*runtimes, job)


def _build_definition(
    kind: str, plural: str, schema: Schema, *, namespaced: bool = True
) -> Manifest:
    version = {"name": API_VERSION.partition("/")[2], "served": True, "storage": True}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": names,
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _root_schema(**fields: Schema) -> Manifest:
    header = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _EMPTY}
    return closed_object({**header, **fields})


# -- parts ----------------------------------------------------------------------------------------


def _text_schema(maximum: int, minimum: int = 0, **rules: Any) -> Schema:
    bounds = {"maxLength": maximum, **({"minLength": minimum} if minimum else {})}
    return {**_TEXT, **bounds, **rules}


_NAME = _text_schema(253, 1)


def _list_schema(items: Schema, maximum: int = 0, kind: str = "atomic", **rules: Any) -> Schema:
    bound = {"maxItems": maximum} if maximum else {}
    return {"type": "array", "x-kubernetes-list-type": kind, **bound, **rules, "items": items}


def _map_list(items: Schema, maximum: int = 0, *, key: str = "name", **rules: Any) -> Schema:
    return {
        **_list_schema(items, maximum, "map", **rules),
        "x-kubernetes-list-map-keys": [key],
    }


def _open_item(*required: str, **fields: Schema) -> Schema:
    """Return the schema of an item of Kubernetes' own types, of which only some fields count."""
    properties = {**dict.fromkeys(required, _TEXT), **fields}
    return {**closed_object(properties, required), **OPEN_OBJECT}


# The CEL expression `self == oldSelf` misses a field that replaces another if the schema has
# neither, so the fields of which a value has one are named.
_VALUE_SOURCES = ("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef")
_VALUE_FROM = closed_object(dict.fromkeys(_VALUE_SOURCES, OPEN_OBJECT))
_ENV = _map_list(_open_item("name", value=_TEXT, valueFrom={**_VALUE_FROM, **OPEN_OBJECT}), 128)
_VOLUME = _open_item("name", **dict.fromkeys(VOLUME_SOURCES.split(), OPEN_OBJECT))
_METADATA = closed_object(
    {
        **dict.fromkeys(("annotations", "labels"), _TEXT_MAP),
        "finalizers": _TEXTS,
        **dict.fromkeys(("name", "namespace"), _TEXT),
    }
)
_QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
_RESOURCES = closed_object(
    {
        "claims": _map_list(_open_item("name")),
        "limits": _QUANTITIES,
        "requests": _QUANTITIES,
    }
)


# -- TrainJobs ------------------------------------------------------------------------------------


def _train_job_schema() -> Schema:
    schema = _root_schema(spec=_train_job_spec(), status=_train_job_status())
    return {**schema, "x-kubernetes-validations": [*_NAME_RULES]}


def _train_job_spec() -> Schema:
    reference = {
        "name": _NAME,
        "apiGroup": _text_schema(253, default=API_GROUP),
        "kind": _text_schema(253, default=RUNTIME_KINDS[0]),
    }
    patch = {
        "manager": {**_NAME, **_IMMUTABLE},
        "time": _TIME,
        "trainingRuntimeSpec": closed_object({"template": _job_set_patch()}),
    }
    managers = [_MANAGER_RULE, *_IMMUTABLE["x-kubernetes-validations"]]
    deadline = {"type": "integer", "format": "int64", "minimum": 1}
    return closed_object(
        {
            "runtimeRef": {**closed_object(reference, ("name",)), **_IMMUTABLE},
            "initializer": {
                **closed_object(dict.fromkeys(("dataset", "model"), _initializer_schema())),
                **_IMMUTABLE,
            },
            "trainer": {**_trainer_schema(), **_IMMUTABLE},
            "runtimePatches": _map_list(closed_object(patch, ("manager",)), 16, key="manager"),
            "suspend": {**_BOOLEAN, "default": False},
            "activeDeadlineSeconds": {**deadline, **_IMMUTABLE},
            "managedBy": {
                **_text_schema(253, default=MANAGERS[0]),
                "x-kubernetes-validations": managers,
            },
        },
        ("runtimeRef",),
    )


def _initializer_schema() -> Schema:
    return closed_object(
        {
            "storageUri": {**_text_schema(2048), "x-kubernetes-validations": [_URI_RULE]},
            "env": _ENV,
            "secretRef": closed_object({"name": {**_TEXT, "default": ""}}),
        }
    )


def _trainer_schema() -> Schema:
    at_least_one = "numProcPerNode must be greater than or equal to 1"
    return closed_object(
        {
            "image": _text_schema(500),
            **dict.fromkeys(("command", "args"), _list_schema(_text_schema(1 << 20), 128)),
            "env": _ENV,
            "numNodes": _COUNT,
            "resourcesPerNode": _RESOURCES,
            "numProcPerNode": _at_least_one(at_least_one),
        }
    )


def _at_least_one(message: str, **rules: Any) -> Schema:
    rule = {"rule": "self >= 1", "message": message}
    return {**_NUMBER, **rules, "x-kubernetes-validations": [rule]}


def _job_set_patch() -> Schema:
    """Return the schema of what managers such as Kueue may change of a runtime's template."""
    container = closed_object(
        {
            "name": _NAME,
            "env": _ENV,
            "volumeMounts": _map_list(_open_item("mountPath", "name"), 128),
            "securityContext": OPEN_OBJECT,
        },
        ("name",),
    )
    pod = closed_object(
        {
            "serviceAccountName": _text_schema(253, **_IMMUTABLE),
            "nodeSelector": _TEXT_MAP,
            "affinity": OPEN_OBJECT,
            "tolerations": _list_schema(OPEN_OBJECT, 128),
            "schedulingGates": _map_list(_open_item("name"), 16),
            "imagePullSecrets": _map_list(
                closed_object({"name": {**_TEXT, "default": ""}}), 64, **_IMMUTABLE
            ),
            "volumes": _map_list(_VOLUME, 128, **_IMMUTABLE),
            **dict.fromkeys(
                ("containers", "initContainers"), _map_list(container, 64, **_IMMUTABLE)
            ),
            "securityContext": {**OPEN_OBJECT, **_IMMUTABLE},
            "terminationGracePeriodSeconds": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                **_IMMUTABLE,
            },
        }
    )
    job = {"name": _NAME, "template": _describe_template(_describe_job(pod))}
    replicated_jobs = _map_list(closed_object(job, ("name",)), 100)
    return _describe_template(closed_object({"replicatedJobs": replicated_jobs}))


def _describe_job(pod: Schema) -> Schema:
    return closed_object({"template": _describe_template(pod)})


def _describe_template(spec: Schema) -> Schema:
    return closed_object({"metadata": _METADATA, "spec": spec})


def _train_job_status() -> Schema:
    condition = closed_object(
        {
            "type": _text_schema(316, pattern=_CONDITION_TYPE),
            "status": {**_TEXT, "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": _TIME,
            "reason": _text_schema(1024, 1, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
            "message": _text_schema(32768),
        },
        ("lastTransitionTime", "message", "reason", "status", "type"),
    )
    counts = ("active", "failed", "ready", "succeeded", "suspended")
    job = closed_object(
        {"name": _NAME, **dict.fromkeys(counts, _COUNT)}, tuple(sorted((*counts, "name")))
    )
    label = _text_schema(64, 1)
    metric = closed_object({"name": label, "value": label}, ("name", "value"))
    trainer = closed_object(
        {
            "progressPercentage": {**_NUMBER, "minimum": 0, "maximum": 100},
            "estimatedRemainingSeconds": _COUNT,
            "metrics": _list_schema(metric, 256),
            "lastUpdatedTime": _TIME,
        }
    )
    required = "lastUpdatedTime is required when trainerStatus is present"
    rule = {"rule": "has(self.lastUpdatedTime)", "message": required}
    return {
        **closed_object(
            {
                "conditions": _map_list(condition, 8, key="type"),
                "jobsStatus": _map_list(job, 100),
                "trainerStatus": {**trainer, "x-kubernetes-validations": [rule]},
                STATUS_FIELD: OPEN_OBJECT,
            }
        ),
        "minProperties": 1,
    }


_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)


# -- runtimes -------------------------------------------------------------------------------------


def _runtime_schema() -> Schema:
    timeout = {**_NUMBER, "default": 60}
    fields: Mapping[str, Schema] = {
        "mlPolicy": _ml_policy_schema(),
        "podGroupPolicy": closed_object(
            {
                "coscheduling": closed_object({"scheduleTimeoutSeconds": timeout}),
                "volcano": closed_object({"networkTopology": _TOPOLOGY}),
            }
        ),
        "template": {**_describe_template(_job_set_schema()), "minProperties": 1},
    }
    return _root_schema(spec={**closed_object(fields), "minProperties": 1})


_TOPOLOGY = closed_object(
    {
        "highestTierAllowed": {"type": "integer", "default": 1},
        "mode": {**_TEXT, "enum": ["hard", "soft"], "default": "hard"},
    }
)


def _ml_policy_schema() -> Schema:
    names = _list_schema(_text_schema(63), 8, "set", minItems=1)
    target = {
        "jobName": _NAME,
        "containerNames": {**names, "x-kubernetes-validations": [_INJECTION_RULE]},
    }
    targets = _map_list(closed_object(target, ("containerNames", "jobName")), 16, key="jobName")
    mpi = {
        "numProcPerNode": _at_least_one("NumProcPerNode in mpiPolicy must be >= 1", default=1),
        "mpiImplementation": {**_TEXT, "enum": ["OpenMPI", ""], "default": "OpenMPI"},
        "sshAuthMountPath": _text_schema(4096, default="/root/.ssh"),
        "runLauncherAsNode": {**_BOOLEAN, "default": False},
    }
    injection = closed_object({"targets": targets})
    flux = _at_least_one("NumProcPerNode in fluxPolicy must be >= 1", default=1)
    policies = {
        "numNodes": _NUMBER,
        **{
            name: closed_object({"envInjection": injection}) if policy.injects_env else _EMPTY
            for name, policy in POLICIES.items()
        },
        MPI: closed_object(mpi),
        "flux": closed_object({"numProcPerNode": flux}),
    }
    return {**closed_object(policies), "x-kubernetes-validations": [_ONE_POLICY]}


def _job_set_schema() -> Schema:
    """Return the schema of JobSet's spec (``jobset.x-k8s.io/v1alpha2``)."""
    dependency = closed_object(
        {"name": _TEXT, "status": {**_TEXT, "enum": ["Ready", "Complete"]}}, ("name", "status")
    )
    job = closed_object(
        {
            "name": _TEXT,
            "groupName": {**_TEXT, "default": "default"},
            "replicas": {**_NUMBER, "default": 1},
            "dependsOn": _map_list(dependency, 5, **_FIXED_VALUE),
            "template": OPEN_OBJECT,
        },
        ("name", "template"),
    )
    actions = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts")
    restarts = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
    rule = closed_object(
        {
            "name": _TEXT,
            "action": {**_TEXT, "enum": [*actions, *restarts]},
            **dict.fromkeys(("onJobFailureReasons", "onJobFailureMessagePatterns"), _TEXTS),
            "targetReplicatedJobs": _ATOMIC_TEXTS,
        },
        ("action", "name"),
    )
    strategies = ["Recreate", "BlockingRecreate", "InPlaceRestart"]
    failure_policy = {
        "maxRestarts": _NUMBER,
        "restartStrategy": {**_TEXT, "enum": strategies, "default": strategies[0]},
        "rules": {"type": "array", "items": rule},
    }
    network = {
        **dict.fromkeys(("enableDNSHostnames", "publishNotReadyAddresses"), _BOOLEAN),
        "subdomain": _TEXT,
    }
    success_policy = {
        "operator": {**_TEXT, "enum": ["All", "Any"]},
        "targetReplicatedJobs": _ATOMIC_TEXTS,
    }
    order = {"startupPolicyOrder": {**_TEXT, "enum": ["AnyOrder", "InOrder"]}}
    deletion = {**_TEXT, "enum": ["Delete", "Retain"], "default": "Delete"}
    claim_metadata = {**closed_object({"namespace": _TEXT}), **OPEN_OBJECT}
    claim = {**closed_object({"metadata": claim_metadata}), **OPEN_OBJECT}
    claims = {
        **closed_object(
            {
                "retentionPolicy": closed_object({"whenDeleted": deletion}),
                "templates": _list_schema(claim, 50),
            }
        ),
        "x-kubernetes-validations": [_CLAIM_RULE],
    }
    coordinator = {"replicatedJob": _TEXT, **dict.fromkeys(("jobIndex", "podIndex"), _INTEGER)}
    spec = closed_object(
        {
            "replicatedJobs": _map_list(job),
            "network": {**closed_object(network), **_FIXED_VALUE},
            "successPolicy": {**closed_object(success_policy, ("operator",)), **_FIXED_VALUE},
            "failurePolicy": {**closed_object(failure_policy), **_FIXED_VALUE},
            "startupPolicy": {**closed_object(order, ("startupPolicyOrder",)), **_FIXED_VALUE},
            "suspend": _BOOLEAN,
            "coordinator": closed_object(coordinator, ("replicatedJob",)),
            "managedBy": _TEXT,
            "ttlSecondsAfterFinished": _COUNT,
            "volumeClaimPolicies": _list_schema(claims, 50, **_FIXED_VALUE),
        }
    )
    return {**spec, "x-kubernetes-validations": [_STARTUP_RULE]}


_INTEGER: Schema = {"type": "integer"}
