"""What all Kubernetes objects have in common, as partial structs decoded straight from bytes.

An :class:`Object` has its metadata and nothing else. Code that needs more of a kind declares a
subclass with those fields and pays only for them: the decoder skips fields that are not declared.
A field of type :class:`msgspec.Raw` keeps its bytes as received, to be decoded on demand. Field
names are Kubernetes' own, in camel case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

Manifest = dict[str, Any]
"""An object as plain JSON values."""

T = TypeVar("T")


class Key(NamedTuple):
    """The namespace and name of an object; ``namespace`` is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A reference to the owner of an object (meta/v1 OwnerReference)."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The part of an object's metadata (meta/v1 ObjectMeta) that programs act on."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object; at most one owner is the controller."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Object(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Any object, by its metadata; the items of a list have no version and kind."""

    metadata: ObjectMeta
    api_version: str = ""
    kind: str = ""

    @property
    def key(self) -> Key:
        """The object's namespace and name."""
        return Key(self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A page of a list: ``version`` is that of the whole list, ``token`` asks for the next page."""

    items: tuple[T, ...]
    version: str
    token: str = ""
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A complete list as of one ``version``; a watch from there misses nothing."""

    items: tuple[T, ...]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change, or a bookmark (without ``object``): everything up to ``version`` was sent."""

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    version: str
    object: T | None = None


def includes_fields(value: object, wanted: object) -> bool:
    """Return whether a value that a server may have completed has all that is ``wanted``."""
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return all(includes_fields(value.get(name), wanted[name]) for name in wanted)
    if isinstance(value, list | tuple) and isinstance(wanted, list | tuple):
        return len(value) == len(wanted) and all(map(includes_fields, value, wanted))
    return value == wanted
