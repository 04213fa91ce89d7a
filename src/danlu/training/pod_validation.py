"""Validate pod templates by the rules of the API server (``pkg/apis/core/validation``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from danlu.training.framework import FieldError, Framework
from danlu.util.dns_label import LABEL_HINT, is_dns_label
from danlu.util.quantity import is_quantity, parse_quantity
from danlu.util.suggest import closest_match, did_you_mean

_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?=.{1,15}$)[a-z0-9]+(-[a-z0-9]+)*")
_FIELD_PATHS = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.(nodeName|serviceAccountName)"
    r"|status\.(hostIPs?|podIPs?)"
)
_RESOURCE_FIELDS = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_DEFAULT_GRACE = 30

_Members = Sequence[tuple[str, Mapping[str, Any]]]
"""The mappings of a list, each with its path."""


def check_labels(metadata: Any, path: str) -> Iterator[FieldError]:
    """Yield what is wrong with the labels of an object."""
    for key, value in as_mapping(as_mapping(metadata).get("labels")).items():
        label = f"{path}.labels[{key}]"
        if not _LABEL_KEY.fullmatch(key):
            yield FieldError(label, "invalid label name")
        if isinstance(value, str) and not _LABEL_VALUE.fullmatch(value):
            hint = "use letters, digits, '-', '_' and '.', at most 63 characters"
            yield FieldError(label, f"cannot be '{value}'", hint)


def check_template(template: Any, path: str, framework: Framework) -> Iterator[FieldError]:
    """Yield what is wrong with a pod template beyond its shape."""
    yield from check_labels(as_mapping(template).get("metadata"), f"{path}.metadata")
    spec = template.get("spec") if isinstance(template, Mapping) else None
    path = f"{path}.spec"
    containers = _list_members(spec, "containers", path)
    init_containers = _list_members(spec, "initContainers", path)
    volumes = _list_members(spec, "volumes", path)
    if isinstance(spec, Mapping) and spec.get("containers") == []:
        hint = f"add one named '{framework.container}'"
        yield FieldError(f"{path}.containers", "must not be empty", hint)
    if containers and not framework.any_container:
        yield from _check_main_container(containers, framework)
    yield from _check_names(volumes, what="volume")
    yield from _check_names([*containers, *init_containers], what="container")
    grace = as_mapping(spec).get("terminationGracePeriodSeconds")
    for container_path, container in init_containers:
        yield from _check_init_container(container, container_path)
    for container_path, container in (*containers, *init_containers):
        yield from _check_image(container.get("image"), f"{container_path}.image")
        yield from _check_resources(as_mapping(container.get("resources")), container_path)
        yield from _check_handlers(
            container, container_path, _DEFAULT_GRACE if grace is None else grace
        )
        yield from _check_variables(_list_members(container, "env", container_path))
        yield from _check_ports(_list_members(container, "ports", container_path))
        yield from _check_mounts(_list_members(container, "volumeMounts", container_path), volumes)


def _check_main_container(containers: _Members, framework: Framework) -> Iterator[FieldError]:
    """Check that the framework's container exists; else point at the one most likely meant."""
    names = [container.get("name") for _, container in containers]
    if framework.container in names:
        return
    texts = [name for name in names if isinstance(name, str)]
    meant = closest_match(framework.container, texts) or (texts[0] if texts else "")
    path = next(
        (path for path, container in containers if container.get("name") == meant),
        containers[0][0],
    )
    message = f"a {framework.kind} needs a container named '{framework.container}'"
    yield FieldError(f"{path}.name", message, f"rename this one to '{framework.container}'")


