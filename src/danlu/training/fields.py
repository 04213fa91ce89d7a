"""The fields a manifest may have (``kubeflow.org/v1``, and Kubernetes' PodTemplateSpec in it).

Of a pod's template the names of all fields of pods and containers are known, so that a misspelt
one is found, and the shape of those that danlu itself reads.
"""

from __future__ import annotations

from danlu.training.framework import Framework
from danlu.training.schema import (
    INT64,
    Check,
    anything,
    choice,
    each,
    entries,
    integer,
    quantity,
    record,
    text,
    truth,
)
from danlu.training.types import MANAGER, CleanPodPolicy, RestartPolicy

__all__ = ["ELASTIC_POLICY", "RUN_POLICY", "manifest"]

MANAGERS = (MANAGER, "kueue.x-k8s.io/multikueue")

_PORT = integer(1, 65535)
_TEXTS = each(text)
_TEXT_MAP = entries(text)
_QUANTITIES = entries(quantity)


def _others(names: str) -> dict[str, Check]:
    """Fields that only have to be there by name."""
    return dict.fromkeys(names.split(), anything)


_METADATA = record(
    {
        **_others("""
            creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
            generation managedFields ownerReferences resourceVersion selfLink uid
        """),
        "name": text,
        "namespace": text,
        "labels": _TEXT_MAP,
        "annotations": _TEXT_MAP,
    }
)

RUN_POLICY: dict[str, Check] = {
    "cleanPodPolicy": choice(tuple(CleanPodPolicy)),
    "ttlSecondsAfterFinished": integer(),
    "activeDeadlineSeconds": integer(0, INT64),
    "backoffLimit": integer(),
    "schedulingPolicy": record(
        {
            "minAvailable": integer(),
            "queue": text,
            "minResources": _QUANTITIES,
            "priorityClass": text,
            "scheduleTimeoutSeconds": integer(),
        }
    ),
    "suspend": truth,
    "managedBy": choice(MANAGERS),
}

ELASTIC_POLICY: dict[str, Check] = {
    "minReplicas": integer(1),
    "maxReplicas": integer(1),
    "rdzvBackend": text,
    "rdzvPort": _PORT,
    "rdzvHost": text,
    "rdzvId": text,
    "rdzvConf": each(record({"key": text, "value": text}, ("key",))),
    "standalone": truth,
    "nProcPerNode": integer(1),
    "maxRestarts": integer(),
    "metrics": each(entries(anything)),
}

_VARIABLE = record({"name": text, "value": text, "valueFrom": entries(anything)}, ("name",))

_CONTAINER_PORT = record(
    {
        **_others("hostIP"),
        "name": text,
        "containerPort": _PORT,
        "hostPort": _PORT,
        "protocol": choice(("TCP", "UDP", "SCTP")),
    },
    ("containerPort",),
)

_MOUNT = record(
    {
        "name": text,
        "mountPath": text,
        "subPath": text,
        "subPathExpr": text,
        "readOnly": truth,
        "recursiveReadOnly": text,
        "mountPropagation": text,
    },
    ("name", "mountPath"),
)

_CONTAINER = record(
    {
        **_others("""
            envFrom lifecycle livenessProbe readinessProbe resizePolicy restartPolicy
            restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
            terminationMessagePolicy tty volumeDevices
        """),
        "name": text,
        "image": text,
        "imagePullPolicy": choice(("Always", "IfNotPresent", "Never")),
        "command": _TEXTS,
        "args": _TEXTS,
        "workingDir": text,
        "env": each(_VARIABLE),
        "ports": each(_CONTAINER_PORT),
        "resources": record(
            {"limits": _QUANTITIES, "requests": _QUANTITIES, "claims": each(entries(anything))}
        ),
        "volumeMounts": each(_MOUNT),
    },
    ("name",),
)

_VOLUME = record(
    {
        **_others("""
            awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI
            emptyDir ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath
            image iscsi nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected
            quobyte rbd scaleIO secret storageos vsphereVolume
        """),
        "name": text,
    },
    ("name",),
)

_POD = record(
    {
        **_others("""
            activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy
            enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID
            hostUsers hostname hostnameOverride imagePullSecrets nodeName nodeSelector os overhead
            preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
            restartPolicy runtimeClassName schedulerName schedulingGates securityContext
            serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
            terminationGracePeriodSeconds tolerations topologySpreadConstraints
        """),
        "containers": each(_CONTAINER),
        "initContainers": each(_CONTAINER),
        "volumes": each(_VOLUME),
    },
    ("containers",),
)

_REPLICA = record(
    {
        "replicas": integer(),
        "restartPolicy": choice(tuple(RestartPolicy)),
        "template": record({"metadata": _METADATA, "spec": _POD}, ("spec",)),
        # MXNet's tuning examples have it; no operator since v1beta1 reads it.
        "label": text,
    },
    ("template",),
)


def manifest(framework: Framework) -> Check:
    """The check of a whole manifest of ``framework``'s kind."""
    known = {
        "elasticPolicy": record(ELASTIC_POLICY),
        "successPolicy": text,
        "cleanPodPolicy": RUN_POLICY["cleanPodPolicy"],  # MPIJob's, older than runPolicy
    }
    options = {name: known.get(name, anything) for name in framework.options}
    replicas = {framework.replicas_field: entries(_REPLICA, empty=False)}
    spec = record(
        {**options, "runPolicy": record(RUN_POLICY), **replicas},
        tuple(replicas),
        elsewhere={
            **dict.fromkeys(known, f"a {framework.kind} has none"),
            **dict.fromkeys(RUN_POLICY, "it belongs in spec.runPolicy"),
        },
    )
    top = {"apiVersion": text, "kind": text, "metadata": _METADATA, "spec": spec}
    return record({**top, "status": entries(anything)}, ("apiVersion", "kind", "metadata", "spec"))
