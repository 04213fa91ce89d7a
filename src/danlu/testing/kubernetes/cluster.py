"""The fake's state and its verbs, without HTTP: what an API server does to objects."""

from __future__ import annotations

import base64
import copy
import json
import random
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from danlu.testing.kubernetes import customs, writing
from danlu.testing.kubernetes.builtin import BUILTIN
from danlu.testing.kubernetes.collecting import Collector
from danlu.testing.kubernetes.kinds import Kind
from danlu.testing.kubernetes.logserving import standing_of
from danlu.testing.kubernetes.owning import Manager, applied, updated
from danlu.testing.kubernetes.patching import patched
from danlu.testing.kubernetes.podlogs import Logs
from danlu.testing.kubernetes.refusals import (
    Refusal,
    already_exists,
    bad_request,
    expired,
    forbidden,
    invalid,
    no_such_path,
    not_found,
    required,
)
from danlu.testing.kubernetes.selecting import selector
from danlu.testing.kubernetes.storage import Storage

__all__ = ["Cluster", "Found", "Wish"]

Object = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_WRONG_NAME = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@dataclass(frozen=True, slots=True)
class Wish:
    """How a write is meant: by whom, for show only, and by force."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A part of a list."""

    items: list[Object]
    version: str
    token: str = ""
    remaining: int = 0


