"""The schema of manifests: Kubeflow's kinds with Kubernetes' PodTemplateSpec.

It is composed from small checks. A check takes the path and the value of a field and yields errors.
The value is never null: a null field is absent, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from danlu.training.framework import FieldError, Framework
from danlu.training.types import CleanPodPolicy
from danlu.util.quantity import is_quantity
from danlu.util.suggest import did_you_mean

FieldCheck = Callable[[str, Any], Iterator[FieldError]]

UNKNOWN_FIELD = "unknown field"

INT32 = 2**31 - 1
INT64 = 2**63 - 1
_MAX_LISTED_FIELDS = 12


def any_value(path: str, value: Any) -> Iterator[FieldError]:
    """Accept any value."""
    return iter(())


def check_text(path: str, value: Any) -> Iterator[FieldError]:
    """Check a string."""
    if not isinstance(value, str):
        scalar = not isinstance(value, Mapping | list)
        hint = f'quote it: "{_yaml_scalar(value)}"' if scalar else ""
        yield FieldError(path, f"must be a string, not {_describe_value(value)}", hint)


def check_boolean(path: str, value: Any) -> Iterator[FieldError]:
    """Check a boolean."""
    if not isinstance(value, bool):
        quoted = str(value).lower() if isinstance(value, str) else ""
        hint = f"remove the quotes: {quoted}" if quoted in ("true", "false") else ""
        yield FieldError(path, f"must be true or false, not {_describe_value(value)}", hint)


def integer_check(minimum: int = 0, maximum: int = INT32) -> FieldCheck:
    """Return a check of an integer within bounds."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if isinstance(value, bool) or not isinstance(value, int):
            quoted = value.strip() if isinstance(value, str) else ""
            number = quoted.lstrip("+-").isdecimal()
            hint = f"remove the quotes: {quoted}" if number else ""
            yield FieldError(path, f"must be an integer, not {_describe_value(value)}", hint)
        elif value < 0 <= minimum:
            yield FieldError(path, f"must not be negative: {value}", f"{minimum} or more")
        elif value < minimum:
            yield FieldError(path, f"must be at least {minimum}, not {value}")
        elif value > maximum:
            yield FieldError(path, f"must be at most {maximum}, not {value}")

    return check


def choice_check(names: Sequence[str]) -> FieldCheck:
    """Return a check of one of ``names``; an empty string counts as absent."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, str):
            yield from check_text(path, value)
        elif value and value not in names:
            otherwise = f"one of {', '.join(names)}"
            hint = did_you_mean(value, names, otherwise=otherwise, template="'{}'")
            yield FieldError(path, f"cannot be '{value}'", hint)

    return check


def check_quantity(path: str, value: Any) -> Iterator[FieldError]:
    """Check a resource quantity (``2``, ``500m``, ``4Gi``)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value < 0:
        yield FieldError(path, f"must not be negative: {value}")
    elif not number and not (isinstance(value, str) and is_quantity(value)):
        yield FieldError(
            path, f"must be a quantity, not {_describe_value(value)}", "for example 2, 500m or 4Gi"
        )


def record_check(
    fields: Mapping[str, FieldCheck],
    required: Sequence[str] = (),
    *,
    elsewhere: Mapping[str, str] = {},
) -> FieldCheck:
    """Return a check of a mapping with these fields and no others.

    ``elsewhere`` has hints for fields that are known but belong somewhere else.
    """

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, Mapping):
            yield FieldError(
                path or "(document)", f"must be a mapping, not {_describe_value(value)}"
            )
            return
        for name in required:
            if value.get(name) is None:
                yield FieldError(child_path(path, name), "is required")
        for name, member in value.items():
            if name not in fields:
                hint = elsewhere.get(name) or _suggest_field(name, fields)
                yield FieldError(child_path(path, name), UNKNOWN_FIELD, hint)
            elif member is not None:
                yield from fields[name](child_path(path, name), member)

    return check


def list_check(check_item: FieldCheck) -> FieldCheck:
    """Return a check of a list."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, list | tuple):
            yield FieldError(path, f"must be a list, not {_describe_value(value)}")
            return
        for index, item in enumerate(value):
            if item is None:
                yield FieldError(f"{path}[{index}]", "must not be empty")
            else:
                yield from check_item(f"{path}[{index}]", item)

    return check


def map_check(check_item: FieldCheck, *, empty: bool = True) -> FieldCheck:
    """Return a check of a mapping with arbitrary keys; ``empty`` allows null values."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, Mapping):
            yield FieldError(path, f"must be a mapping, not {_describe_value(value)}")
            return
        for name, member in value.items():
            if member is not None:
                yield from check_item(f"{path}[{name}]", member)
            elif not empty:
                yield FieldError(f"{path}[{name}]", "must not be empty")

    return check


