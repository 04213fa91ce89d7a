"""What a pod's template must be like beyond its shape: containers, images, names, mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from danlu.lang.finding import nearest, suggestion
from danlu.training.framework import Finding, Framework

__all__ = ["check_template", "is_label"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?=.{1,15}$)[a-z0-9]+(-[a-z0-9]+)*")

_Members = Sequence[tuple[str, Mapping[str, Any]]]
"""Mappings of a list, each with its path."""


def is_label(name: str) -> bool:
    """Whether ``name`` is a DNS-1123 label, as names of containers, volumes, namespaces are."""
    return _LABEL.fullmatch(name) is not None


def check_template(template: Any, path: str, framework: Framework) -> Iterator[Finding]:
    """Findings of the PodTemplateSpec at ``path``; what has a wrong shape is passed over."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    at = f"{path}.spec"
    containers, first = _members(spec, "containers", at), _members(spec, "initContainers", at)
    volumes = _members(spec, "volumes", at)
    if isinstance(spec, Mapping) and spec.get("containers") == []:
        yield Finding(f"{at}.containers", "must not be empty", f"name one '{framework.container}'")
    if containers and not framework.any_container:
        yield from _check_main(containers, framework)
    yield from _check_names(volumes, what="volume")
    yield from _check_names([*containers, *first], what="container")
    for where, container in (*containers, *first):
        yield from _check_container(container, where)
        yield from _check_mounts(_members(container, "volumeMounts", where), volumes)


def _check_main(containers: _Members, framework: Framework) -> Iterator[Finding]:
    """That one container has the name by which the framework knows its program's."""
    names = [container.get("name") for _, container in containers]
    if framework.container in names:
        return
    texts = [name for name in names if isinstance(name, str)]
    meant = nearest(framework.container, texts) or (texts[0] if texts else "")
    path = next((at for at, one in containers if one.get("name") == meant), containers[0][0])
    message = f"no container is called '{framework.container}', as a {framework.kind} needs"
    yield Finding(f"{path}.name", message, f"call this one '{framework.container}'")


def _check_names(members: _Members, *, what: str) -> Iterator[Finding]:
    seen: set[str] = set()
    for path, member in members:
        name = member.get("name")
        if not isinstance(name, str):
            continue
        if not is_label(name):
            hint = "small letters, digits and '-', at most 63"
            yield Finding(f"{path}.name", f"'{name}' cannot be the name of a {what}", hint)
        if name in seen:
            yield Finding(f"{path}.name", f"there is another {what} '{name}'")
        seen.add(name)


def _check_container(container: Mapping[str, Any], path: str) -> Iterator[Finding]:
    if container.get("image") in (None, ""):
        yield Finding(f"{path}.image", "is required")
    yield from _check_variables(_members(container, "env", path))
    yield from _check_ports(_members(container, "ports", path))


def _check_variables(variables: _Members) -> Iterator[Finding]:
    for path, variable in variables:
        name = variable.get("name")
        if isinstance(name, str) and not _VARIABLE.fullmatch(name):
            hint = "letters, digits, '_', '-' and '.', no digit first"
            yield Finding(f"{path}.name", f"'{name}' cannot be the name of a variable", hint)
        if variable.get("value") not in (None, "") and variable.get("valueFrom") is not None:
            yield Finding(f"{path}.valueFrom", "cannot stand beside value", "keep one of the two")


def _check_ports(ports: _Members) -> Iterator[Finding]:
    seen: set[str] = set()
    for path, port in ports:
        name = port.get("name")
        if not isinstance(name, str) or not name:
            continue
        if not _PORT_NAME.fullmatch(name):
            hint = "at most 15 small letters, digits and '-', with a letter among them"
            yield Finding(f"{path}.name", f"'{name}' cannot be the name of a port", hint)
        if name in seen:
            yield Finding(f"{path}.name", f"there is another port '{name}'")
        seen.add(name)


def _check_mounts(mounts: _Members, volumes: _Members) -> Iterator[Finding]:
    names = [volume["name"] for _, volume in volumes if isinstance(volume.get("name"), str)]
    for path, mount in mounts:
        name = mount.get("name")
        if isinstance(name, str) and name not in names:
            hint = suggestion(name, names, what="volumes") or "there are no volumes"
            yield Finding(f"{path}.name", f"there is no volume '{name}'", hint)


def _members(of: Any, field: str, path: str) -> _Members:
    found: Iterable[Any] = (of.get(field) if isinstance(of, Mapping) else None) or ()
    if not isinstance(found, list | tuple):
        return []
    at = f"{path}.{field}"
    return [(f"{at}[{i}]", one) for i, one in enumerate(found) if isinstance(one, Mapping)]
