"""What follows a deletion: dependents of an owner, the content of a namespace.

As the garbage collector and the namespace controller of a real cluster do, but at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from danlu.testing.kubernetes.kinds import Kind

if TYPE_CHECKING:
    from danlu.testing.kubernetes.cluster import Cluster

__all__ = ["Collector"]

Object = dict[str, Any]
Place = tuple[str, str]


class Collector:
    """Removes what has lost its owners; knows who owns what by uid."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def created(self, kind: Kind, obj: Object) -> None:
        """An object whose owners are all gone does not stay."""
        owners = obj["metadata"].get("ownerReferences") or []
        if owners and not self._living({owner["uid"] for owner in owners}):
            self._delete(kind.label, _place(obj), "Background")

    def marked(self, kind: Kind, place: Place) -> None:
        """An object is to be deleted, and something holds it."""
        obj = self._cluster.storage.of(kind).get(place)
        if obj is None:
            return
        held = obj["metadata"].get("finalizers") or []
        if kind.plural == "namespaces":
            self._empty(kind, place)
        elif "orphan" in held:
            self._orphan(obj)
            self._let_go(kind, place, "orphan")
        elif "foregroundDeletion" in held:
            for label, dependent, one in self._dependents(obj["metadata"]["uid"]):
                if "deletionTimestamp" not in one["metadata"]:
                    self._delete(label, dependent, "Foreground")
            self._maybe_let_go(kind, place)

    def ended(self, obj: Object) -> None:
        """An object is gone: so go those that it alone owned, and those that wait for it."""
        uid = obj["metadata"]["uid"]
        for label, place, one in self._dependents(uid):
            owners = {owner["uid"] for owner in one["metadata"]["ownerReferences"]}
            if not self._living(owners - {uid}):
                self._delete(label, place, "Background")
        for owner in obj["metadata"].get("ownerReferences") or []:
            self._look_at_owner(owner["uid"])
        namespace = obj["metadata"].get("namespace", "")
        if namespace:
            self._look_at_namespace(namespace)

    def _dependents(self, uid: str) -> list[tuple[str, Place, Object]]:
        return [
            (label, place, obj)
            for label, place, obj in self._cluster.storage.everything()
            if any(one["uid"] == uid for one in obj["metadata"].get("ownerReferences") or ())
        ]

    def _living(self, uids: Iterable[str]) -> bool:
        wanted = set(uids)
        return any(
            obj["metadata"]["uid"] in wanted for _, _, obj in self._cluster.storage.everything()
        )

    def _delete(self, label: str, place: Place, propagation: str) -> None:
        kind = self._cluster.labelled(label)
        if place in self._cluster.storage.of(kind):
            self._cluster.delete(kind, *place, {"propagationPolicy": propagation})

    def _orphan(self, owner: Object) -> None:
        uid = owner["metadata"]["uid"]
        for label, place, obj in self._dependents(uid):
            owners = [one for one in obj["metadata"]["ownerReferences"] if one["uid"] != uid]
            kind = self._cluster.labelled(label)
            metadata = {**obj["metadata"], "ownerReferences": owners}
            self._cluster.storage.write(kind, place, {**obj, "metadata": metadata})

    def _let_go(self, kind: Kind, place: Place, finalizer: str) -> None:
        obj = self._cluster.storage.of(kind)[place]
        left = [one for one in obj["metadata"].get("finalizers") or [] if one != finalizer]
        metadata = {**obj["metadata"], "finalizers": left}
        self._cluster.storage.write(kind, place, {**obj, "metadata": metadata})
        if not left and not metadata.get("deletionGracePeriodSeconds"):
            self._cluster.end(kind, place)

    def _look_at_owner(self, uid: str) -> None:
        for label, place, obj in self._cluster.storage.everything():
            if obj["metadata"]["uid"] == uid:
                self._maybe_let_go(self._cluster.labelled(label), place)
                return

    def _maybe_let_go(self, kind: Kind, place: Place) -> None:
        obj = self._cluster.storage.of(kind).get(place)
        if obj is None or "foregroundDeletion" not in (obj["metadata"].get("finalizers") or []):
            return
        uid = obj["metadata"]["uid"]
        waited_for = [
            owner
            for _, _, one in self._dependents(uid)
            for owner in one["metadata"]["ownerReferences"]
            if owner["uid"] == uid and owner.get("blockOwnerDeletion")
        ]
        if not waited_for:
            self._let_go(kind, place, "foregroundDeletion")

    def _empty(self, kind: Kind, place: Place) -> None:
        for label, inside, _ in self._cluster.storage.everything():
            if inside[0] == place[1]:
                self._delete(label, inside, "Background")
        self._look_at_namespace(place[1])

    def _look_at_namespace(self, name: str) -> None:
        kind = self._cluster.kind("", "v1", "namespaces")
        space = self._cluster.storage.of(kind).get(("", name))
        if space is None or "deletionTimestamp" not in space["metadata"]:
            return
        if any(place[0] == name for _, place, _ in self._cluster.storage.everything()):
            return
        self._cluster.storage.write(kind, ("", name), {**space, "spec": {"finalizers": []}})
        if not space["metadata"].get("finalizers"):
            self._cluster.end(kind, ("", name))


def _place(obj: Object) -> Place:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
