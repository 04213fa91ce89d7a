"""Admission of objects into the store: defaults, immutable fields, generation and validation."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.kubernetes import crds
from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.status_errors import Cause, bad_request, conflict, invalid

if TYPE_CHECKING:
    from tests.fakes.kubernetes.cluster import FakeCluster

__all__ = [
    "bump_generation",
    "check_identity",
    "check_owners",
    "check_preconditions",
    "check_type",
    "has_no_change",
    "initialize_metadata",
    "is_removable",
    "mark_deleted",
    "preserve_fields",
]

Object = dict[str, Any]
#: Metadata that only the server sets.
_SERVER_FIELDS = (
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "generation",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
)


def check_type(kind: ResourceKind, obj: Object) -> None:
    """Reject an object of another kind; fill in a missing apiVersion and kind."""
    output = (obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind))
    if output != (kind.api_version, kind.kind):
        raise bad_request(
            f"{output[1]} in version {output[0]!r} cannot be handled as a {kind.kind} in version "
            f"{kind.api_version!r}"
        )
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind


def initialize_metadata(cluster: FakeCluster, kind: ResourceKind, obj: Object) -> None:
    """Set the metadata that the server adds to a new object."""
    metadata = obj["metadata"]
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = cluster.timestamp()
    if kind.custom or kind.rules.counts_generations:
        metadata["generation"] = 1
    if kind.status:
        obj.pop("status", None)
    crds.prune_and_default(kind, obj)
    kind.rules.prepare(obj, None)


def check_identity(kind: ResourceKind, old: Object, new: Object, *, patch: bool = False) -> None:
    """Reject a write with another uid or an older resource version."""
    name = old["metadata"]["name"]
    metadata = new.get("metadata", {})
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if uid and uid != old["metadata"]["uid"]:
        raise conflict(kind, name, _precondition_message("UID", uid, old["metadata"]["uid"]))
    if version and version != old["metadata"]["resourceVersion"]:
        raise conflict(kind, name)
    if not version and not patch and (kind.custom or not kind.rules.unconditional_update):
        message = "Invalid value: 0: must be specified for an update"
        cause = {
            "reason": "FieldValueInvalid",
            "message": message,
            "field": "metadata.resourceVersion",
        }
        raise invalid(kind, name, [cause])
    if metadata.get("name", name) != name:
        raise bad_request("the name of the object does not match the name on the URL")


def check_preconditions(kind: ResourceKind, old: Object, wanted: Mapping[str, Any]) -> None:
    """Reject a deletion whose preconditions do not match the object."""
    metadata = old["metadata"]
    for field, output in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != metadata[field]:
            why = _precondition_message(output, wanted[field], metadata[field])
            raise conflict(kind, metadata["name"], why)


def _precondition_message(what: str, wanted: str, found: str) -> str:
    return (
        f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). "
        "The object might have been modified"
    )


def preserve_fields(kind: ResourceKind, old: Object, new: Object, subresource: str) -> Object:
    """Return ``new`` with the fields that this kind of write cannot change copied from ``old``."""
    if subresource == "status":
        meant = new
        new = copy.deepcopy(old)
        if not kind.custom:
            for name in ("labels", "annotations", "finalizers"):
                if name in meant.get("metadata", {}):
                    new["metadata"][name] = meant["metadata"][name]
        new.pop("status", None)
        if "status" in meant:
            new["status"] = meant["status"]
        crds.prune_and_default(kind, new)
        return new
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    metadata = new.setdefault("metadata", {})
    for name in _SERVER_FIELDS:
        metadata.pop(name, None)
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
    _check_finalizers(kind, old, new)
    crds.prune_and_default(kind, new)
    kind.rules.prepare(new, old)
    return new


def check_owners(obj: Object) -> list[Cause]:
    """Return what is invalid in the owner references: at most one may be the controller."""
    owners = obj["metadata"].get("ownerReferences") or []
    names = [owner["name"] for owner in owners if owner.get("controller")]
    if len(names) < 2:
        return []
    message = (
        "Invalid value: Only one reference can have Controller set to true. Found "
        f'"true" in references for {" and ".join(names)}'
    )
    field = "metadata.ownerReferences"
    return [{"reason": "FieldValueInvalid", "message": message, "field": field}]


def _check_finalizers(kind: ResourceKind, old: Object, new: Object) -> None:
    if "deletionTimestamp" not in old["metadata"]:
        return
    before = old["metadata"].get("finalizers") or []
    added = [name for name in new["metadata"].get("finalizers") or [] if name not in before]
    if added:
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new "
            f"finalizers {added}"
        )
        cause = {
            "reason": "FieldValueForbidden",
            "message": message,
            "field": "metadata.finalizers",
        }
        raise invalid(kind, old["metadata"]["name"], [cause])


def has_no_change(old: Object, new: Object) -> bool:
    """Return whether nothing differs; then nothing is written."""
    return _without_empty_metadata(old) == _without_empty_metadata(new)


def _without_empty_metadata(obj: Object) -> Object:
    return {
        **obj,
        "metadata": {n: v for n, v in obj["metadata"].items() if v not in ({}, [], None)},
    }


def bump_generation(kind: ResourceKind, old: Object, new: Object) -> None:
    """Increase the generation if the spec changed, not if only the status did."""
    if not (kind.custom or kind.rules.counts_generations):
        return
    aside = ("metadata", "status") if kind.status else ("metadata",)
    before = {name: value for name, value in old.items() if name not in aside}
    after = {name: value for name, value in new.items() if name not in aside}
    if before != after:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def mark_deleted(
    cluster: FakeCluster, old: Object, options: Mapping[str, Any], *, grace: int
) -> Object:
    """Return ``old`` with a deletion timestamp and the finalizers that block the deletion."""
    metadata = dict(old["metadata"])
    propagation = options.get("propagationPolicy", "")
    finalizers = [
        name for name in metadata.get("finalizers") or [] if name not in _PROPAGATION.values()
    ]
    held = [name for name in metadata.get("finalizers") or [] if name in _PROPAGATION.values()]
    if propagation in _PROPAGATION:
        held = [_PROPAGATION[propagation]] if cluster.collector else held
    metadata["finalizers"] = [*finalizers, *held]
    if not metadata["finalizers"]:
        del metadata["finalizers"]
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = cluster.timestamp(grace)
        metadata["deletionGracePeriodSeconds"] = grace
        if "generation" in metadata:
            metadata["generation"] += 1
    elif grace < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionGracePeriodSeconds"] = grace
    new = {**old, "metadata": metadata}
    if old["kind"] == "Namespace" and cluster.collector:
        new["status"] = {"phase": "Terminating"}
    return new


_PROPAGATION = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


def is_removable(obj: Object) -> bool:
    """Return whether no finalizer or grace period blocks the removal of an object."""
    metadata = obj["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (obj["kind"] == "Namespace" and obj["spec"].get("finalizers"))
