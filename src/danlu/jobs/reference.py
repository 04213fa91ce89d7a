"""The reference of training jobs, made from their types: ``python -m danlu.jobs.reference``."""

from __future__ import annotations

import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from danlu.jobs.types import JobView, Progress, ReplicaView
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN
from danlu.training.types import (
    Condition,
    ElasticPolicy,
    FirstFailure,
    JobStatus,
    ReplicaRecord,
    ReplicaStatus,
    RestartPolicy,
    RunPolicy,
    SchedulingPolicy,
)
from danlu.util.pages import write_pages

__all__ = ["main", "reference"]

PAGE = "docs/reference/jobs.md"
HEAD = """\
# Training jobs

*Made by `python -m danlu.jobs.reference` from the types; do not edit.*

What each framework's manifest may say (`kubeflow.org/v1`), what the run policy holds, and what
`danlu jobs show --format json` and the status of a job tell. How a job behaves is in
[the life of a job](../concepts/jobs.md); what replicas are told, in the guide of each framework.
"""
POLICIES: tuple[type[msgspec.Struct], ...] = (RunPolicy, SchedulingPolicy, ElasticPolicy)
STATUS: tuple[type[msgspec.Struct], ...] = (
    JobStatus,
    Condition,
    ReplicaStatus,
    ReplicaRecord,
    FirstFailure,
)
VIEWS: tuple[type[msgspec.Struct], ...] = (JobView, ReplicaView, Progress)
PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    bytes: "bytes",
    datetime: "time (RFC 3339)",
    Any: "anything",
}


def reference() -> str:
    """The page."""
    parts = [HEAD, "## Frameworks\n", *_frameworks(), "## Restart policies\n", _restarts()]
    for title, structs in (("Policies", POLICIES), ("Status", STATUS), ("Views", VIEWS)):
        parts.append(f"## {title}\n")
        parts += [_struct(one) for one in structs]
    return "\n".join(parts)


def _frameworks() -> Iterator[str]:
    for framework in BUILT_IN:
        yield f"### {framework.kind}\n"
        yield _table(("", ""), _rows(framework))


def _rows(framework: Framework) -> Iterator[tuple[str, str]]:
    yield "`--framework`", ", ".join(_code(framework.name, *framework.aliases))
    yield "replica map", f"`spec.{framework.replicas_field}`"
    yield "replica types, in the order that decides", ", ".join(_code(*framework.types))
    needed = ", ".join(_code(*framework.required))
    yield "needed", needed or "none"
    yield "container", "any" if framework.any_container else f"`{framework.container}`"
    yield "port", f"`{framework.port_name}` {framework.port}"
    yield "restart policy where none is given", f"`{framework.restart_policy}`"
    yield "further fields of `spec`", ", ".join(_code(*framework.options)) or "none"


def _code(*words: str) -> list[str]:
    return [f"`{word}`" for word in words]


def _restarts() -> str:
    text = ", ".join(_code(*(one.value for one in RestartPolicy)))
    return f"{text}. {_prose(RestartPolicy)}\n"


def _struct(struct: type[msgspec.Struct]) -> str:
    fields = [
        (f"`{field.encode_name}`", _type(field.type))
        for field in msgspec.structs.fields(struct)
        if field.name != "tag"
    ]
    return f"### {struct.__name__}\n\n{_prose(struct)}\n\n{_table(('field', 'value'), fields)}"


def _prose(what: type) -> str:
    """A docstring as Markdown."""
    text = re.sub(r":\w+:`~?\.?([^`]*)`", r"`\1`", inspect.getdoc(what) or "")
    return text.replace("``", "`")


def _type(kind: Any) -> str:
    """A type in the words of a reader of JSON or YAML."""
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, typing.NewType):
        return _type(kind.__supertype__)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        rest = [one for one in arguments if one is not type(None)]
        return " or ".join(map(_type, rest)) + (", or absent" if len(rest) < len(arguments) else "")
    if origin is typing.Literal:
        return ", ".join(_code(*map(str, arguments)))
    if origin is tuple:
        return f"list of: {_type(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {_type(arguments[0])} to: {_type(arguments[1])}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(_code(*(str(one.value) for one in kind)))
    return f"{kind.__name__}"


def _table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {text} |" for name, text in rows)]) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say that it is not current; give the exit code."""
    return write_pages({PAGE: reference()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
