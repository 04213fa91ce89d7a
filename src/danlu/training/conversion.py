"""A job from a manifest that has the right shape, and a manifest from a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.training.defaults import elastic_policy, replica_spec, replica_type, run_policy
from danlu.training.document import API_VERSION, ManifestError
from danlu.training.framework import Framework
from danlu.training.types import Job, JobStatus, ReplicaSpec, ReplicaType

__all__ = ["build_job", "job_document", "read_status", "status_document"]

# What has a field of its own in Job.
_NO_OPTIONS = ("elasticPolicy", "successPolicy", "cleanPodPolicy")


def build_job(document: Mapping[str, Any], framework: Framework) -> Job:
    """The job that a manifest of the right shape asks for, defaults filled in."""
    metadata, spec = document["metadata"], _without_null(document["spec"])
    replicas = _replicas(spec[framework.replicas_field], framework)
    return Job(
        kind=framework.kind,
        name=metadata.get("name") or "",
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        labels=_texts(metadata.get("labels")),
        annotations=_texts(metadata.get("annotations")),
        replicas=replicas,
        run_policy=run_policy(spec),
        success_policy=spec.get("successPolicy") or "",
        elastic_policy=elastic_policy(spec, replicas),
        options=_options(spec, framework),
        status=read_status(document.get("status") or {}),
        deleting=metadata.get("deletionTimestamp") is not None,
    )


def job_document(job: Job, framework: Framework) -> dict[str, Any]:
    """The manifest of a job, which reads back as the same job (see ``write_job``)."""
    metadata = {
        "name": job.name,
        "namespace": job.namespace if job.namespace != "default" else None,
        "uid": job.uid,
        "labels": dict(job.labels),
        "annotations": dict(job.annotations),
    }
    policies = {"runPolicy": _plain(job.run_policy)}
    replicas = {type: _replica_document(spec) for type, spec in job.replicas.items()}
    spec = {
        **_given({**policies, "successPolicy": job.success_policy}),
        **_plain(job.options),
        framework.replicas_field: replicas,
    }
    if job.elastic_policy is not None:
        spec = {"elasticPolicy": _plain(job.elastic_policy), **spec}
    document = {"apiVersion": API_VERSION, "kind": job.kind, "metadata": _given(metadata)}
    return {**document, "spec": spec, **_given({"status": status_document(job.status)})}


def status_document(status: JobStatus) -> dict[str, Any]:
    """A status as it stands in a manifest."""
    document: dict[str, Any] = _plain(status)
    return document


def read_status(document: Mapping[str, Any]) -> JobStatus:
    """The status that a manifest has; raises :class:`ManifestError` where it is none."""
    try:
        return msgspec.convert(_without_null(document), JobStatus)
    except msgspec.ValidationError as error:
        raise ManifestError(f"no status of a job: {error}") from error


def _replicas(specs: Mapping[str, Any], framework: Framework) -> dict[ReplicaType, ReplicaSpec]:
    named = {replica_type(name, framework): spec for name, spec in specs.items()}
    return {
        type: replica_spec(named[type], type, framework)
        for type in framework.types
        if type in named
    }


def _replica_document(spec: ReplicaSpec) -> dict[str, Any]:
    return {
        "replicas": spec.replicas,
        "restartPolicy": str(spec.restart_policy),
        "template": _plain(spec.template),
    }


def _options(spec: Mapping[str, Any], framework: Framework) -> dict[str, Any]:
    names = [name for name in framework.options if name not in _NO_OPTIONS]
    return {name: spec[name] for name in names if spec.get(name) is not None}


def _texts(mapping: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: value or "" for name, value in (mapping or {}).items()}


def _without_null(value: Any) -> Any:
    """``value`` without fields that are null: to Kubernetes they are not there."""
    if isinstance(value, Mapping):
        return {key: _without_null(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_null(one) for one in value]
    return value


def _plain(value: object) -> Any:
    """``value`` in dictionaries and lists, as it would come from JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _given(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty: null, no text, no entries."""
    return {name: value for name, value in mapping.items() if value not in (None, "", {}, [])}
