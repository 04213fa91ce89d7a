"""The fields of jobs that this driver reads; whatever else a manifest has is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from danlu.jobs.types import Submission
from danlu.training.registry import find_job_framework

_Fields = dict[str, Any]
"""Names of fields that are read, with a dict of those below them; None for everything below."""


def _leaf_fields(names: str) -> _Fields:
    return dict.fromkeys(names.split())


_HANDLER = _leaf_fields("exec sleep")
_PROBE = _leaf_fields(
    "exec initialDelaySeconds periodSeconds timeoutSeconds failureThreshold successThreshold"
    " terminationGracePeriodSeconds"
)
_RESOURCES = _leaf_fields("cpu memory nvidia.com/gpu")
_SECURITY = _leaf_fields("runAsUser runAsGroup runAsNonRoot")
_CONTAINER: _Fields = {
    **_leaf_fields("name image command args workingDir env envFrom"),
    "ports": _leaf_fields("name containerPort"),
    # Requests are for a scheduler; a sweep counts them.
    "resources": {"limits": _RESOURCES, "requests": None},
    "volumeMounts": _leaf_fields("name mountPath subPath subPathExpr readOnly"),
    "lifecycle": {"preStop": _HANDLER, "postStart": _HANDLER},
    "livenessProbe": _PROBE,
    "startupProbe": _PROBE,
    "securityContext": _SECURITY,
}
_POD: _Fields = {
    "containers": _CONTAINER,
    "initContainers": _CONTAINER,
    "volumes": None,
    "securityContext": _SECURITY,
    # A variable may be one (fieldRef), and the replica's restart policy replaces the pod's.
    **_leaf_fields("serviceAccountName restartPolicy terminationGracePeriodSeconds"),
}


def describe_unread_fields(submission: Submission) -> tuple[str, ...]:
    """Return a warning that names the fields of a job without an effect on this machine."""
    job = submission.job
    options = [
        f"spec.{name}" for name in find_job_framework(job).cluster_options if name in job.options
    ]
    fields = sorted(
        {
            field
            for spec in job.replicas.values()
            for field in list_unread_fields(spec.template, contained=bool(submission.images))
        }.union(options)
    )
    return (f"not applied on this machine: {', '.join(fields)}",) if fields else ()


def list_unread_fields(template: Mapping[str, Any], *, contained: bool) -> Iterator[str]:
    """Yield the paths of fields that are not read, without indexes.

    ``contained`` is whether replicas are containers; processes run with the user's own account.
    """
    fields = _POD
    if not contained:
        container = {name: below for name, below in _CONTAINER.items() if name != "securityContext"}
        fields = {**_POD, "containers": container, "initContainers": container}
        del fields["securityContext"]
    pod = template.get("spec") or {}
    yield from _find_unread(pod, fields, "")
    for container in pod["containers"]:
        startup = container.get("startupProbe")
        if startup and not startup.get("exec") and container.get("livenessProbe"):
            yield "containers.livenessProbe"


def _find_unread(value: Any, fields: _Fields | None, path: str) -> Iterator[str]:
    if fields is None or value in (None, "", {}, []):
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _find_unread(item, fields, path)
        return
    for name, member in value.items() if isinstance(value, Mapping) else ():
        below = f"{path}.{name}" if path else name
        if name in fields:
            yield from _find_unread(member, fields[name], below)
        elif member not in (None, "", {}, []):
            yield below
