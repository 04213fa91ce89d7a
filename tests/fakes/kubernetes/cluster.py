"""The fake's state and its verbs without HTTP: what an API server does to objects."""

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

from tests.fakes.kubernetes import admission, crds
from tests.fakes.kubernetes.builtin import BUILTIN
from tests.fakes.kubernetes.container_logs import ContainerLogs
from tests.fakes.kubernetes.garbage_collector import GarbageCollector
from tests.fakes.kubernetes.kinds import ResourceKind
from tests.fakes.kubernetes.log_server import container_run
from tests.fakes.kubernetes.patch import APPLY, apply_fields, apply_patch
from tests.fakes.kubernetes.selectors import parse_selectors
from tests.fakes.kubernetes.status_errors import (
    already_exists,
    bad_request,
    expired_error,
    forbidden_error,
    invalid,
    no_such_path,
    not_found,
    required_cause,
)
from tests.fakes.kubernetes.storage import ObjectStorage

__all__ = ["FakeCluster", "ListResult", "WriteOptions"]

Object = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_WRONG_NAME = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    dry_run: bool = False
    subresource: str = ""
    manager: str = ""


@dataclass(frozen=True, slots=True)
class ListResult:
    """A page of a list."""

    items: list[Object]
    version: str
    token: str = ""
    remaining: int = 0


