"""Kinds that the fake serves, and what is special about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kubernetes.status_errors import Cause

__all__ = ["KindRules", "ListShape", "ResourceKind", "ScalePaths", "Shape", "no_fields"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ListShape:
    """How a list merges: by the fields of its items, as a set, or not at all.

    ``strategic`` are the fields for strategic merge patches where they are others.
    """

    keys: tuple[str, ...] = ()
    is_set: bool = False
    strategic: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merge_keys(self) -> tuple[str, ...]:
        """Those for strategic merge patches."""
        return self.strategic or self.keys


Shape = Mapping[tuple[str, ...], ListShape]
"""Lists of a kind by their path, with ``*`` for items; what is not named is replaced whole."""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a custom kind has what its scale subresource tells (paths with dots)."""

    replicas: str
    status: str
    selector: str = ""


def _leave_unchanged(new: Object, old: Object | None) -> None:
    return None


def _accept_any(new: Object, old: Object | None) -> Sequence[Cause]:
    return ()


def _no_grace(obj: Object, asked: int | None) -> int:
    return 0


def no_fields(obj: Object) -> Mapping[str, str]:
    """A kind whose field selectors know its name only."""
    return {}


@dataclass(frozen=True, slots=True)
class KindRules:
    """What a kind does beyond what all do.

    ``prepare`` may change the new object (defaults, what must not change); ``check`` gives what
    is wrong with it; ``grace`` the seconds that a deletion leaves it; ``fields`` what a field
    selector may name.
    """

    prepare: Callable[[Object, Object | None], None] = _leave_unchanged
    check: Callable[[Object, Object | None], Sequence[Cause]] = _accept_any
    grace: Callable[[Object, int | None], int] = _no_grace
    fields: Callable[[Object], Mapping[str, str]] = no_fields
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    counts_generations: bool = False


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One kind of objects that is served."""

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
        """As objects name it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """As errors name it; also what identifies the kind whatever its version."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        """Those that can be read and written."""
        return (*(["status"] if self.status else []), *(["scale"] if self.scale else []))
