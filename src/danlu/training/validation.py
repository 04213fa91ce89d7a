"""Everything that is wrong with a manifest, gathered before anything is done with it.

The rules are those of Kubeflow's validating webhooks (``pkg/webhooks``) and of the API server
behind them, without their gaps: every kind's replica types, ``managedBy`` and null replica specs
are looked at, a job's name is short enough for the names of all its replicas, and
``managedBy`` and ``queue`` never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from danlu.lang.finding import suggestion
from danlu.training.conversion import build_job, read_status
from danlu.training.defaults import replica_type
from danlu.training.document import API_VERSION, ManifestError
from danlu.training.fields import manifest
from danlu.training.framework import Finding, Framework
from danlu.training.schema import UNKNOWN
from danlu.training.templates import check_template, is_label
from danlu.training.types import Job, ReplicaId, ReplicaType

__all__ = ["validate", "validate_change"]

_LONGEST = 63
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def validate(document: Mapping[str, Any], framework: Framework) -> tuple[Finding, ...]:
    """All that is wrong with a manifest of ``framework``'s kind, sorted by path.

    The framework's own rules are asked once nothing else keeps the job from being understood.
    """
    shape = [*manifest(framework)("", document), *_check_status(document.get("status"))]
    findings = [*shape, *_rules(document, framework)]
    if all(finding.message == UNKNOWN for finding in shape) and _understood(document, framework):
        findings += framework.check(build_job(document, framework))
    return tuple(sorted(set(findings)))


def validate_change(old: Job, new: Job) -> tuple[Finding, ...]:
    """What may not change of a job that is there already."""
    findings = []
    if old.run_policy.managed_by != new.run_policy.managed_by:
        findings.append(_immutable("spec.runPolicy.managedBy", old.run_policy.managed_by))
    if _queue(old) != _queue(new):
        findings.append(_immutable("spec.runPolicy.schedulingPolicy.queue", _queue(old)))
    return tuple(findings)


def _immutable(path: str, value: str) -> Finding:
    return Finding(path, "cannot change", f"it is '{value}'" if value else "it is not set")


def _queue(job: Job) -> str:
    policy = job.run_policy.scheduling_policy
    return policy.queue if policy else ""


def _understood(document: Mapping[str, Any], framework: Framework) -> bool:
    """Whether every replica type is the framework's, each given once."""
    names = _replicas(document, framework)
    types = [replica_type(name, framework) for name in names]
    return None not in types and len(set(types)) == len(types)


# -- beyond the shape; what has a wrong one is passed over ----------------------------------------


def _rules(document: Mapping[str, Any], framework: Framework) -> Iterator[Finding]:
    yield from _check_kind(document, framework)
    yield from _check_metadata(_mapping(document.get("metadata")))
    yield from _check_name(document, framework)
    replicas = _replicas(document, framework)
    yield from _check_types(replicas, framework)
    for name, spec in replicas.items():
        at = f"spec.{framework.replicas_field}[{replica_type(name, framework) or name}]"
        template = _mapping(spec).get("template")
        yield from check_template(template, f"{at}.template", framework)


def _check_status(status: Any) -> Iterator[Finding]:
    try:
        read_status(_mapping(status))
    except ManifestError as error:
        yield Finding("status", error.message, "take it out: it is not for people to write")


def _check_kind(document: Mapping[str, Any], framework: Framework) -> Iterator[Finding]:
    version, kind = document.get("apiVersion"), document.get("kind")
    if isinstance(version, str) and version != API_VERSION:
        yield Finding("apiVersion", f"cannot be '{version}'", f"write {API_VERSION}")
    known = {framework.kind.casefold(), *(alias.casefold() for alias in framework.aliases)}
    if isinstance(kind, str) and kind.casefold() not in known:
        yield Finding("kind", f"cannot be '{kind}'", f"write {framework.kind}")


def _check_metadata(metadata: Mapping[str, Any]) -> Iterator[Finding]:
    namespace = metadata.get("namespace")
    if isinstance(namespace, str) and namespace and not is_label(namespace):
        hint = "small letters, digits and '-', at most 63"
        yield Finding("metadata.namespace", f"'{namespace}' cannot be a namespace", hint)
    for key, value in _mapping(metadata.get("labels")).items():
        if not _LABEL_KEY.fullmatch(key):
            yield Finding(f"metadata.labels[{key}]", "cannot be the name of a label")
        if isinstance(value, str) and not _LABEL_VALUE.fullmatch(value):
            hint = "letters, digits, '-', '_' and '.', at most 63"
            yield Finding(f"metadata.labels[{key}]", f"cannot be '{value}'", hint)


def _check_name(document: Mapping[str, Any], framework: Framework) -> Iterator[Finding]:
    """A job's name begins those of its Services: DNS-1035 labels (kubeflow/trainer#1745)."""
    metadata = _mapping(document.get("metadata"))
    name = metadata.get("name")
    if name in (None, ""):
        hint = "write name: generateName is not taken" if metadata.get("generateName") else ""
        yield Finding("metadata.name", "is required", hint)
    elif isinstance(name, str) and not _DNS_1035.fullmatch(name):
        hint = "small letters, digits and '-', a letter first, no '-' last"
        yield Finding("metadata.name", f"'{name}' cannot be the name of a job", hint)
    elif isinstance(name, str):
        longest = max((f"{name}-{one}" for one in _last(document, framework)), key=len, default="")
        if len(longest) > _LONGEST:
            over = len(longest) - _LONGEST
            message = f"is too long: '{longest}' has {len(longest)} characters"
            yield Finding("metadata.name", message, f"shorten it by {over} to {_LONGEST}")


def _last(document: Mapping[str, Any], framework: Framework) -> Iterator[ReplicaId]:
    """The last replica that each type may come to have."""
    most = _mapping(_mapping(document.get("spec")).get("elasticPolicy")).get("maxReplicas")
    for name, spec in _replicas(document, framework).items():
        asked = _mapping(spec).get("replicas")
        elastic = most if name.casefold() == "worker" else None
        numbers = [one for one in (asked, elastic, 1) if isinstance(one, int)]
        yield ReplicaId(ReplicaType(name), max(numbers) - 1)


def _check_types(replicas: Mapping[str, Any], framework: Framework) -> Iterator[Finding]:
    """That each type is the framework's, each is there once, and those that must be are there."""
    path = f"spec.{framework.replicas_field}"
    seen: set[ReplicaType] = set()
    for name in replicas:
        type = replica_type(name, framework)
        if type is None:
            hint = suggestion(name, framework.types) or f"one of {', '.join(framework.types)}"
            yield Finding(f"{path}[{name}]", f"a {framework.kind} has no such replica type", hint)
        elif type in seen:
            yield Finding(f"{path}[{name}]", f"{type} is there twice")
        else:
            seen.add(type)
    for type in framework.required:
        if type not in seen:
            yield Finding(f"{path}[{type}]", "is required")
    if not replicas and not framework.required:
        yield Finding(path, "must not be empty", f"one or more of {', '.join(framework.types)}")


def _replicas(document: Mapping[str, Any], framework: Framework) -> Mapping[str, Any]:
    return _mapping(_mapping(document.get("spec")).get(framework.replicas_field))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