def _check_names(members: _Members, *, what: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for path, member in members:
        name = member.get("name")
        if not isinstance(name, str):
            continue
        if not is_dns_label(name):
            yield FieldError(f"{path}.name", f"invalid {what} name '{name}'", LABEL_HINT)
        if name in seen:
            yield FieldError(f"{path}.name", f"duplicate {what} '{name}'")
        seen.add(name)


def _check_variables(variables: _Members) -> Iterator[FieldError]:
    for path, variable in variables:
        name = variable.get("name")
        if isinstance(name, str) and not _VARIABLE.fullmatch(name):
            hint = "use letters, digits, '_', '-' and '.', not starting with a digit"
            yield FieldError(f"{path}.name", f"invalid variable name '{name}'", hint)
        if variable.get("value") not in (None, "") and variable.get("valueFrom") is not None:
            message = "cannot be combined with value"
            yield FieldError(f"{path}.valueFrom", message, "keep one of the two")
        yield from _check_value_source(as_mapping(variable.get("valueFrom")), f"{path}.valueFrom")


def _check_value_source(source: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    given = [name for name, value in source.items() if value is not None]
    if len(given) > 1:
        yield FieldError(path, f"cannot have {' and '.join(given)}", "keep one of them")
    field = as_mapping(source.get("fieldRef")).get("fieldPath")
    if isinstance(field, str) and not _FIELD_PATHS.fullmatch(field):
        hint = "for example metadata.name, metadata.labels['KEY'], spec.nodeName, status.podIP"
        yield FieldError(f"{path}.fieldRef.fieldPath", f"cannot be '{field}'", hint)
    resource = as_mapping(source.get("resourceFieldRef")).get("resource")
    if isinstance(resource, str) and not _RESOURCE_FIELDS.fullmatch(resource):
        hint = "limits or requests of cpu, memory, ephemeral-storage or hugepages"
        yield FieldError(f"{path}.resourceFieldRef.resource", f"cannot be '{resource}'", hint)


def _check_ports(ports: _Members) -> Iterator[FieldError]:
    seen: set[str] = set()
    for path, port in ports:
        name = port.get("name")
        if not isinstance(name, str) or not name:
            continue
        if not _PORT_NAME.fullmatch(name):
            hint = "use at most 15 lower-case letters, digits and '-', including a letter"
            yield FieldError(f"{path}.name", f"invalid port name '{name}'", hint)
        if name in seen:
            yield FieldError(f"{path}.name", f"duplicate port '{name}'")
        seen.add(name)


def _check_mounts(mounts: _Members, volumes: _Members) -> Iterator[FieldError]:
    names = [volume["name"] for _, volume in volumes if isinstance(volume.get("name"), str)]
    listed = f"volumes: {', '.join(sorted(names))}" if names else "the pod has no volumes"
    targets: set[object] = set()
    for path, mount in mounts:
        target, sub = mount.get("mountPath"), mount.get("subPath") or mount.get("subPathExpr")
        if isinstance(target, str) and target in targets:
            yield FieldError(f"{path}.mountPath", f"duplicate path '{target}'")
        targets.add(target if isinstance(target, str) else None)
        if mount.get("subPath") and mount.get("subPathExpr"):
            yield FieldError(f"{path}.subPathExpr", "cannot be combined with subPath")
        elif isinstance(sub, str) and (sub.startswith("/") or ".." in sub.split("/")):
            yield FieldError(f"{path}.subPath", f"cannot be '{sub}'", "use a path in the volume")
        name = mount.get("name")
        if isinstance(name, str) and name not in names:
            hint = did_you_mean(name, names, otherwise=listed, template="'{}'")
            yield FieldError(f"{path}.name", f"volume '{name}' not found", hint)


def _check_image(image: Any, path: str) -> Iterator[FieldError]:
    if image in (None, ""):
        yield FieldError(path, "is required")
    elif isinstance(image, str) and image != image.strip():
        yield FieldError(path, f"cannot be '{image}'", "remove the blanks around it")


def _check_init_container(container: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if container.get("restartPolicy") == "Always":
        return
    for name in ("lifecycle", *_PROBES):
        if container.get(name) is not None:
            message = "is only allowed with restartPolicy Always in an init container"
            yield FieldError(f"{path}.{name}", message)


def _check_resources(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    limits, requests = (_read_quantities(resources.get(name)) for name in ("limits", "requests"))
    for kind, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            if _is_extended(name) and quantity != int(quantity):
                yield FieldError(f"{path}.resources.{kind}[{name}]", "must be an integer")
    for name, request in requests.items():
        where = f"{path}.resources.requests[{name}]"
        whole = _is_extended(name) or name.startswith("hugepages-")
        if name not in limits:
            if whole:
                yield FieldError(f"{path}.resources.limits[{name}]", "is required: it is requested")
        elif whole and request != limits[name]:
            yield FieldError(where, "must be equal to the limit")
        elif request > limits[name]:
            yield FieldError(where, "must not be more than the limit")


def _read_quantities(value: Any) -> dict[str, float]:
    return {
        name: parse_quantity(text)
        for name, text in as_mapping(value).items()
        if not isinstance(text, bool)
        and (isinstance(text, int | float) or (isinstance(text, str) and is_quantity(text)))
    }


def _is_extended(resource: str) -> bool:
    """Whether a resource is one of a device plugin (``nvidia.com/gpu``), counted in units."""
    return "/" in resource and "kubernetes.io/" not in resource


def _check_handlers(container: Mapping[str, Any], path: str, grace: Any) -> Iterator[FieldError]:
    hooks = as_mapping(container.get("lifecycle"))
    handlers = [(f"lifecycle.{name}", hooks.get(name)) for name in ("postStart", "preStop")]
    handlers += [(name, container.get(name)) for name in _PROBES]
    for name, value in handlers:
        if not isinstance(value, Mapping):
            continue
        given = [handler for handler in _HANDLERS if value.get(handler) is not None]
        if len(given) != 1:
            problem = f"cannot have {' and '.join(given)}" if given else "has no handler"
            yield FieldError(f"{path}.{name}", problem, f"give one of {', '.join(_HANDLERS)}")
        threshold = value.get("successThreshold")
        if name in ("livenessProbe", "startupProbe") and threshold not in (None, 0, 1):
            yield FieldError(f"{path}.{name}.successThreshold", f"must be 1, not {threshold}")
        seconds = as_mapping(value.get("sleep")).get("seconds")
        if isinstance(seconds, int) and isinstance(grace, int) and not 0 <= seconds <= grace:
            message = f"must not be negative or more than the grace period: {seconds}"
            yield FieldError(f"{path}.{name}.sleep.seconds", message)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else, which the schema reports."""
    return value if isinstance(value, Mapping) else {}


def _list_members(parent: Any, field: str, path: str) -> _Members:
    """Return the mappings in a list field, with their paths; nothing if it is not a list."""
    members: Iterable[Any] = (parent.get(field) if isinstance(parent, Mapping) else None) or ()
    if not isinstance(members, list | tuple):
        return []
    return [
        (f"{path}.{field}[{index}]", member)
        for index, member in enumerate(members)
        if isinstance(member, Mapping)
    ]
