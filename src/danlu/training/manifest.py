"""Read jobs from manifests and write them.

Defaults are those of Kubeflow (``*_defaults.go``). Errors report everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from danlu.training.document import ManifestError, invalid_job_error
from danlu.training.framework import FieldError, Framework
from danlu.training.manifest_schema import UNKNOWN_FIELD, build_manifest_check
from danlu.training.names import RESTART_POLICY_ANNOTATION, WHOLE_JOB
from danlu.training.pod_template import add_default_port
from danlu.training.registry import find_job_framework
from danlu.training.types import (
    ElasticPolicy,
    Job,
    JobRestartPolicy,
    JobStatus,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from danlu.training.validation import check_document, has_valid_types, match_replica_type
from danlu.util.decoding import convert_value

# Options that Job has as fields.
_NO_OPTIONS = ("elasticPolicy", "successPolicy", "cleanPodPolicy")


def read_job(document: Mapping[str, Any], framework: Framework) -> Job:
    """Return the job that a manifest describes, with defaults filled in.

    Raises :class:`ManifestError` with all errors, and with their lines if ``document`` comes from
    :func:`~danlu.training.document.read_manifest_file`.
    """
    shape = [*build_manifest_check(framework)("", document), *_check_status(document.get("status"))]
    errors = {*shape, *check_document(document, framework)}
    readable = all(error.message == UNKNOWN_FIELD for error in shape)
    # The framework's own rules apply only if the job can be read.
    if readable and has_valid_types(document, framework):
        job = _build_job(document, framework)
        errors |= set(framework.validate(job))
        if not errors:
            return job
    raise invalid_job_error(document, sorted(errors), framework.kind)


def _check_status(status: Any) -> Iterator[FieldError]:
    try:
        read_status(status if isinstance(status, Mapping) else {})
    except ManifestError as error:
        yield FieldError("status", error.message, "remove it: only the controller writes it")


def _build_job(document: Mapping[str, Any], framework: Framework) -> Job:
    metadata, spec = document["metadata"], drop_nulls(document["spec"])
    replicas = _parse_replicas(spec[framework.replicas_field], framework)
    annotations, run_policy = _string_map(metadata.get("annotations")), _parse_run_policy(spec)
    return Job(
        kind=framework.kind,
        name=metadata.get("name") or "",
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        labels=_string_map(metadata.get("labels")),
        annotations=annotations,
        replicas=replicas,
        run_policy=run_policy,
        success_policy=spec.get("successPolicy") or "",
        elastic_policy=_parse_elastic_policy(spec, replicas, framework.scaled_type),
        job_restart_policy=_read_job_restart_policy(annotations, run_policy),
        options=_framework_options(spec, framework),
        status=read_status(document.get("status") or {}),
        deleting=metadata.get("deletionTimestamp") is not None,
        api_version=framework.api_version,
    )


def write_job(job: Job, framework: Framework | None = None) -> dict[str, Any]:
    """Return a manifest that parses to the same job again, except for ``deleting``.

    ``framework`` is that of the job's kind; it is looked up if not given.
    """
    framework = framework or find_job_framework(job)
    annotations, run_policy = dict(job.annotations), job.run_policy
    if (restart_policy := job.job_restart_policy) is not None:
        annotations[RESTART_POLICY_ANNOTATION] = WHOLE_JOB
        run_policy = msgspec.structs.replace(run_policy, backoff_limit=restart_policy.max_restarts)
    metadata = {
        "name": job.name,
        "namespace": job.namespace if job.namespace != "default" else None,
        "uid": job.uid,
        "labels": dict(job.labels),
        "annotations": annotations,
    }
    policies = {"runPolicy": _to_plain_json(run_policy)}
    replicas = {type: _replica_to_manifest(spec) for type, spec in job.replicas.items()}
    spec = {
        **drop_empty({**policies, "successPolicy": job.success_policy}),
        **_to_plain_json(job.options),
        framework.replicas_field: replicas,
    }
    if job.elastic_policy is not None:
        spec = {"elasticPolicy": _to_plain_json(job.elastic_policy), **spec}
    document = {"apiVersion": job.api_version, "kind": job.kind, "metadata": drop_empty(metadata)}
    return {**document, "spec": spec, **drop_empty({"status": status_to_manifest(job.status)})}


def status_to_manifest(status: JobStatus) -> dict[str, Any]:
    """Return the ``status`` of a manifest."""
    document: dict[str, Any] = _to_plain_json(status)
    return document


def read_status(document: Mapping[str, Any]) -> JobStatus:
    """Parse the ``status`` of a manifest; raises :class:`ManifestError` if it is invalid."""
    try:
        return convert_value(drop_nulls(document), JobStatus)
    except msgspec.ValidationError as error:
        raise ManifestError(f"invalid status: {error}") from error


def _parse_replicas(
    specs: Mapping[str, Any], framework: Framework
) -> dict[ReplicaType, ReplicaSpec]:
    named = {match_replica_type(name, framework): spec for name, spec in specs.items()}
    return {
        type: _build_replica_spec(named[type], type, framework)
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


def drop_nulls(value: Any) -> Any:
    """Return ``value`` without null fields; to Kubernetes they are absent."""
    if isinstance(value, Mapping):
        return {key: drop_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [drop_nulls(member) for member in value]
    return value


def _to_plain_json(value: object) -> Any:
    """Return ``value`` as dictionaries and lists, as if decoded from JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def drop_empty(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not empty (null, ``""``, ``{}``, ``[]``)."""
    return {name: value for name, value in mapping.items() if value not in (None, "", {}, [])}


# -- defaults -------------------------------------------------------------------------------------


def _build_replica_spec(
    spec: Mapping[str, Any], type: ReplicaType, framework: Framework
) -> ReplicaSpec:
    """Return a member of the replica map with defaults for number, restart policy and port."""
    replicas = spec.get("replicas")
    policy = RestartPolicy.ON_FAILURE if type in framework.batch_types else framework.restart_policy
    return ReplicaSpec(
        replicas=framework.default_replicas.get(type, 1) if replicas is None else replicas,
        template=add_default_port(spec["template"], framework),
        restart_policy=RestartPolicy(spec.get("restartPolicy") or policy),
    )


def _parse_run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    """Parse ``spec.runPolicy``, or an MPIJob's older ``spec.cleanPodPolicy`` if it sets none."""
    policy = _drop_unset(spec.get("runPolicy") or {})
    legacy = spec.get("cleanPodPolicy")
    if legacy:
        policy.setdefault("cleanPodPolicy", legacy)
    if "schedulingPolicy" in policy:
        policy["schedulingPolicy"] = _drop_unset(policy["schedulingPolicy"])
    return convert_value(policy, RunPolicy)


def _read_job_restart_policy(
    annotations: Mapping[str, str], run_policy: RunPolicy
) -> JobRestartPolicy | None:
    """Return the restart policy of the whole job that an annotation sets, if it does."""
    if annotations.get(RESTART_POLICY_ANNOTATION) != WHOLE_JOB:
        return None
    return JobRestartPolicy(run_policy.backoff_limit)


def _parse_elastic_policy(
    spec: Mapping[str, Any],
    replicas: Mapping[ReplicaType, ReplicaSpec],
    scaled: ReplicaType | None,
) -> ElasticPolicy | None:
    """Parse ``spec.elasticPolicy``; a missing bound is the other one, or the number of replicas."""
    if spec.get("elasticPolicy") is None:
        return None
    policy = convert_value(_drop_unset(spec["elasticPolicy"]), ElasticPolicy)
    low, high = policy.min_replicas, policy.max_replicas
    number = replicas[scaled].replicas if scaled and scaled in replicas else None
    return msgspec.structs.replace(
        policy,
        min_replicas=_first_set(low, high, number),
        max_replicas=_first_set(high, low, number),
    )


def _first_set(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _drop_unset(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are neither null nor empty text."""
    return {name: value for name, value in mapping.items() if value is not None and value != ""}
