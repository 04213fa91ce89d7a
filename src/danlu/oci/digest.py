"""Digests of content, with a type for each kind."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

#: Digest of bytes as they are stored or sent, ``sha256:<64 hex>`` (OCI image spec, descriptor.md).
Digest = NewType("Digest", str)

#: Digest of a layer's uncompressed tar (OCI image spec, config.md, ``rootfs.diff_ids``).
DiffId = NewType("DiffId", str)

_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


def sha256(data: bytes) -> Digest:
    """Return the digest of ``data``."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def is_digest(text: str) -> bool:
    """Return whether ``text`` is a sha256 digest, the only algorithm danlu reads or writes."""
    return _PATTERN.fullmatch(text) is not None


def parse_digest(text: str) -> Digest:
    """Return ``text`` as a digest. Raises :class:`ValueError` if it is not one."""
    if not is_digest(text):
        raise ValueError(f"not a sha256 digest: {text!r}")
    return Digest(text)
