"""What happens to an object on its way into the store: what is kept, counted, and refused."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from danlu.testing.kubernetes import customs
from danlu.testing.kubernetes.kinds import Kind
from danlu.testing.kubernetes.refusals import Cause, bad_request, conflict, invalid

if TYPE_CHECKING:
    from danlu.testing.kubernetes.cluster import Cluster

__all__ = [
    "carried_over",
    "check_meant",
    "check_preconditions",
    "check_type",
    "count_generation",
    "finish_new",
    "marked",
    "may_end",
    "named",
    "same",
    "two_controllers",
]

Object = dict[str, Any]
#: Metadata that only the server says.
_SERVERS = (
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


def check_type(kind: Kind, obj: Object) -> None:
    """Refuse an object of another kind; fill in what it leaves out."""
    said = (obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind))
    if said != (kind.api_version, kind.kind):
        raise bad_request(
            f"{said[1]} in version {said[0]!r} cannot be handled as a {kind.kind} in version "
            f"{kind.api_version!r}"
        )
    obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind


def finish_new(cluster: Cluster, kind: Kind, obj: Object) -> None:
    """What the server adds to a new object."""
    metadata = obj["metadata"]
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = cluster.time()
    if kind.custom or kind.rules.counts_generations:
        metadata["generation"] = 1
    if kind.status:
        obj.pop("status", None)
    customs.shaped(kind, obj)
    kind.rules.prepare(obj, None)


def check_meant(kind: Kind, old: Object, new: Object, *, patch: bool = False) -> None:
    """Refuse a write that means another object, or an older one."""
    name = old["metadata"]["name"]
    metadata = new.get("metadata", {})
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if uid and uid != old["metadata"]["uid"]:
        raise conflict(kind, name, _precondition("UID", uid, old["metadata"]["uid"]))
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


def check_preconditions(kind: Kind, old: Object, wanted: Mapping[str, Any]) -> None:
    """Refuse the deletion of another object than was meant."""
    metadata = old["metadata"]
    for field, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != metadata[field]:
            why = _precondition(shown, wanted[field], metadata[field])
            raise conflict(kind, metadata["name"], why)


def _precondition(what: str, wanted: str, found: str) -> str:
    return (
        f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). "
        "The object might have been modified"
    )


def carried_over(kind: Kind, old: Object, new: Object, subresource: str) -> Object:
    """``new`` with what a write by this way may not change taken from ``old``."""
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
        customs.shaped(kind, new)
        return new
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    metadata = new.setdefault("metadata", {})
    for name in _SERVERS:
        metadata.pop(name, None)
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
    _check_finalizers(kind, old, new)
    customs.shaped(kind, new)
    kind.rules.prepare(new, old)
    return new


def two_controllers(obj: Object) -> list[Cause]:
    """What is wrong with owners: only one of them manages an object."""
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


def _check_finalizers(kind: Kind, old: Object, new: Object) -> None:
    if "deletionTimestamp" not in old["metadata"]:
        return
    before = old["metadata"].get("finalizers") or []
    added = [one for one in new["metadata"].get("finalizers") or [] if one not in before]
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


def same(old: Object, new: Object) -> bool:
    """Whether nothing but times of managers differs: then nothing is written."""
    return _bare(old) == _bare(new)


def _bare(obj: Object) -> Object:
    entries = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in obj["metadata"].get("managedFields", [])
    ]
    kept = {n: v for n, v in obj["metadata"].items() if n not in ("managedFields",)}
    empty = {n: v for n, v in kept.items() if v not in ({}, [], None)}
    return {**obj, "metadata": {**empty, "managedFields": entries}}


def count_generation(kind: Kind, old: Object, new: Object) -> None:
    """The generation goes up with what is wanted, not with what was seen."""
    if not (kind.custom or kind.rules.counts_generations):
        return
    aside = ("metadata", "status") if kind.status else ("metadata",)
    before = {name: value for name, value in old.items() if name not in aside}
    after = {name: value for name, value in new.items() if name not in aside}
    if before != after:
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def marked(cluster: Cluster, old: Object, options: Mapping[str, Any], *, grace: int) -> Object:
    """``old`` as it is to be deleted: with the moment, and who must agree."""
    metadata = dict(old["metadata"])
    propagation = options.get("propagationPolicy", "")
    finalizers = [
        one for one in metadata.get("finalizers") or [] if one not in _PROPAGATION.values()
    ]
    held = [one for one in metadata.get("finalizers") or [] if one in _PROPAGATION.values()]
    if propagation in _PROPAGATION:
        held = [_PROPAGATION[propagation]] if cluster.collector else held
    metadata["finalizers"] = [*finalizers, *held]
    if not metadata["finalizers"]:
        del metadata["finalizers"]
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = cluster.time(grace)
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


def may_end(obj: Object) -> bool:
    """Whether nothing holds an object that is to be deleted."""
    metadata = obj["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (obj["kind"] == "Namespace" and obj["spec"].get("finalizers"))


def named(config: Object, place: tuple[str, str], *, namespaced: bool) -> Object:
    """What is applied, with its place; raises a refusal where it says another."""
    metadata = dict(config.get("metadata") or {})
    if metadata.get("name", place[1]) != place[1]:
        raise bad_request("the name of the object does not match the name on the URL")
    metadata["name"] = place[1]
    if namespaced:
        metadata["namespace"] = place[0]
    return {**config, "metadata": metadata}
