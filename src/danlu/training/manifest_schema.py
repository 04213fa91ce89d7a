"""The schema of manifests: ``kubeflow.org/v1`` with Kubernetes' PodTemplateSpec.

For pod templates it has the names of all fields of pods and containers, to find misspelled ones,
and the shape of those that danlu reads.
"""

from __future__ import annotations

from danlu.training.framework import Framework
from danlu.training.schema_checks import (
    INT64,
    FieldCheck,
    any_value,
    check_boolean,
    check_quantity,
    check_text,
    choice_check,
    integer_check,
    list_check,
    map_check,
    record_check,
)
from danlu.training.types import MANAGER, CleanPodPolicy, RestartPolicy

KNOWN_MANAGERS = (MANAGER, "kueue.x-k8s.io/multikueue")

_PORT = integer_check(1, 65535)
_TEXTS = list_check(check_text)
_TEXT_MAP = map_check(check_text)
_QUANTITIES = map_check(check_quantity)


def _any_fields(names: str) -> dict[str, FieldCheck]:
    """Return fields whose values are not checked."""
    return dict.fromkeys(names.split(), any_value)


_METADATA = record_check(
    {
        **_any_fields("""
            creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
            generation managedFields ownerReferences resourceVersion selfLink uid
        """),
        "name": check_text,
        "namespace": check_text,
        "labels": _TEXT_MAP,
        "annotations": _TEXT_MAP,
    }
)

RUN_POLICY: dict[str, FieldCheck] = {
    "cleanPodPolicy": choice_check(tuple(CleanPodPolicy)),
    "ttlSecondsAfterFinished": integer_check(),
    "activeDeadlineSeconds": integer_check(0, INT64),
    "backoffLimit": integer_check(),
    "schedulingPolicy": record_check(
        {
            "minAvailable": integer_check(),
            "queue": check_text,
            "minResources": _QUANTITIES,
            "priorityClass": check_text,
            "scheduleTimeoutSeconds": integer_check(),
        }
    ),
    "suspend": check_boolean,
    "managedBy": choice_check(KNOWN_MANAGERS),
}

ELASTIC_POLICY: dict[str, FieldCheck] = {
    "minReplicas": integer_check(1),
    "maxReplicas": integer_check(1),
    "rdzvBackend": check_text,
    "rdzvPort": _PORT,
    "rdzvHost": check_text,
    "rdzvId": check_text,
    "rdzvConf": list_check(record_check({"key": check_text, "value": check_text}, ("key",))),
    "standalone": check_boolean,
    "nProcPerNode": integer_check(1),
    "maxRestarts": integer_check(),
    "metrics": list_check(map_check(any_value)),
}

_VARIABLE = record_check(
    {"name": check_text, "value": check_text, "valueFrom": map_check(any_value)}, ("name",)
)

_CONTAINER_PORT = record_check(
    {
        **_any_fields("hostIP"),
        "name": check_text,
        "containerPort": _PORT,
        "hostPort": _PORT,
        "protocol": choice_check(("TCP", "UDP", "SCTP")),
    },
    ("containerPort",),
)

_MOUNT = record_check(
    {
        "name": check_text,
        "mountPath": check_text,
        "subPath": check_text,
        "subPathExpr": check_text,
        "readOnly": check_boolean,
        "recursiveReadOnly": check_text,
        "mountPropagation": check_text,
    },
    ("name", "mountPath"),
)

_CONTAINER = record_check(
    {
        **_any_fields("""
            envFrom lifecycle livenessProbe readinessProbe resizePolicy restartPolicy
            restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
            terminationMessagePolicy tty volumeDevices
        """),
        "name": check_text,
        "image": check_text,
        "imagePullPolicy": choice_check(("Always", "IfNotPresent", "Never")),
        "command": _TEXTS,
        "args": _TEXTS,
        "workingDir": check_text,
        "env": list_check(_VARIABLE),
        "ports": list_check(_CONTAINER_PORT),
        "resources": record_check(
            {
                "limits": _QUANTITIES,
                "requests": _QUANTITIES,
                "claims": list_check(map_check(any_value)),
            }
        ),
        "volumeMounts": list_check(_MOUNT),
    },
    ("name",),
)

_VOLUME = record_check(
    {
        **_any_fields("""
            awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI
            emptyDir ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath
            image iscsi nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected
            quobyte rbd scaleIO secret storageos vsphereVolume
        """),
        "name": check_text,
    },
    ("name",),
)

_POD = record_check(
    {
        **_any_fields("""
            activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy
            enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID
            hostUsers hostname hostnameOverride imagePullSecrets nodeName nodeSelector os overhead
            preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
            restartPolicy runtimeClassName schedulerName schedulingGates securityContext
            serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
            terminationGracePeriodSeconds tolerations topologySpreadConstraints
        """),
        "containers": list_check(_CONTAINER),
        "initContainers": list_check(_CONTAINER),
        "volumes": list_check(_VOLUME),
    },
    ("containers",),
)

_REPLICA = record_check(
    {
        "replicas": integer_check(),
        "restartPolicy": choice_check(tuple(RestartPolicy)),
        "template": record_check({"metadata": _METADATA, "spec": _POD}, ("spec",)),
        # In MXNet's tuning examples; no operator since v1beta1 reads it.
        "label": check_text,
    },
    ("template",),
)


def build_manifest_check(framework: Framework) -> FieldCheck:
    """Return the check of a complete manifest of the framework's kind."""
    known = {
        "elasticPolicy": record_check(ELASTIC_POLICY),
        "successPolicy": check_text,
        "cleanPodPolicy": RUN_POLICY["cleanPodPolicy"],  # MPIJob only; older than runPolicy
    }
    options = {name: known.get(name, any_value) for name in framework.spec_options}
    replicas = {framework.replicas_field: map_check(_REPLICA, empty=False)}
    spec = record_check(
        {**options, "runPolicy": record_check(RUN_POLICY), **replicas},
        tuple(replicas),
        elsewhere={
            **dict.fromkeys(known, f"a {framework.kind} has no such field"),
            **dict.fromkeys(RUN_POLICY, "move it to spec.runPolicy"),
        },
    )
    top = {"apiVersion": check_text, "kind": check_text, "metadata": _METADATA, "spec": spec}
    return record_check(
        {**top, "status": map_check(any_value)}, ("apiVersion", "kind", "metadata", "spec")
    )
