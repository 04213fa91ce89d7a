"""Digests: the names that content has, each kind with a type of its own."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

__all__ = ["DiffId", "Digest", "is_digest", "parse_digest", "sha256"]

#: Digest of bytes as they are stored or sent, ``sha256:<64 hex>`` (OCI image spec, descriptor.md).
Digest = NewType("Digest", str)

#: Digest of a layer's uncompressed tar (OCI image spec, config.md, ``rootfs.diff_ids``).
DiffId = NewType("DiffId", str)

_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


def sha256(data: bytes) -> Digest:
    """The digest of ``data``."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def is_digest(text: str) -> bool:
    """Whether ``text`` is a sha256 digest, the only algorithm danlu writes or accepts."""
    return _PATTERN.fullmatch(text) is not None


def parse_digest(text: str) -> Digest:
    """``text`` as a digest; raises :class:`ValueError` where it is not one."""
    if not is_digest(text):
        raise ValueError(f"not a sha256 digest: {text!r}")
    return Digest(text)
