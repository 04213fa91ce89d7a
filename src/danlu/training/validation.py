"""Validate manifests: report everything that is wrong before anything is done.

The rules are those of Kubeflow's validating webhooks (``pkg/webhooks``) and of the API server
behind them, without their gaps: the replica types of every kind, ``managedBy`` and null replica
specs are checked, and a job's name must leave room for the names of all its replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from danlu.training.dependencies import check_dependencies
from danlu.training.document import invalid_job_error
from danlu.training.framework import FieldError, Framework
from danlu.training.manifest_schema import build_policy_check, build_replica_check, check_text
from danlu.training.names import RESTART_POLICY_ANNOTATION, WHOLE_JOB
from danlu.training.pod_validation import as_mapping, check_labels, check_template
from danlu.training.types import Job, ReplicaId, ReplicaType
from danlu.util.dns_label import DNS_1035, LABEL_HINT, MAX_LABEL_LENGTH, is_dns_label
from danlu.util.suggest import did_you_mean


def check_job(job: Job, framework: Framework) -> Job:
    """Check a job that was not read from a manifest, by the same rules, and return it.

    Raises :class:`ManifestError` with all errors.
    """
    errors = {
        *check_text("metadata.name", job.name),
        *build_policy_check(framework)("spec.runPolicy", msgspec.to_builtins(job.run_policy)),
    }
    paths = {type: f"spec.{framework.replicas_field}[{type}]" for type in job.replicas}
    check_replica = build_replica_check(framework)
    for type, spec in job.replicas.items():
        policy = str(spec.restart_policy)
        fields = {"replicas": spec.replicas, "restartPolicy": policy, "template": spec.template}
        errors |= {*check_replica(paths[type], fields)}
    if not errors:  # the framework's rules need values of the right types
        errors |= {*framework.validate(job)}
        errors |= {*check_dependencies(job, field=framework.replicas_field)}
    last = [_last_replica(type, spec.replicas) for type, spec in job.replicas.items()]
    errors |= {*_check_name({"name": job.name}, last)}
    for type, spec in job.replicas.items():
        errors |= {*check_template(spec.template, f"{paths[type]}.template", framework)}
    if errors:
        raise invalid_job_error({}, sorted(errors), framework.kind)
    return job


def check_document(document: Mapping[str, Any], framework: Framework) -> Iterator[FieldError]:
    """Yield what is wrong with a manifest beyond its shape; values of a wrong one are skipped."""
    yield from _check_kind(document, framework)
    metadata = as_mapping(document.get("metadata"))
    yield from _check_metadata(metadata)
    yield from _check_name(metadata, _last_replicas(document, framework))
    replicas = _replica_specs(document, framework)
    yield from _check_types(replicas, framework)
    for name, spec in replicas.items():
        path = f"spec.{framework.replicas_field}[{match_replica_type(name, framework) or name}]"
        template = as_mapping(spec).get("template")
        yield from check_template(template, f"{path}.template", framework)


def has_valid_types(document: Mapping[str, Any], framework: Framework) -> bool:
    """Return whether all replica types are the framework's, each given once."""
    names = _replica_specs(document, framework)
    types = [match_replica_type(name, framework) for name in names]
    return None not in types and len(set(types)) == len(types)


def match_replica_type(name: str, framework: Framework) -> ReplicaType | None:
    """Return the replica type called ``name``, in any case, or None."""
    folded = name.casefold()
    return next((type for type in framework.replica_types if type.casefold() == folded), None)


def _check_kind(document: Mapping[str, Any], framework: Framework) -> Iterator[FieldError]:
    version, kind = document.get("apiVersion"), document.get("kind")
    if isinstance(version, str) and version != framework.api_version:
        hint = f"write {framework.api_version}"
        yield FieldError("apiVersion", f"cannot be '{version}'", hint)
    known = {framework.kind.casefold(), *(alias.casefold() for alias in framework.aliases)}
    if isinstance(kind, str) and kind.casefold() not in known:
        yield FieldError("kind", f"cannot be '{kind}'", f"write {framework.kind}")


def _check_metadata(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    namespace = metadata.get("namespace")
    if isinstance(namespace, str) and namespace and not is_dns_label(namespace):
        yield FieldError("metadata.namespace", f"invalid namespace '{namespace}'", LABEL_HINT)
    yield from check_labels(metadata, "metadata")
    policy = as_mapping(metadata.get("annotations")).get(RESTART_POLICY_ANNOTATION)
    if isinstance(policy, str) and policy != WHOLE_JOB:
        path = f"metadata.annotations[{RESTART_POLICY_ANNOTATION}]"
        hint = f"write {WHOLE_JOB}, or remove it: each replica has its own restartPolicy"
        yield FieldError(path, f"cannot be '{policy}'", hint)


def _check_name(metadata: Mapping[str, Any], replicas: Iterable[ReplicaId]) -> Iterator[FieldError]:
    """Check that the names of all Services are DNS-1035 labels (kubeflow/trainer#1745).

    ``replicas`` are the last ones of each type.
    """
    name = metadata.get("name")
    if name in (None, ""):
        yield FieldError("metadata.name", "is required")
    elif isinstance(name, str) and not DNS_1035.fullmatch(name):
        hint = "use lower-case letters, digits and '-'; start with a letter, don't end with '-'"
        yield FieldError("metadata.name", f"invalid job name '{name}'", hint)
    elif isinstance(name, str):
        names = (f"{name}-{replica}" for replica in replicas)
        longest = max(names, key=len, default="")
        if len(longest) > MAX_LABEL_LENGTH:
            over = len(longest) - MAX_LABEL_LENGTH
            message = f"is too long: '{longest}' has {len(longest)} characters"
            hint = f"shorten it by {over}: the limit is {MAX_LABEL_LENGTH}"
            yield FieldError("metadata.name", message, hint)


def _last_replicas(document: Mapping[str, Any], framework: Framework) -> Iterator[ReplicaId]:
    """Yield the last replica that each type can have, also after scaling up."""
    elastic = as_mapping(as_mapping(document.get("spec")).get("elasticPolicy"))
    for name, spec in _replica_specs(document, framework).items():
        scaled = match_replica_type(name, framework) == framework.scaled_type
        limit = elastic.get("maxReplicas") if scaled else None
        yield _last_replica(name, as_mapping(spec).get("replicas"), limit)


def _last_replica(type: str, *numbers: object) -> ReplicaId:
    last = max(number for number in (*numbers, 1) if isinstance(number, int)) - 1
    return ReplicaId(ReplicaType(type), last)


def _check_types(replicas: Mapping[str, Any], framework: Framework) -> Iterator[FieldError]:
    """Check that each type is the framework's, given once, and that required types are given."""
    path = f"spec.{framework.replicas_field}"
    types = ", ".join(framework.replica_types)
    seen: set[ReplicaType] = set()
    for name in replicas:
        type = match_replica_type(name, framework)
        if type is None:
            hint = did_you_mean(
                name, framework.replica_types, otherwise=f"one of {types}", template="'{}'"
            )
            message = f"a {framework.kind} has no such replica type"
            yield FieldError(f"{path}[{name}]", message, hint)
        elif type in seen:
            yield FieldError(f"{path}[{name}]", f"duplicate replica type {type}")
        else:
            seen.add(type)
    for type in framework.required_types:
        if type not in seen:
            yield FieldError(f"{path}[{type}]", "is required")
    if not replicas and not framework.required_types:
        yield FieldError(path, "must not be empty", f"one or more of {types}")


def _replica_specs(document: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    return as_mapping(as_mapping(document.get("spec")).get(framework.replicas_field))
