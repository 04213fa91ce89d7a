"""Validation rules in CEL, which the API server checks beyond the schema of a job.

They are the rules of :mod:`danlu.training.validation` that need not know a complete pod, with the
same messages. Keys of the replica map are compared in lower case, because users write them in any.
"""

from __future__ import annotations

from collections.abc import Iterable

from danlu.kube.types import Manifest
from danlu.training.framework import Framework
from danlu.util.dns_label import MAX_LABEL_LENGTH


def name_length_rules(framework: Framework) -> Iterable[Manifest]:
    """Require that the name of every replica's Service is a DNS label."""
    message = (
        "metadata.name is too long: with the replica's type and index it must have at most"
        f" {MAX_LABEL_LENGTH} characters"
    )
    field = f"self.spec.{framework.replicas_field}"
    number = f"(has({field}[t].replicas) && {field}[t].replicas > 1 ? {field}[t].replicas : 1)"
    length = f"size(self.metadata.name) + size(t) + 2 + size(string({number} - 1))"
    yield {"rule": f"{field}.all(t, {length} <= {MAX_LABEL_LENGTH})", "message": message}
    if framework.scaled_type and "elasticPolicy" in framework.spec_options:
        policy = "self.spec.elasticPolicy"
        most = f"{policy}.maxReplicas"
        type = len(framework.scaled_type)
        length = f"size(self.metadata.name) + {type + 2} + size(string({most} - 1))"
        absent = f"!has({policy}) || !has({most})"
        yield {"rule": f"{absent} || {length} <= {MAX_LABEL_LENGTH}", "message": message}


def replica_type_rules(framework: Framework) -> Iterable[Manifest]:
    """Require known replica types, each at most once, and the required ones."""
    known = [type.lower() for type in framework.replica_types]
    yield {
        "rule": f"self.all(t, t.lowerAscii() in {known})",
        "message": f"replica types of a {framework.kind} are {', '.join(framework.replica_types)}",
    }
    yield {
        "rule": "self.all(t, self.exists_one(o, o.lowerAscii() == t.lowerAscii()))",
        "message": "duplicate replica type",
    }
    for type in framework.required_types:
        yield {
            "rule": f"self.exists(t, t.lowerAscii() == '{type.lower()}')",
            "message": f"{type} is required",
        }
    for type in framework.singleton_types:
        given = f"t.lowerAscii() == '{type.lower()}' && has(self[t].replicas)"
        yield {
            "rule": f"self.all(t, !({given}) || self[t].replicas == 1)",
            "message": f"a {framework.kind} has exactly one {type}",
        }


def main_container_rule(framework: Framework) -> Manifest:
    """Require a container with the framework's name."""
    return {
        "rule": f"self.exists(c, c.name == '{framework.container}')",
        "message": f"a {framework.kind} needs a container named '{framework.container}'",
    }


def immutable_field_rules() -> Iterable[Manifest]:
    """Forbid changes of immutable fields."""
    for path in ("runPolicy.managedBy", "runPolicy.schedulingPolicy.queue"):
        yield {
            "rule": f"{_value_or_empty('self', path)} == {_value_or_empty('oldSelf', path)}",
            "message": f"spec.{path}: field is immutable",
        }


def _value_or_empty(root: str, path: str) -> str:
    """Return an expression for the text at ``path``, empty if it or a parent is missing."""
    parts = path.split(".")
    steps = [".".join([root, *parts[:end]]) for end in range(1, len(parts) + 1)]
    present = " && ".join(f"has({step})" for step in steps)
    return f"({present} ? {steps[-1]} : '')"
