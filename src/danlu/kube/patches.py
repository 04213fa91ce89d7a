"""Changes to send: the four media types that a PATCH may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["Patch", "apply_patch", "json_patch", "merge_patch", "strategic_patch"]


class Patch(msgspec.Struct, frozen=True):
    """A change and how it is to be understood."""

    media_type: str
    body: bytes


def json_patch(operations: Sequence[Mapping[str, Any]]) -> Patch:
    """Operations in order, all or none (RFC 6902); a ``test`` that fails makes it Invalid."""
    return Patch("application/json-patch+json", msgspec.json.encode(operations))


def merge_patch(document: Mapping[str, Any]) -> Patch:
    """Objects are merged, null removes, lists are replaced (RFC 7396)."""
    return Patch("application/merge-patch+json", msgspec.json.encode(document))


def strategic_patch(document: Mapping[str, Any]) -> Patch:
    """As a merge, but lists by their merge keys; builtin kinds only."""
    return Patch("application/strategic-merge-patch+json", msgspec.json.encode(document))


def apply_patch(document: Mapping[str, Any]) -> Patch:
    """What a manager wants of an object, fields left out being given up (server-side apply)."""
    # JSON is YAML, and what the server reads under this type.
    return Patch("application/apply-patch+yaml", msgspec.json.encode(document))