class FakeCluster:
    """The state of the server; every method is one transaction.

    With ``collecting``, objects whose owners are gone and the contents of deleted namespaces are
    removed, as a controller manager does.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        collecting: bool = True,
        remembered: int = 20_000,
    ) -> None:
        self.storage = ObjectStorage(remembered=remembered)
        self.kinds: dict[tuple[str, str, str], ResourceKind] = {}
        self.logs = ContainerLogs()
        self._now = now
        self._tokens: dict[str, tuple[list[Object], int]] = {}
        # What each manager has applied last, by kind, namespace and name.
        self._applied: dict[tuple[str, str, str, str], Object] = {}
        self.register(*BUILTIN)
        self.collector = GarbageCollector(self) if collecting else None
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(self.kind("", "v1", "namespaces"), "", {"metadata": {"name": name}})

    # Kinds

    def register(self, *kinds: ResourceKind) -> None:
        """Serve these kinds as well."""
        for kind in kinds:
            self.kinds[kind.group, kind.version, kind.plural] = kind

    def kind(self, group: str, version: str, plural: str) -> ResourceKind:
        """Return the kind at a path; raise 404 if there is none."""
        try:
            return self.kinds[group, version, plural]
        except KeyError:
            raise no_such_path(any(key[:2] == (group, version) for key in self.kinds)) from None

    def kind_by_label(self, label: str) -> ResourceKind:
        """Return a kind by its label (``pods``, ``leases.coordination.k8s.io``)."""
        return next(kind for kind in self.kinds.values() if kind.label == label)

    def timestamp(self, later: float = 0.0) -> str:
        """Return the time ``seconds`` from now in the format of objects."""
        moment = self._now() + timedelta(seconds=later)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def now(self) -> datetime:
        """Return the current time."""
        return self._now()

    # Logs

    def write_log(self, namespace: str, name: str, data: bytes, *, container: str = "") -> None:
        """Have a container of a pod (the first by default) write ``data`` in its latest run.

        Raises StatusError if the pod does not exist.
        """
        pod = self.get(self.kind("", "v1", "pods"), namespace, name)
        container = container or pod["spec"]["containers"][0]["name"]
        stands = container_run(pod, container)
        self.logs.write(stands.uid, container, data, run=stands.run, now=self._now())

    # Reading

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Object:
        """Return an object."""
        result = self.storage.of(kind).get((namespace, name))
        if result is None:
            raise not_found(kind, name)
        return self.in_version(kind, result)

    def in_version(self, kind: ResourceKind, obj: Object) -> Object:
        """Return an object converted to this version of its kind."""
        if obj.get("apiVersion") == kind.api_version:
            return obj
        return {**obj, "apiVersion": kind.api_version}

    def select(
        self,
        kind: ResourceKind,
        namespace: str,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
    ) -> ListResult:
        """Return a page of a list; ``token`` continues the list as it was at its first page."""
        fits = parse_selectors(kind, labels=labels, fields=fields)
        if token:
            return self._continue_list(token, limit)
        items = [
            self.in_version(kind, obj)
            for directory, obj in sorted(self.storage.of(kind).items())
            if (not namespace or directory[0] == namespace) and fits(obj)
        ]
        return self._list_page(
            items, 0, limit, self.storage.version, selected=bool(labels or fields)
        )

    def expire_tokens(self) -> None:
        """Expire the continue tokens of all partly read lists."""
        self._tokens.clear()

    def _continue_list(self, token: str, limit: int) -> ListResult:
        try:
            value = json.loads(base64.urlsafe_b64decode(token + "=="))
            name, start = value["list"], value["start"]
        except (ValueError, KeyError, TypeError):
            raise bad_request("continue key is not valid") from None
        if name not in self._tokens:
            raise expired_error(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        items, version = self._tokens[name]
        return self._list_page(items, start, limit, version, name=name)

    def _list_page(
        self,
        items: list[Object],
        start: int,
        limit: int,
        version: int,
        *,
        name: str = "",
        selected: bool = False,
    ) -> ListResult:
        end = start + limit if limit else len(items)
        if end >= len(items):
            self._tokens.pop(name, None)
            return ListResult(items[start:], str(version))
        name = name or uuid.uuid4().hex
        self._tokens[name] = (items, version)
        token = json.dumps({"list": name, "start": end}).encode()
        output = base64.urlsafe_b64encode(token).decode().rstrip("=")
        # With a selector, the real server does not count the remaining items.
        return ListResult(
            items[start:end], str(version), output, 0 if selected else len(items) - end
        )

    # Writing

    def create(
        self,
        kind: ResourceKind,
        namespace: str,
        document: Mapping[str, Any],
        wish: WriteOptions = WriteOptions(),
    ) -> Object:
        """Create an object."""
        obj = self._parse_new_object(kind, namespace, document)
        name = obj["metadata"]["name"]
        self._check_namespace(kind, namespace, name)
        if (namespace, name) in self.storage.of(kind):
            raise already_exists(kind, name)
        admission.initialize_metadata(self, kind, obj)
        self._validate_object(kind, obj, None)
        if wish.dry_run:
            return obj
        kept = self.storage.write(kind, (namespace, name), obj)
        if kind.plural == "customresourcedefinitions":
            kept = crds.establish(self, kept)
        if self.collector:
            self.collector.on_created(kind, kept)
        return kept

    def _parse_new_object(
        self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]
    ) -> Object:
        obj = copy.deepcopy(dict(document))
        metadata = obj.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        admission.check_type(kind, obj)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(random.choices(_LETTERS, k=5))
            metadata["name"] = metadata["generateName"][:58] + suffix
        name = metadata.get("name", "")
        if not name:
            raise invalid(
                kind, "", [required_cause("metadata.name", "name or generateName is required")]
            )
        if not _NAME.fullmatch(name) and "rbac" not in kind.group:
            message = f'Invalid value: "{name}": {_WRONG_NAME}'
            cause = {"reason": "FieldValueInvalid", "message": message, "field": "metadata.name"}
            raise invalid(kind, name, [cause])
        if kind.namespaced:
            metadata["namespace"] = namespace
        return obj

    def _check_namespace(self, kind: ResourceKind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        space = self.get(self.kind("", "v1", "namespaces"), "", namespace)
        if "deletionTimestamp" in space["metadata"]:
            raise forbidden_error(
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

    def _validate_object(self, kind: ResourceKind, obj: Object, old: Object | None) -> None:
        causes = [
            *admission.check_owners(obj),
            *kind.rules.check(obj, old),
            *crds.validate(kind, obj),
        ]
        if causes:
            raise invalid(kind, obj["metadata"]["name"], causes)

    def update(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        document: Mapping[str, Any],
        wish: WriteOptions = WriteOptions(),
    ) -> Object:
        """Replace an object or its status."""
        key = (namespace, name)
        old = self.storage.of(kind).get(key)
        if old is None:
            if not kind.rules.create_on_update or wish.subresource:
                raise not_found(kind, name)
            bare = {n: v for n, v in document["metadata"].items() if n != "resourceVersion"}
            return self.create(kind, namespace, {**document, "metadata": bare}, wish)
        new = copy.deepcopy(dict(document))
        admission.check_type(kind, new)
        admission.check_identity(kind, old, new)
        return self._update_object(kind, key, old, new, wish)

    def _update_object(
        self,
        kind: ResourceKind,
        place: tuple[str, str],
        old: Object,
        new: Object,
        wish: WriteOptions,
    ) -> Object:
        new = admission.preserve_fields(kind, old, new, wish.subresource)
        self._validate_object(kind, new, old)
        if admission.has_no_change(old, new):
            return old
        admission.bump_generation(kind, old, new)
        if wish.dry_run:
            return new
        if "deletionTimestamp" in new["metadata"] and admission.is_removable(new):
            self.storage.write(kind, place, new)
            return self.remove_object(kind, place)
        kept = self.storage.write(kind, place, new)
        if kind.plural == "customresourcedefinitions" and not wish.subresource:
            kept = crds.establish(self, kept)
        return kept

    def patch(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        media_type: str,
        patch: Any,
        wish: WriteOptions = WriteOptions(),
    ) -> Object:
        """Patch an object; one that is applied is created if needed."""
        key = (namespace, name)
        old = self.storage.of(kind).get(key)
        if media_type == APPLY:
            return self._apply(kind, key, old, patch, wish)
        if old is None:
            raise not_found(kind, name)
        new = copy.deepcopy(apply_patch(kind, media_type, self.in_version(kind, old), patch))
        if new.get("metadata", {}).get("resourceVersion") == "":
            del new["metadata"]["resourceVersion"]
        admission.check_identity(kind, old, new, patch=True)
        return self._update_object(kind, key, old, new, wish)

    def _apply(
        self,
        kind: ResourceKind,
        key: tuple[str, str],
        old: Object | None,
        patch: Any,
        wish: WriteOptions,
    ) -> Object:
        """Apply what a manager wants; conflicts between managers are not found."""
        owner = (kind.label, *key, wish.manager)
        if old is None:
            result = self.create(kind, key[0], patch, wish)
        else:
            earlier = self._applied.get(owner, {})
            new = apply_fields(kind, self.in_version(kind, old), earlier, patch)
            admission.check_identity(kind, old, new, patch=True)
            result = self._update_object(kind, key, old, new, wish)
        if not wish.dry_run:
            self._applied[owner] = copy.deepcopy(patch)
        return result

    # Deleting

    def delete(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Delete an object; return it, and whether it was removed at once."""
        key = (namespace, name)
        old = self.storage.of(kind).get(key)
        if old is None:
            raise not_found(kind, name)
        options = options or {}
        admission.check_preconditions(kind, old, options.get("preconditions") or {})
        grace = kind.rules.grace(old, options.get("gracePeriodSeconds"))
        new = admission.mark_deleted(self, old, options, grace=grace)
        if dry_run:
            return new, admission.is_removable(new)
        if admission.is_removable(new):
            return self.remove_object(kind, key), True
        if not admission.has_no_change(old, new):
            new = self.storage.write(kind, key, new)
        if self.collector:
            self.collector.on_deletion_requested(kind, key)
        return new, False

    def delete_all(
        self,
        kind: ResourceKind,
        namespace: str,
        options: Mapping[str, Any],
        *,
        labels: str = "",
        fields: str = "",
    ) -> list[Object]:
        """Delete all objects that match."""
        result = self.select(kind, namespace, labels=labels, fields=fields).items
        for obj in result:
            metadata = obj["metadata"]
            self.delete(kind, metadata.get("namespace", ""), metadata["name"], options)
        return result

    def remove_object(self, kind: ResourceKind, place: tuple[str, str]) -> Object:
        """Remove an object from storage and collect its dependents."""
        last = self.storage.remove(kind, place)
        if kind.plural == "customresourcedefinitions":
            crds.withdraw(self, last)
        if self.collector:
            self.collector.on_removed(last)
        return last

    def unregister(self, kinds: Iterable[ResourceKind]) -> None:
        """Stop serving these kinds."""
        for kind in kinds:
            self.kinds.pop((kind.group, kind.version, kind.plural), None)
            self.storage.drop(kind)