class Cluster:
    """All that the server knows; every method is one transaction.

    ``collecting`` says whether what has lost its owner is removed, and emptied namespaces are, as
    a controller manager does.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        collecting: bool = True,
        remembered: int = 20_000,
    ) -> None:
        self.storage = Storage(remembered=remembered)
        self.kinds: dict[tuple[str, str, str], Kind] = {}
        self.logs = Logs()
        self._now = now
        self._tokens: dict[str, tuple[list[Object], int]] = {}
        self.register(*BUILTIN)
        self.collector = Collector(self) if collecting else None
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(self.kind("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    # Kinds

    def register(self, *kinds: Kind) -> None:
        """Serve these too."""
        for kind in kinds:
            self.kinds[kind.group, kind.version, kind.plural] = kind

    def kind(self, group: str, version: str, plural: str) -> Kind:
        """The kind at a path; raises a refusal where there is none."""
        try:
            return self.kinds[group, version, plural]
        except KeyError:
            raise no_such_path(any(one[:2] == (group, version) for one in self.kinds)) from None

    def labelled(self, label: str) -> Kind:
        """A kind by its label (``pods``, ``leases.coordination.k8s.io``)."""
        return next(kind for kind in self.kinds.values() if kind.label == label)

    def time(self, later: float = 0.0) -> str:
        """Now, or so many seconds later, as objects write it."""
        moment = self._now() + timedelta(seconds=later)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def moment(self) -> datetime:
        """Now."""
        return self._now()

    # Logs

    def write_log(self, namespace: str, name: str, data: bytes, *, container: str = "") -> None:
        """Have a container of a pod write ``data``, in its latest run; the first one's by default.

        Raises a refusal where there is no such pod.
        """
        pod = self.get(self.kind("", "v1", "pods"), namespace, name)
        container = container or pod["spec"]["containers"][0]["name"]
        stands = standing_of(pod, container)
        self.logs.write(stands.uid, container, data, run=stands.run, now=self._now())

    # Reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object."""
        found = self.storage.of(kind).get((namespace, name))
        if found is None:
            raise not_found(kind, name)
        return self.shown(kind, found)

    def shown(self, kind: Kind, obj: Object) -> Object:
        """An object as this version of its kind."""
        if obj.get("apiVersion") == kind.api_version:
            return obj
        return {**obj, "apiVersion": kind.api_version}

    def select(
        self,
        kind: Kind,
        namespace: str,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
    ) -> Found:
        """A part of a list; a ``token`` goes on in the list as it was when it began."""
        fits = selector(kind, labels=labels, fields=fields)
        if token:
            return self._rest(token, limit)
        items = [
            self.shown(kind, obj)
            for place, obj in sorted(self.storage.of(kind).items())
            if (not namespace or place[0] == namespace) and fits(obj)
        ]
        return self._part(items, 0, limit, self.storage.version, selected=bool(labels or fields))

    def expire_tokens(self) -> None:
        """Forget the lists that somebody has read a part of."""
        self._tokens.clear()

    def _rest(self, token: str, limit: int) -> Found:
        try:
            given = json.loads(base64.urlsafe_b64decode(token + "=="))
            name, start = given["list"], given["start"]
        except (ValueError, KeyError, TypeError):
            raise bad_request("continue key is not valid") from None
        if name not in self._tokens:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        items, version = self._tokens[name]
        return self._part(items, start, limit, version, name=name)

    def _part(
        self,
        items: list[Object],
        start: int,
        limit: int,
        version: int,
        *,
        name: str = "",
        selected: bool = False,
    ) -> Found:
        end = start + limit if limit else len(items)
        if end >= len(items):
            self._tokens.pop(name, None)
            return Found(items[start:], str(version))
        name = name or uuid.uuid4().hex
        self._tokens[name] = (items, version)
        token = json.dumps({"list": name, "start": end}).encode()
        shown = base64.urlsafe_b64encode(token).decode().rstrip("=")
        # The real server does not count what a selector would leave.
        return Found(items[start:end], str(version), shown, 0 if selected else len(items) - end)

    # Writing

    def create(
        self, kind: Kind, namespace: str, document: Mapping[str, Any], wish: Wish = Wish()
    ) -> Object:
        """A new object."""
        obj = self._new(kind, namespace, document)
        name = obj["metadata"]["name"]
        self._check_namespace(kind, namespace, name)
        if (namespace, name) in self.storage.of(kind):
            raise already_exists(kind, name)
        writing.finish_new(self, kind, obj)
        self._check(kind, obj, None)
        who = Manager((wish.manager, "Update", kind.api_version, ""))
        obj = updated(kind, {"metadata": {}}, obj, who, self.time())
        return self._keep_new(kind, (namespace, name), obj, wish)

    def _keep_new(self, kind: Kind, place: tuple[str, str], obj: Object, wish: Wish) -> Object:
        if wish.dry_run:
            return obj
        kept = self.storage.write(kind, place, obj)
        if kind.plural == "customresourcedefinitions":
            kept = customs.established(self, kept)
        if self.collector:
            self.collector.created(kind, kept)
        return kept

    def _new(self, kind: Kind, namespace: str, document: Mapping[str, Any]) -> Object:
        obj = copy.deepcopy(dict(document))
        metadata = obj.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        writing.check_type(kind, obj)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(random.choices(_LETTERS, k=5))
            metadata["name"] = metadata["generateName"][:58] + suffix
        name = metadata.get("name", "")
        if not name:
            raise invalid(kind, "", [required("metadata.name", "name or generateName is required")])
        if not _NAME.fullmatch(name) and "rbac" not in kind.group:
            message = f'Invalid value: "{name}": {_WRONG_NAME}'
            cause = {"reason": "FieldValueInvalid", "message": message, "field": "metadata.name"}
            raise invalid(kind, name, [cause])
        if kind.namespaced:
            metadata["namespace"] = namespace
        return obj

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        space = self.get(self.kind("", "v1", "namespaces"), "", namespace)
        if "deletionTimestamp" in space["metadata"]:
            raise forbidden(
                kind,
                name,
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated",
                [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    def _check(self, kind: Kind, obj: Object, old: Object | None) -> None:
        causes = [
            *writing.two_controllers(obj),
            *kind.rules.check(obj, old),
            *customs.mistakes(kind, obj),
        ]
        if causes:
            raise invalid(kind, obj["metadata"]["name"], causes)

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        document: Mapping[str, Any],
        wish: Wish = Wish(),
    ) -> Object:
        """An object replaced as a whole, or its status."""
        place = (namespace, name)
        old = self.storage.of(kind).get(place)
        if old is None:
            if not kind.rules.create_on_update or wish.subresource:
                raise not_found(kind, name)
            bare = {n: v for n, v in document["metadata"].items() if n != "resourceVersion"}
            return self.create(kind, namespace, {**document, "metadata": bare}, wish)
        new = copy.deepcopy(dict(document))
        writing.check_type(kind, new)
        writing.check_meant(kind, old, new)
        return self._change(kind, place, old, new, wish)

    def _change(
        self, kind: Kind, place: tuple[str, str], old: Object, new: Object, wish: Wish
    ) -> Object:
        new = writing.carried_over(kind, old, new, wish.subresource)
        new["metadata"]["managedFields"] = old["metadata"].get("managedFields", [])
        who = Manager((wish.manager, "Update", kind.api_version, wish.subresource))
        return self._keep(kind, place, old, updated(kind, old, new, who, self.time()), wish)

    def _keep(
        self, kind: Kind, place: tuple[str, str], old: Object, new: Object, wish: Wish
    ) -> Object:
        self._check(kind, new, old)
        if writing.same(old, new):
            return old
        writing.count_generation(kind, old, new)
        if wish.dry_run:
            return new
        if "deletionTimestamp" in new["metadata"] and writing.may_end(new):
            self.storage.write(kind, place, new)
            return self.end(kind, place)
        kept = self.storage.write(kind, place, new)
        if kind.plural == "customresourcedefinitions" and not wish.subresource:
            kept = customs.established(self, kept)
        return kept

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        media_type: str,
        patch: Any,
        wish: Wish = Wish(),
    ) -> tuple[Object, bool]:
        """An object changed; whether it was made by that comes with it."""
        place = (namespace, name)
        old = self.storage.of(kind).get(place)
        if media_type == "application/apply-patch+yaml":
            return self._apply(kind, place, old, patch, wish)
        if old is None:
            raise not_found(kind, name)
        new = copy.deepcopy(patched(kind, media_type, self.shown(kind, old), patch))
        if new.get("metadata", {}).get("resourceVersion") == "":
            del new["metadata"]["resourceVersion"]
        writing.check_meant(kind, old, new, patch=True)
        return self._change(kind, place, old, new, wish), False

    def _apply(
        self, kind: Kind, place: tuple[str, str], old: Object | None, config: Object, wish: Wish
    ) -> tuple[Object, bool]:
        if not wish.manager:
            message = "fieldManager: Required value: is required for apply patch"
            raise Refusal(422, "Invalid", f"PatchOptions.meta.k8s.io is invalid: {message}")
        if config.get("metadata", {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        writing.check_type(kind, config)
        config = writing.named(config, place, namespaced=kind.namespaced)
        who = Manager((wish.manager, "Apply", kind.api_version, wish.subresource))
        if old is None:
            if wish.subresource:
                raise not_found(kind, place[1])
            self._check_namespace(kind, *place)
            new = self._new(kind, place[0], config)
            new = applied(kind, None, new, who, force=wish.force, now=self.time())
            writing.finish_new(self, kind, new)
            self._check(kind, new, None)
            return self._keep_new(kind, place, new, wish), True
        writing.check_meant(kind, old, config, patch=True)
        new = applied(kind, old, config, who, force=wish.force, now=self.time())
        managers = new["metadata"].get("managedFields", [])
        new = writing.carried_over(kind, old, new, wish.subresource)
        new["metadata"]["managedFields"] = managers
        return self._keep(kind, place, old, new, wish), False

    # Ending

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Ask for an object's end; the object, and whether it has ended."""
        place = (namespace, name)
        old = self.storage.of(kind).get(place)
        if old is None:
            raise not_found(kind, name)
        options = options or {}
        writing.check_preconditions(kind, old, options.get("preconditions") or {})
        grace = kind.rules.grace(old, options.get("gracePeriodSeconds"))
        new = writing.marked(self, old, options, grace=grace)
        if dry_run:
            return new, writing.may_end(new)
        if writing.may_end(new):
            return self.end(kind, place), True
        if not writing.same(old, new):
            new = self.storage.write(kind, place, new)
        if self.collector:
            self.collector.marked(kind, place)
        return new, False

    def delete_all(
        self,
        kind: Kind,
        namespace: str,
        options: Mapping[str, Any],
        *,
        labels: str = "",
        fields: str = "",
    ) -> list[Object]:
        """Ask for the end of all that fit."""
        found = self.select(kind, namespace, labels=labels, fields=fields).items
        for obj in found:
            metadata = obj["metadata"]
            self.delete(kind, metadata.get("namespace", ""), metadata["name"], options)
        return found

    def end(self, kind: Kind, place: tuple[str, str]) -> Object:
        """Take an object out, and have what it owned follow."""
        last = self.storage.remove(kind, place)
        if kind.plural == "customresourcedefinitions":
            customs.withdrawn(self, last)
        if self.collector:
            self.collector.ended(last)
        return last

    def ended_kinds(self, kinds: Iterable[Kind]) -> None:
        """Serve these no longer."""
        for kind in kinds:
            self.kinds.pop((kind.group, kind.version, kind.plural), None)
            self.storage.drop(kind)
