"""Patches: the four media types of a PATCH request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Patch(msgspec.Struct, frozen=True):
    """The body of a PATCH request and the media type that says how to read it."""

    media_type: str
    body: bytes


def json_patch(operations: Sequence[Mapping[str, Any]]) -> Patch:
    """Return a JSON patch (RFC 6902), applied as a whole or not at all.

    If a ``test`` operation fails, the server answers Invalid.
    """
    return Patch("application/json-patch+json", msgspec.json.encode(operations))


def merge_patch(manifest: Mapping[str, Any]) -> Patch:
    """Return a merge patch (RFC 7396): objects are merged, null deletes, lists are replaced."""
    return Patch("application/merge-patch+json", msgspec.json.encode(manifest))


def strategic_patch(manifest: Mapping[str, Any]) -> Patch:
    """Return a strategic merge patch: lists are merged by key; for built-in kinds only."""
    return Patch("application/strategic-merge-patch+json", msgspec.json.encode(manifest))


def apply_patch(manifest: Mapping[str, Any]) -> Patch:
    """Return a server-side apply patch: the fields that its field manager wants, and no others."""
    # JSON is YAML.
    return Patch("application/apply-patch+yaml", msgspec.json.encode(manifest))
