"""What Kubernetes' objects have in common, as partial structs: decoded straight from bytes.

An :class:`Object` has the metadata and nothing else; whoever needs more of a kind declares a
subclass with those fields, and pays for those only. Fields that are not declared are skipped by
the decoder. A field of type :class:`msgspec.Raw` keeps its bytes as received, to be decoded when
they are wanted. Names are Kubernetes' own in camel case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

__all__ = [
    "Clock",
    "Document",
    "Key",
    "Listing",
    "Object",
    "ObjectMeta",
    "OwnerReference",
    "Page",
    "T",
    "Timer",
    "WatchEvent",
]

Document = dict[str, Any]
"""An object as plain JSON values."""

T = TypeVar("T")


class Key(NamedTuple):
    """Which object of a kind: ``namespace`` is empty for what belongs to the whole cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class OwnerReference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who an object belongs to (meta/v1 OwnerReference)."""

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
        """The owner that manages the object; there is one at most."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Object(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Any object, by its metadata; items of a list have neither version nor kind."""

    metadata: ObjectMeta
    api_version: str = ""
    kind: str = ""

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return Key(self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list: ``version`` is that of the whole, ``token`` asks for the next part."""

    items: tuple[T, ...]
    version: str
    token: str = ""
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, as it was at one ``version``; a watch from there misses nothing."""

    items: tuple[T, ...]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change, or a bookmark (no ``object``): all before ``version`` has been told."""

    kind: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    version: str
    object: T | None = None


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> object:
        """Make sure that it does not happen; nothing where it has."""


class Clock(Protocol):
    """Time as this package sees it, so that tests can hold it."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def now(self) -> datetime:
        """The time of day, in UTC; it may jump."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` after so many seconds, in the event loop."""
