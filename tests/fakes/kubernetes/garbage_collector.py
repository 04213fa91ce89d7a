"""Garbage collection after a deletion: dependents of an owner, contents of a namespace.

Does what the garbage collector and the namespace controller of a real cluster do, but immediately.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.fakes.kubernetes.kinds import ResourceKind

if TYPE_CHECKING:
    from tests.fakes.kubernetes.cluster import FakeCluster

__all__ = ["GarbageCollector"]

Object = dict[str, Any]
Place = tuple[str, str]


class GarbageCollector:
    """Removes objects whose owners are gone; indexes dependents by the uid of their owner."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def on_created(self, kind: ResourceKind, obj: Object) -> None:
        """Remove a new object if all its owners are gone."""
        owners = obj["metadata"].get("ownerReferences") or []
        if owners and not self._any_alive({owner["uid"] for owner in owners}):
            self._delete_object(kind.label, _object_place(obj), "Background")

    def on_deletion_requested(self, kind: ResourceKind, place: Place) -> None:
        """Start cascading deletion for an object that finalizers still block."""
        obj = self._cluster.storage.of(kind).get(place)
        if obj is None:
            return
        held = obj["metadata"].get("finalizers") or []
        if kind.plural == "namespaces":
            self._empty_namespace(kind, place)
        elif "orphan" in held:
            self._orphan_dependents(obj)
            self._remove_finalizer(kind, place, "orphan")
        elif "foregroundDeletion" in held:
            for label, dependent, dependent_obj in self._find_dependents(obj["metadata"]["uid"]):
                if "deletionTimestamp" not in dependent_obj["metadata"]:
                    self._delete_object(label, dependent, "Foreground")
            self._finish_foreground(kind, place)

    def on_removed(self, obj: Object) -> None:
        """Remove the dependents of a removed object, and finish owners that waited for it."""
        uid = obj["metadata"]["uid"]
        for label, directory, dependent in self._find_dependents(uid):
            owners = {owner["uid"] for owner in dependent["metadata"]["ownerReferences"]}
            if not self._any_alive(owners - {uid}):
                self._delete_object(label, directory, "Background")
        for owner in obj["metadata"].get("ownerReferences") or []:
            self._check_owner(owner["uid"])
        namespace = obj["metadata"].get("namespace", "")
        if namespace:
            self._finish_namespace(namespace)

    def _find_dependents(self, uid: str) -> list[tuple[str, Place, Object]]:
        return [
            (label, directory, obj)
            for label, directory, obj in self._cluster.storage.everything()
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())
        ]

    def _any_alive(self, uids: Iterable[str]) -> bool:
        expected = set(uids)
        return any(
            obj["metadata"]["uid"] in expected for _, _, obj in self._cluster.storage.everything()
        )

    def _delete_object(self, label: str, place: Place, propagation: str) -> None:
        kind = self._cluster.kind_by_label(label)
        if place in self._cluster.storage.of(kind):
            self._cluster.delete(kind, *place, {"propagationPolicy": propagation})

    def _orphan_dependents(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for label, directory, obj in self._find_dependents(uid):
            owners = [
                reference
                for reference in obj["metadata"]["ownerReferences"]
                if reference["uid"] != uid
            ]
            kind = self._cluster.kind_by_label(label)
            metadata = {**obj["metadata"], "ownerReferences": owners}
            self._cluster.storage.write(kind, directory, {**obj, "metadata": metadata})

    def _remove_finalizer(self, kind: ResourceKind, place: Place, finalizer: str) -> None:
        obj = self._cluster.storage.of(kind)[place]
        remaining = [name for name in obj["metadata"].get("finalizers") or [] if name != finalizer]
        metadata = {**obj["metadata"], "finalizers": remaining}
        self._cluster.storage.write(kind, place, {**obj, "metadata": metadata})
        if not remaining and not metadata.get("deletionGracePeriodSeconds"):
            self._cluster.remove_object(kind, place)

    def _check_owner(self, uid: str) -> None:
        for label, directory, obj in self._cluster.storage.everything():
            if obj["metadata"]["uid"] == uid:
                self._finish_foreground(self._cluster.kind_by_label(label), directory)
                return

    def _finish_foreground(self, kind: ResourceKind, place: Place) -> None:
        obj = self._cluster.storage.of(kind).get(place)
        if obj is None or "foregroundDeletion" not in (obj["metadata"].get("finalizers") or []):
            return
        uid = obj["metadata"]["uid"]
        waited_for = [
            owner
            for _, _, dependent in self._find_dependents(uid)
            for owner in dependent["metadata"]["ownerReferences"]
            if owner["uid"] == uid and owner.get("blockOwnerDeletion")
        ]
        if not waited_for:
            self._remove_finalizer(kind, place, "foregroundDeletion")

    def _empty_namespace(self, kind: ResourceKind, place: Place) -> None:
        for label, inside, _ in self._cluster.storage.everything():
            if inside[0] == place[1]:
                self._delete_object(label, inside, "Background")
        self._finish_namespace(place[1])

    def _finish_namespace(self, name: str) -> None:
        kind = self._cluster.kind("", "v1", "namespaces")
        space = self._cluster.storage.of(kind).get(("", name))
        if space is None or "deletionTimestamp" not in space["metadata"]:
            return
        if any(directory[0] == name for _, directory, _ in self._cluster.storage.everything()):
            return
        self._cluster.storage.write(kind, ("", name), {**space, "spec": {"finalizers": []}})
        if not space["metadata"].get("finalizers"):
            self._cluster.remove_object(kind, ("", name))


def _object_place(obj: Object) -> Place:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
