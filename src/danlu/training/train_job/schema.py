"""The schema of TrainJobs and training runtimes (``pkg/apis/trainer/v1alpha1``, JobSet's API).

Fields that exist but that danlu does not support on this machine are refused by name: a job that
runs without them would be another job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from danlu.training.framework import FieldError
from danlu.training.frameworks.train_job import (
    API_GROUP,
    FRAMEWORK,
    MPI,
    NODE,
    POLICIES,
    POLICIES_FIELD,
    RETAIN,
    UNSUPPORTED_POLICIES,
)
from danlu.training.manifest_schema import (
    CONTAINER,
    INT64,
    METADATA,
    POD,
    TEXT_MAP,
    TEXTS,
    VARIABLE,
    FieldCheck,
    any_value,
    check_boolean,
    check_text,
    choice_check,
    integer_check,
    list_check,
    map_check,
    record_check,
)

API_VERSION = FRAMEWORK.api_version
RUNTIME_KINDS = CLUSTER_RUNTIME, NAMESPACED_RUNTIME = ("ClusterTrainingRuntime", "TrainingRuntime")
MANAGERS = ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")

NO_DATA_CACHE = "Kubeflow's data cache runs on a cluster only"

_DOMAIN_PATH = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/\S+")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")


def _refuse_value(reason: str, hint: str = "") -> FieldCheck:
    """Return a check that refuses every value but empty ones."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if value not in ({}, [], "", False):
            yield FieldError(path, reason, hint)

    return check


def _check_uri(path: str, value: Any) -> Iterator[FieldError]:
    yield from check_text(path, value)
    if isinstance(value, str) and value and not _URI.fullmatch(value):
        yield FieldError(path, f"invalid URI '{value}'", "write scheme://…, or leave it out")
    if isinstance(value, str) and value.startswith("cache://"):
        yield FieldError(path, NO_DATA_CACHE, "use hf:// or s3://")


def _check_domain_path(path: str, value: Any) -> Iterator[FieldError]:
    yield from check_text(path, value)
    if isinstance(value, str) and not _DOMAIN_PATH.fullmatch(value):
        yield FieldError(path, "must be a domain-prefixed path", "such as acme.io/foo")


_LABELS = record_check({"labels": TEXT_MAP, "annotations": TEXT_MAP})
_ENV = list_check(VARIABLE)
_INITIALIZER = record_check(
    {
        "storageUri": _check_uri,
        "env": _ENV,
        "secretRef": record_check({"name": check_text}, ("name",)),
    }
)
_TRAINER = record_check(
    {
        "image": check_text,
        "command": TEXTS,
        "args": TEXTS,
        "env": _ENV,
        "numNodes": integer_check(),
        "resourcesPerNode": CONTAINER["resources"],
        "numProcPerNode": integer_check(1),
    }
)

_CONTAINER_PATCH = record_check(
    {name: CONTAINER[name] for name in ("name", "env", "volumeMounts", "securityContext")},
    ("name",),
)
_POD_PATCH = record_check(
    {
        **{
            name: POD[name]
            for name in (
                *("serviceAccountName", "volumes", "imagePullSecrets", "securityContext"),
                *("nodeSelector", "affinity", "tolerations", "schedulingGates"),
                "terminationGracePeriodSeconds",
            )
        },
        "initContainers": list_check(_CONTAINER_PATCH),
        "containers": list_check(_CONTAINER_PATCH),
    }
)


def _template_patch(spec: FieldCheck) -> FieldCheck:
    return record_check({"metadata": _LABELS, "spec": spec})


_JOB_PATCH = record_check(
    {
        "name": check_text,
        "template": _template_patch(record_check({"template": _template_patch(_POD_PATCH)})),
    },
    ("name",),
)
_RUNTIME_PATCH = record_check(
    {
        "manager": _check_domain_path,
        "time": check_text,
        "trainingRuntimeSpec": record_check(
            {"template": _template_patch(record_check({"replicatedJobs": list_check(_JOB_PATCH)}))}
        ),
    },
    ("manager",),
)

_TRAIN_JOB_SPEC = record_check(
    {
        "runtimeRef": record_check(
            {
                "name": check_text,
                "apiGroup": choice_check((API_GROUP,)),
                "kind": choice_check(RUNTIME_KINDS),
            },
            ("name",),
        ),
        "initializer": record_check({"dataset": _INITIALIZER, "model": _INITIALIZER}),
        "trainer": _TRAINER,
        "runtimePatches": list_check(_RUNTIME_PATCH),
        "suspend": check_boolean,
        "activeDeadlineSeconds": integer_check(1, INT64),
        "managedBy": choice_check(MANAGERS),
    },
    ("runtimeRef",),
    elsewhere={
        "podTemplateOverrides": "Kubeflow Trainer 2.2 replaced it with runtimePatches",
        "modelConfig": "write it as spec.initializer.model",
        "datasetConfig": "write it as spec.initializer.dataset",
    },
)


def _check_target_containers(path: str, value: Any) -> Iterator[FieldError]:
    yield from TEXTS(path, value)
    if value == []:
        yield FieldError(path, "must name a container")
    if isinstance(value, list) and NODE in value:
        yield FieldError(path, f"must not include '{NODE}'", "it always gets the variables")


