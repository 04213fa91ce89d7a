"""What an API server refuses of a job beyond its shape: rules in CEL, in the words of validation.

They are those of :mod:`danlu.training.validation` that can be said without knowing a whole pod.
Keys of the replica map are compared in small letters, for their letter case is the user's.
"""

from __future__ import annotations

from collections.abc import Iterable

from danlu.kube.types import Document
from danlu.training.framework import Framework

__all__ = ["LONGEST", "constant", "known_types", "main_container", "short_enough"]

LONGEST = 63
"""Characters of a label, which the name of every replica's Service is."""


def short_enough(framework: Framework) -> Iterable[Document]:
    """That the name of every replica's Service is a label."""
    message = (
        f"metadata.name is too long: with a replica's type and number it may have {LONGEST}"
        " characters"
    )
    field = f"self.spec.{framework.replicas_field}"
    number = f"(has({field}[t].replicas) && {field}[t].replicas > 1 ? {field}[t].replicas : 1)"
    length = f"size(self.metadata.name) + size(t) + 2 + size(string({number} - 1))"
    yield {"rule": f"{field}.all(t, {length} <= {LONGEST})", "message": message}
    if "elasticPolicy" in framework.options:
        policy = "self.spec.elasticPolicy"
        most = f"{policy}.maxReplicas"
        length = f"size(self.metadata.name) + {len('-worker-')} + size(string({most} - 1))"
        absent = f"!has({policy}) || !has({most})"
        yield {"rule": f"{absent} || {length} <= {LONGEST}", "message": message}


def known_types(framework: Framework) -> Iterable[Document]:
    """That the replica types are the framework's, each once, and those it must have are there."""
    known = [type.lower() for type in framework.types]
    yield {
        "rule": f"self.all(t, t.lowerAscii() in {known})",
        "message": f"a {framework.kind} has the replica types {', '.join(framework.types)}",
    }
    yield {
        "rule": "self.all(t, self.exists_one(o, o.lowerAscii() == t.lowerAscii()))",
        "message": "a replica type is there twice",
    }
    for type in framework.required:
        yield {
            "rule": f"self.exists(t, t.lowerAscii() == '{type.lower()}')",
            "message": f"{type} is required",
        }
    for type in framework.single:
        given = f"t.lowerAscii() == '{type.lower()}' && has(self[t].replicas)"
        yield {
            "rule": f"self.all(t, !({given}) || self[t].replicas == 1)",
            "message": f"a {framework.kind} has one {type}",
        }


def main_container(framework: Framework) -> Document:
    """That one of the containers is the framework's, by its name."""
    return {
        "rule": f"self.exists(c, c.name == '{framework.container}')",
        "message": f"no container is called '{framework.container}', as a {framework.kind} needs",
    }


def constant() -> Iterable[Document]:
    """What never changes of a job (``validate_change``)."""
    for path in ("runPolicy.managedBy", "runPolicy.schedulingPolicy.queue"):
        yield {
            "rule": f"{_or_empty('self', path)} == {_or_empty('oldSelf', path)}",
            "message": f"spec.{path} cannot change",
        }


def _or_empty(root: str, path: str) -> str:
    """The text at ``path``, empty where it, or something above it, is not there."""
    parts = path.split(".")
    steps = [".".join([root, *parts[:end]]) for end in range(1, len(parts) + 1)]
    present = " && ".join(f"has({step})" for step in steps)
    return f"({present} ? {steps[-1]} : '')"
