"""Read pod templates, and return changed copies of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from danlu.training.framework import EnvVar, Framework, PodTemplate
from danlu.training.types import Job, ReplicaId

_REQUIRED_NODES = "requiredDuringSchedulingIgnoredDuringExecution"
# encoding/json escapes characters that are special in HTML and JavaScript.
_GO_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def compact_json(value: object) -> str:
    """Return JSON exactly as Go's ``encoding/json`` writes it, so that variables equal Kubeflow's.

    Keys keep the order of ``value``: Go sorts the keys of maps, but not the fields of structs.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES)


def expand_references(text: str, value: Callable[[str], str | None]) -> str:
    """Replace ``$(NAME)`` in a text, by the rules of Kubernetes (its package ``expansion``).

    References without a value stay unchanged; ``$$`` becomes a single ``$``.
    """

    def replace_reference(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        replacement = value(match[1])
        return match[0] if replacement is None else replacement

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace_reference, text)


def escape_references(text: str) -> str:
    """Return what :func:`expand_references`, and Kubernetes, expand to ``text``."""
    return re.sub(r"\$+(?=\()|\${2,}", lambda dollars: dollars[0] * 2, text)


def pod_spec(template: PodTemplate) -> Mapping[str, Any]:
    """Return the spec of a pod; empty without one."""
    return template.get("spec") or {}


def list_containers(template: PodTemplate) -> tuple[Mapping[str, Any], ...]:
    """Return the containers of a pod, without init containers."""
    return tuple(pod_spec(template).get("containers") or ())


def find_main_container(template: PodTemplate, name: str) -> Mapping[str, Any]:
    """Return the container called ``name``, else the first one; empty without containers."""
    containers = list_containers(template)
    first = containers[0] if containers else {}
    return next((container for container in containers if container.get("name") == name), first)


def list_mounted_names(template: PodTemplate) -> set[str]:
    """Return the names of the volumes that the containers and init containers of a pod mount."""
    spec = pod_spec(template)
    return {
        str(mount["name"])
        for field in ("initContainers", "containers")
        for container in spec.get(field) or ()
        for mount in container.get("volumeMounts") or ()
    }


def declared_env(job: Job, replica: ReplicaId, container: str) -> frozenset[str]:
    """Return the names of the variables that the manifest sets in the main container."""
    spec = job.replicas.get(replica.type)
    main = find_main_container(spec.template, container) if spec else {}
    return frozenset(variable.get("name", "") for variable in main.get("env") or ())


def env_unless_declared(
    job: Job, replica: ReplicaId, container: str, variables: Iterable[EnvVar]
) -> list[EnvVar]:
    """Return the variables that the manifest does not set.

    Kubeflow's variables override the user's; those that only danlu adds must not.
    """
    known = declared_env(job, replica, container)
    return [(name, value) for name, value in variables if name not in known]


def append_to(mapping: Mapping[str, Any], key: str, *items: object) -> dict[str, Any]:
    """Return ``mapping`` with ``items`` appended to its list ``key``."""
    return {**mapping, key: [*(mapping.get(key) or ()), *items]}


def require_node_terms(
    spec: Mapping[str, Any], terms: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a pod's spec that also requires a node to match one of ``terms``.

    If the spec has terms already (``requiredDuringSchedulingIgnoredDuringExecution`` of the node
    affinity), each of them is combined with each of ``terms``.
    """
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED_NODES) or {}
    own_terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ({},)
    combined = [
        append_to(own, "matchExpressions", *added["matchExpressions"])
        for own in own_terms
        for added in terms
    ]
    nodes = {**node_affinity, _REQUIRED_NODES: {**required, "nodeSelectorTerms": combined}}
    return {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}


def replace_spec(template: PodTemplate, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template with these fields of its spec replaced."""
    return {**template, "spec": {**pod_spec(template), **spec}}


def replace_metadata(template: PodTemplate, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template with these fields of its metadata replaced."""
    return {**template, "metadata": {**(template.get("metadata") or {}), **metadata}}


def change_templates(job: Job, change: Callable[[PodTemplate], PodTemplate]) -> Job:
    """Return the job with the pod template of each type changed."""
    replicas = {
        type: msgspec.structs.replace(spec, template=change(spec.template))
        for type, spec in job.replicas.items()
    }
    return msgspec.structs.replace(job, replicas=replicas)


def change_containers(
    template: PodTemplate, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the template with all its containers and init containers changed."""
    spec = pod_spec(template)
    changed = {
        field: [change(container) for container in spec[field]]
        for field in ("initContainers", "containers")
        if spec.get(field)
    }
    return replace_spec(template, changed)


def replace_container(
    template: PodTemplate, changed: Mapping[str, Any], instead_of: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the template with one of its containers replaced."""
    new = [
        changed if container is instead_of else container for container in list_containers(template)
    ]
    return replace_spec(template, {"containers": new})


def add_default_port(template: PodTemplate, framework: Framework) -> PodTemplate:
    """Return the template with the framework's port in its main container, if not declared.

    Frameworks that accept any container (MPI) declare no port.
    """
    main = find_main_container(template, framework.container)
    ports = main.get("ports") or ()
    if framework.any_container or any(port.get("name") == framework.port_name for port in ports):
        return template
    port = {"name": framework.port_name, "containerPort": framework.port}
    return replace_container(template, append_to(main, "ports", port), main)
