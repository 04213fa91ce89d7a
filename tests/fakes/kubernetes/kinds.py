"""The kinds that the fake serves, and the rules of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kubernetes.status_errors import Cause

__all__ = ["KindRules", "ListShape", "ResourceKind", "ScalePaths", "Shape", "no_fields"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListShape:
    """How a strategic merge patch merges a list: by the key fields of its items, or as a set."""

    keys: tuple[str, ...] = ()
    is_set: bool = False


Shape = Mapping[tuple[str, ...], ListShape]
"""Lists of a kind by their path, with ``*`` for items; what is not named is replaced whole."""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The paths (with dots) of the fields behind the scale subresource of a custom kind."""

    replicas: str
    status: str
    selector: str = ""


def _change_nothing(new: Object, old: Object | None) -> None:
    return None


def _accept_any(new: Object, old: Object | None) -> Sequence[Cause]:
    return ()


def _no_grace(obj: Object, asked: int | None) -> int:
    return 0


def no_fields(obj: Object) -> Mapping[str, str]:
    """Return no fields: field selectors of this kind support only the name."""
    return {}


@dataclass(frozen=True, slots=True)
class KindRules:
    """The rules of a kind in addition to those of all kinds.

    ``prepare`` may change the new object (defaults, immutable fields); ``check`` returns
    violations; ``grace`` returns the seconds of a graceful deletion; ``fields`` returns the values
    that field selectors can match.
    """

    prepare: Callable[[Object, Object | None], None] = _change_nothing
    check: Callable[[Object, Object | None], Sequence[Cause]] = _accept_any
    grace: Callable[[Object, int | None], int] = _no_grace
    fields: Callable[[Object], Mapping[str, str]] = no_fields
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    counts_generations: bool = False


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of objects that is served."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    scale: ScalePaths | None = None
    rules: KindRules = field(default_factory=KindRules)
    shape: Shape = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    short_names: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """The name in error messages; identifies the kind in every version."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        """The subresources that can be read and written."""
        return (*(["status"] if self.status else []), *(["scale"] if self.scale else []))
