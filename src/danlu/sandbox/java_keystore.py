"""Make a keystore of Java reproducible: the dates on which its certificates were added.

``ca-certificates-java`` converts the system's certificates to ``/etc/ssl/certs/java/cacerts``, in
the format JKS (``sun.security.provider.JavaKeyStore``): a header, entries, and a SHA-1 of both and
of the password.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_MAGIC = 0xFEEDFEED
_VERSION = 2
_TRUSTED_CERTIFICATE = 2

#: The password of every ``cacerts``, which is public: it only detects damage.
_PASSWORD = "changeit"


class _CertificateEntry(NamedTuple):
    alias: bytes
    kind: bytes
    certificate: bytes


def set_keystore_dates(keystore: bytes, epoch: int) -> bytes | None:
    """Return ``keystore`` with all dates at ``epoch`` (seconds, UTC), its entries by alias.

    Returns None if it is not a JKS keystore of certificates alone with the usual password: the
    entries of others are encrypted.
    """
    try:
        entries = _read_entries(keystore)
    except (struct.error, ValueError):
        return None
    data = struct.pack(">III", _MAGIC, _VERSION, len(entries))
    for entry in sorted(entries):
        data += struct.pack(">IH", _TRUSTED_CERTIFICATE, len(entry.alias)) + entry.alias
        data += struct.pack(">QH", epoch * 1000, len(entry.kind)) + entry.kind
        data += struct.pack(">I", len(entry.certificate)) + entry.certificate
    return data + _digest_content(data)


def _read_entries(keystore: bytes) -> list[_CertificateEntry]:
    """Return the entries; raises :class:`ValueError` or :class:`struct.error` for other formats."""
    magic, version, count = struct.unpack_from(">III", keystore)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("not a JKS keystore")
    position = 12

    def take(length_format: str) -> bytes:
        nonlocal position
        (length,) = struct.unpack_from(length_format, keystore, position)
        position += struct.calcsize(length_format) + length
        if position > len(keystore):
            raise ValueError("the keystore is truncated")
        return keystore[position - length : position]

    entries = []
    for _ in range(count):
        (tag,) = struct.unpack_from(">I", keystore, position)
        if tag != _TRUSTED_CERTIFICATE:
            raise ValueError("the keystore has a key")
        position += 4
        alias = take(">H")
        position += 8
        entries.append(_CertificateEntry(alias, take(">H"), take(">I")))
    if keystore[position:] != _digest_content(keystore[:position]):
        raise ValueError("the keystore has another password")
    return entries


def _digest_content(data: bytes) -> bytes:
    password = _PASSWORD.encode("utf-16-be")
    return hashlib.sha1(password + b"Mighty Aphrodite" + data, usedforsecurity=False).digest()
