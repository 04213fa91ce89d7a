"""Convert manifests to jobs and back, filling in defaults as Kubeflow does (``*_defaults.go``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.training.document import API_VERSION, ManifestError
from danlu.training.framework import Framework
from danlu.training.pod_template import append_to, find_main_container, replace_container
from danlu.training.types import (
    ElasticPolicy,
    Job,
    JobStatus,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from danlu.util.decoding import convert_value

# Options that Job has as fields.
_NO_OPTIONS = ("elasticPolicy", "successPolicy", "cleanPodPolicy")


def build_job(document: Mapping[str, Any], framework: Framework) -> Job:
    """Return the job that a valid manifest describes, with defaults filled in."""
    metadata, spec = document["metadata"], _drop_nulls(document["spec"])
    replicas = _parse_replicas(spec[framework.replicas_field], framework)
    return Job(
        kind=framework.kind,
        name=metadata.get("name") or "",
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        labels=_string_map(metadata.get("labels")),
        annotations=_string_map(metadata.get("annotations")),
        replicas=replicas,
        run_policy=parse_run_policy(spec),
        success_policy=spec.get("successPolicy") or "",
        elastic_policy=parse_elastic_policy(spec, replicas),
        options=_framework_options(spec, framework),
        status=read_status(document.get("status") or {}),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def job_to_manifest(job: Job, framework: Framework) -> dict[str, Any]:
    """Return the manifest of a job. It parses to the same job again (see ``write_job``)."""
    metadata = {
        "name": job.name,
        "namespace": job.namespace if job.namespace != "default" else None,
        "uid": job.uid,
        "labels": dict(job.labels),
        "annotations": dict(job.annotations),
    }
    policies = {"runPolicy": _to_plain_json(job.run_policy)}
    replicas = {type: _replica_to_manifest(spec) for type, spec in job.replicas.items()}
    spec = {
        **_drop_empty({**policies, "successPolicy": job.success_policy}),
        **_to_plain_json(job.options),
        framework.replicas_field: replicas,
    }
    if job.elastic_policy is not None:
        spec = {"elasticPolicy": _to_plain_json(job.elastic_policy), **spec}
    document = {"apiVersion": API_VERSION, "kind": job.kind, "metadata": _drop_empty(metadata)}
    return {**document, "spec": spec, **_drop_empty({"status": status_to_manifest(job.status)})}


def status_to_manifest(status: JobStatus) -> dict[str, Any]:
    """Return the ``status`` of a manifest."""
    document: dict[str, Any] = _to_plain_json(status)
    return document


def read_status(document: Mapping[str, Any]) -> JobStatus:
    """Parse the ``status`` of a manifest; raises :class:`ManifestError` if it is invalid."""
    try:
        return convert_value(_drop_nulls(document), JobStatus)
    except msgspec.ValidationError as error:
        raise ManifestError(f"invalid status: {error}") from error


def _parse_replicas(
    specs: Mapping[str, Any], framework: Framework
) -> dict[ReplicaType, ReplicaSpec]:
    named = {match_replica_type(name, framework): spec for name, spec in specs.items()}
    return {
        type: build_replica_spec(named[type], type, framework)
        for type in framework.replica_types
        if type in named
    }


def _replica_to_manifest(spec: ReplicaSpec) -> dict[str, Any]:
    return {
        "replicas": spec.replicas,
        "restartPolicy": str(spec.restart_policy),
        "template": _to_plain_json(spec.template),
    }


def _framework_options(spec: Mapping[str, Any], framework: Framework) -> dict[str, Any]:
    names = [name for name in framework.spec_options if name not in _NO_OPTIONS]
    return {name: spec[name] for name in names if spec.get(name) is not None}


def _string_map(mapping: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: value or "" for name, value in (mapping or {}).items()}


def _drop_nulls(value: Any) -> Any:
    """Return ``value`` without null fields; to Kubernetes they are absent."""
    if isinstance(value, Mapping):
        return {key: _drop_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [_drop_nulls(member) for member in value]
    return value


def _to_plain_json(value: object) -> Any:
    """Return ``value`` as dictionaries and lists, as if decoded from JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _drop_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not empty (null, ``""``, ``{}``, ``[]``)."""
    return {name: value for name, value in mapping.items() if value not in (None, "", {}, [])}


# -- defaults -------------------------------------------------------------------------------------

_WORKER = ReplicaType("Worker")


def match_replica_type(name: str, framework: Framework) -> ReplicaType | None:
    """Return the replica type called ``name``, in any case, or None."""
    folded = name.casefold()
    return next((type for type in framework.replica_types if type.casefold() == folded), None)


def build_replica_spec(
    spec: Mapping[str, Any], type: ReplicaType, framework: Framework
) -> ReplicaSpec:
    """Return a member of the replica map with defaults for number, restart policy and port."""
    replicas = spec.get("replicas")
    return ReplicaSpec(
        replicas=framework.default_replicas.get(type, 1) if replicas is None else replicas,
        template=add_default_port(spec["template"], framework),
        restart_policy=RestartPolicy(spec.get("restartPolicy") or framework.restart_policy),
    )


def add_default_port(template: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    """Return the template with the framework's port in its main container, if not declared.

    Frameworks that accept any container (MPI) declare no port.
    """
    main = find_main_container(template, framework.container)
    ports = main.get("ports") or ()
    if framework.any_container or any(port.get("name") == framework.port_name for port in ports):
        return template
    port = {"name": framework.port_name, "containerPort": framework.port}
    return replace_container(template, append_to(main, "ports", port), main)


def parse_run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    """Parse ``spec.runPolicy``, or an MPIJob's older ``spec.cleanPodPolicy`` if it sets none."""
    policy = _drop_unset(spec.get("runPolicy") or {})
    legacy = spec.get("cleanPodPolicy")
    if legacy:
        policy.setdefault("cleanPodPolicy", legacy)
    if "schedulingPolicy" in policy:
        policy["schedulingPolicy"] = _drop_unset(policy["schedulingPolicy"])
    return convert_value(policy, RunPolicy)


def parse_elastic_policy(
    spec: Mapping[str, Any], replicas: Mapping[ReplicaType, ReplicaSpec]
) -> ElasticPolicy | None:
    """Parse ``spec.elasticPolicy``; a missing bound is the other one, or the number of workers."""
    if spec.get("elasticPolicy") is None:
        return None
    policy = convert_value(_drop_unset(spec["elasticPolicy"]), ElasticPolicy)
    low, high = policy.min_replicas, policy.max_replicas
    workers = replicas[_WORKER].replicas if _WORKER in replicas else None
    return msgspec.structs.replace(
        policy,
        min_replicas=_first_set(low, high, workers),
        max_replicas=_first_set(high, low, workers),
    )


def _first_set(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _drop_unset(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are neither null nor empty text."""
    return {name: value for name, value in mapping.items() if value is not None and value != ""}