def child_path(path: str, name: str) -> str:
    """Return the path of the field ``name``."""
    return f"{path}.{name}" if path else name


def _suggest_field(name: str, fields: Mapping[str, FieldCheck]) -> str:
    listed = f"fields: {', '.join(sorted(fields))}" if len(fields) <= _MAX_LISTED_FIELDS else ""
    return did_you_mean(name, fields, otherwise=listed, template="'{}'")


def _yaml_scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe_value(value: object) -> str:
    """Describe a value in YAML's terms."""
    match value:
        case bool():
            return _yaml_scalar(value)
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string '{value}'" if len(value) <= 40 else "a string"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return "empty" if value is None else type(value).__name__


# -- the schema -----------------------------------------------------------------------------------

# For pod templates it has the names of all fields of pods and containers, to find misspelled ones,
# and the shape of those that danlu reads.

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""The manager of jobs that are run in another cluster."""

_PORT = integer_check(1, 65535)
TEXTS = list_check(check_text)
TEXT_MAP = map_check(check_text)
_QUANTITIES = map_check(check_quantity)


def _any_fields(names: str) -> dict[str, FieldCheck]:
    """Return fields whose values are not checked."""
    return dict.fromkeys(names.split(), any_value)


METADATA = record_check(
    {
        **_any_fields("""
            creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers
            generation managedFields ownerReferences resourceVersion selfLink uid
        """),
        "name": check_text,
        "generateName": check_text,
        "namespace": check_text,
        "labels": TEXT_MAP,
        "annotations": TEXT_MAP,
    }
)

_RUN_POLICY: dict[str, FieldCheck] = {
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

_OBJECT_KEY = record_check(
    {"name": check_text, "key": check_text, "optional": check_boolean}, ("key",)
)
_OBJECT = record_check({"name": check_text, "optional": check_boolean})
VARIABLE = record_check(
    {
        "name": check_text,
        "value": check_text,
        "valueFrom": record_check(
            {
                **_any_fields("fileKeyRef"),
                "fieldRef": record_check(
                    {"apiVersion": check_text, "fieldPath": check_text}, ("fieldPath",)
                ),
                "resourceFieldRef": record_check(
                    {
                        "containerName": check_text,
                        "resource": check_text,
                        "divisor": check_quantity,
                    },
                    ("resource",),
                ),
                "configMapKeyRef": _OBJECT_KEY,
                "secretKeyRef": _OBJECT_KEY,
            }
        ),
    },
    ("name",),
)

_HANDLER: dict[str, FieldCheck] = {
    "exec": record_check({"command": TEXTS}),
    "httpGet": map_check(any_value),
    "tcpSocket": map_check(any_value),
}
_HOOK = record_check(
    {**_HANDLER, "sleep": record_check({"seconds": integer_check(-INT64, INT64)}, ("seconds",))}
)
_PROBE = record_check(
    {
        **_HANDLER,
        "grpc": map_check(any_value),
        "initialDelaySeconds": integer_check(),
        "timeoutSeconds": integer_check(),
        "periodSeconds": integer_check(),
        "successThreshold": integer_check(),
        "failureThreshold": integer_check(),
        "terminationGracePeriodSeconds": integer_check(1, INT64),
    }
)

_USER = integer_check(0, INT32)
_SECURITY: dict[str, FieldCheck] = {
    **_any_fields("appArmorProfile seLinuxOptions seccompProfile windowsOptions"),
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "runAsNonRoot": check_boolean,
}

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

CONTAINER: dict[str, FieldCheck] = {
    **_any_fields("""
        resizePolicy restartPolicy restartPolicyRules terminationMessagePath
        terminationMessagePolicy volumeDevices
    """),
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _PROBE),
    **dict.fromkeys(("stdin", "stdinOnce", "tty"), check_boolean),
    "envFrom": list_check(
        record_check({"prefix": check_text, "configMapRef": _OBJECT, "secretRef": _OBJECT})
    ),
    "lifecycle": record_check({"preStop": _HOOK, "postStart": _HOOK, "stopSignal": check_text}),
    "securityContext": record_check(
        {
            **_any_fields("capabilities procMount"),
            **_SECURITY,
            "allowPrivilegeEscalation": check_boolean,
            "privileged": check_boolean,
            "readOnlyRootFilesystem": check_boolean,
        }
    ),
    "name": check_text,
    "image": check_text,
    "imagePullPolicy": choice_check(("Always", "IfNotPresent", "Never")),
    "command": TEXTS,
    "args": TEXTS,
    "workingDir": check_text,
    "env": list_check(VARIABLE),
    "ports": list_check(_CONTAINER_PORT),
    "resources": record_check(
        {
            "limits": _QUANTITIES,
            "requests": _QUANTITIES,
            "claims": list_check(map_check(any_value)),
        }
    ),
    "volumeMounts": list_check(_MOUNT),
}
_CONTAINER = record_check(CONTAINER, ("name",))

_MODE = integer_check(0, 0o777)
_FILES: dict[str, FieldCheck] = {
    "items": list_check(
        record_check({"key": check_text, "path": check_text, "mode": _MODE}, ("key", "path"))
    ),
    "optional": check_boolean,
}

VOLUME_SOURCES = """
    awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI
    emptyDir ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath
    image iscsi nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected
    quobyte rbd scaleIO secret storageos vsphereVolume
