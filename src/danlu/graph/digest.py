"""Digests of ops and other values: SHA-256 of their canonical JSON."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from danlu.graph.ops import Op

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """Return ``value`` (structs, dataclasses, tuples, texts, numbers) as JSON with sorted keys."""
    return _encoder.encode(value)


def digest_of(value: Any) -> str:
    """Return ``sha256:…`` of the canonical JSON of ``value``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def op_fields(op: Op) -> dict[str, Any]:
    """Return an op with its name and version: the part of it that its digest covers."""
    return {"kind": op.op_name(), "version": op.op_version, "op": op}