_INJECTION_TARGET = record_check(
    {"jobName": check_text, "containerNames": _check_target_containers},
    ("jobName", "containerNames"),
)
_ENV_INJECTION = {"envInjection": record_check({"targets": list_check(_INJECTION_TARGET)})}
_NO_PROCESSES = "write it as spec.trainer.numProcPerNode of the TrainJob"
_ML_POLICY: dict[str, FieldCheck] = {
    "numNodes": integer_check(),
    **{
        name: record_check(
            _ENV_INJECTION if policy.injects_env else {},
            elsewhere={"numProcPerNode": _NO_PROCESSES},
        )
        for name, policy in POLICIES.items()
    },
    MPI: record_check(
        {
            "numProcPerNode": integer_check(1),
            "mpiImplementation": choice_check(("OpenMPI", "")),
            "sshAuthMountPath": check_text,
            "runLauncherAsNode": check_boolean,
        }
    ),
    **dict.fromkeys(UNSUPPORTED_POLICIES, any_value),
}

_JOB_SPEC = record_check(
    {
        **dict.fromkeys(("parallelism", "completions"), integer_check()),
        "backoffLimit": integer_check(),
        "completionMode": choice_check(("Indexed",)),
        "template": record_check(
            {"metadata": METADATA, "spec": record_check(POD, ("containers",))}, ("spec",)
        ),
        **dict.fromkeys(
            (
                *("activeDeadlineSeconds", "backoffLimitPerIndex", "maxFailedIndexes"),
                *("podFailurePolicy", "podReplacementPolicy", "successPolicy", "selector"),
                *("manualSelector", "ttlSecondsAfterFinished", "suspend", "managedBy"),
            ),
            _refuse_value("of a Job in a runtime is not supported"),
        ),
    },
    ("template",),
)
_REPLICATED_JOB = record_check(
    {
        "name": check_text,
        "groupName": check_text,
        "replicas": integer_check(1, 1),
        "dependsOn": list_check(
            record_check(
                {"name": check_text, "status": choice_check(("Ready", "Complete"))},
                ("name", "status"),
            )
        ),
        "template": record_check({"metadata": METADATA, "spec": _JOB_SPEC}, ("spec",)),
    },
    ("name", "template"),
)
_CLAIM_POLICY = record_check(
    {
        "templates": list_check(
            record_check(
                {
                    **dict.fromkeys(("apiVersion", "kind"), check_text),
                    "metadata": METADATA,
                    # The size and the class of a disk.
                    **dict.fromkeys(("spec", "status"), map_check(any_value)),
                },
                ("metadata",),
            )
        ),
        "retentionPolicy": record_check({"whenDeleted": choice_check(("Delete", RETAIN))}),
    }
)
_JOB_SET = record_check(
    {
        "replicatedJobs": list_check(_REPLICATED_JOB),
        "network": record_check(
            {
                "enableDNSHostnames": check_boolean,
                "publishNotReadyAddresses": check_boolean,
                "subdomain": check_text,
            }
        ),
        "successPolicy": record_check(
            {"operator": choice_check(("All", "Any")), "targetReplicatedJobs": TEXTS},
            ("operator",),
        ),
        "failurePolicy": record_check(
            {
                "maxRestarts": integer_check(),
                "restartStrategy": choice_check(("Recreate", "BlockingRecreate")),
                "rules": _refuse_value("rules of a failure policy are not supported"),
            }
        ),
        "startupPolicy": record_check(
            {"startupPolicyOrder": choice_check(("AnyOrder",))},
            elsewhere={"startupPolicyOrder": "write dependsOn of the replicated jobs"},
        ),
        "ttlSecondsAfterFinished": integer_check(),
        "suspend": check_boolean,
        "managedBy": _refuse_value("managedBy is a field of the TrainJob"),
        "coordinator": _refuse_value("coordinator is not supported"),
        POLICIES_FIELD: list_check(_CLAIM_POLICY),
    },
    ("replicatedJobs",),
)


def _document_check(spec: FieldCheck) -> FieldCheck:
    return record_check(
        {
            "apiVersion": choice_check((API_VERSION,)),
            "kind": check_text,
            "metadata": METADATA,
            "spec": spec,
            "status": map_check(any_value),
        },
        ("apiVersion", "kind", "metadata", "spec"),
    )


check_train_job: FieldCheck = _document_check(_TRAIN_JOB_SPEC)
check_runtime: FieldCheck = _document_check(
    record_check(
        {
            "mlPolicy": record_check(_ML_POLICY),
            # What schedules a gang on a cluster; processes of one machine start together.
            "podGroupPolicy": map_check(any_value),
            "template": record_check({"metadata": _LABELS, "spec": _JOB_SET}, ("spec",)),
        },
        ("template",),
    )
)


def replicated_jobs(runtime_spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the replicated jobs of a checked runtime."""
    jobs: list[Mapping[str, Any]] = runtime_spec["template"]["spec"]["replicatedJobs"]
    return jobs