"""
"""The fields of a volume that say what it is."""

_VOLUME = record_check(
    {
        **_any_fields(VOLUME_SOURCES),
        "configMap": record_check({**_FILES, "name": check_text, "defaultMode": _MODE}),
        "secret": record_check({**_FILES, "secretName": check_text, "defaultMode": _MODE}),
        "name": check_text,
    },
    ("name",),
)

_POD_SWITCHES = (
    *("automountServiceAccountToken", "enableServiceLinks", "hostIPC", "hostNetwork", "hostPID"),
    *("hostUsers", "setHostnameAsFQDN", "shareProcessNamespace"),
)

POD: dict[str, FieldCheck] = {
    **_any_fields("""
        affinity dnsConfig dnsPolicy ephemeralContainers hostAliases hostname hostnameOverride
        imagePullSecrets nodeName nodeSelector os overhead preemptionPolicy priority
        priorityClassName readinessGates resourceClaims resources restartPolicy
        runtimeClassName schedulerName schedulingGates serviceAccount serviceAccountName
        subdomain tolerations topologySpreadConstraints
    """),
    **dict.fromkeys(_POD_SWITCHES, check_boolean),
    "activeDeadlineSeconds": integer_check(1),
    # The API server turns a negative one into 1.
    "terminationGracePeriodSeconds": integer_check(-INT64, INT64),
    "securityContext": record_check(
        {
            **_any_fields("""
                fsGroup fsGroupChangePolicy seLinuxChangePolicy supplementalGroups
                supplementalGroupsPolicy sysctls
            """),
            **_SECURITY,
        }
    ),
    "containers": list_check(_CONTAINER),
    "initContainers": list_check(_CONTAINER),
    "volumes": list_check(_VOLUME),
}
_POD = record_check(POD, ("containers",))


def build_replica_check(framework: Framework) -> FieldCheck:
    """Return the check of a member of the replica map."""
    return record_check(
        {
            "replicas": integer_check(),
            "restartPolicy": choice_check(framework.restart_policies),
            "template": record_check({"metadata": METADATA, "spec": _POD}, ("spec",)),
            # In MXNet's tuning examples; no operator since v1beta1 reads it.
            "label": check_text,
        },
        ("template",),
    )


def build_policy_check(framework: Framework) -> FieldCheck:
    """Return the check of ``spec.runPolicy``."""
    managers = choice_check((framework.manager, MULTIKUEUE))
    return record_check({**_RUN_POLICY, "managedBy": managers})


def _build_option_check(schema: Mapping[str, Any]) -> FieldCheck:
    """Return the check of an OpenAPI schema of a string, a boolean or a number."""
    if "enum" in schema:
        return choice_check(schema["enum"])
    if schema.get("type") == "integer":
        return integer_check(schema.get("minimum", 0))
    return {"string": check_text, "boolean": check_boolean}.get(schema.get("type", ""), any_value)


def build_manifest_check(framework: Framework) -> FieldCheck:
    """Return the check of a complete manifest of the framework's kind."""
    known = {
        "elasticPolicy": record_check(ELASTIC_POLICY),
        "successPolicy": check_text,
        "cleanPodPolicy": _RUN_POLICY["cleanPodPolicy"],  # older than runPolicy
    }
    options = {
        name: known.get(name) or _build_option_check(schema)
        for name, schema in framework.spec_options.items()
    }
    replicas = {framework.replicas_field: map_check(build_replica_check(framework), empty=False)}
    spec = record_check(
        {**options, "runPolicy": build_policy_check(framework), **replicas},
        tuple(replicas),
        elsewhere={
            **dict.fromkeys(known, f"a {framework.kind} has no such field"),
            **dict.fromkeys((*_RUN_POLICY, "managedBy"), "move it to spec.runPolicy"),
        },
    )
    top = {"apiVersion": check_text, "kind": check_text, "metadata": METADATA, "spec": spec}
    return record_check(
        {**top, "status": map_check(any_value)}, ("apiVersion", "kind", "metadata", "spec")
    )
