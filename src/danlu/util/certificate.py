"""Create self-signed certificates with the ``openssl`` program."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from danlu.util.files import write_atomic
from danlu.util.process import run

_VALID_DAYS = 397
_RENEW_AFTER_SECONDS = 300 * 86400.0

# Python 3.13 verifies strictly (RFC 5280): a root must have basicConstraints and keyUsage.
_REQUEST_CONFIG = """\
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = danlu
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyCertSign
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
subjectAltName = {names}
"""
_ARGUMENTS = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_OUTPUT = ("-config", "/dev/stdin", "-keyout", "-", "-out", "-")
_CERTIFICATE_HEADER = b"-----BEGIN CERTIFICATE-----"


async def create_certificate(names: Iterable[str], *, days: int) -> bytes | None:
    """Return a private key and its certificate for ``names`` as PEM, or None if openssl is missing.

    ``names`` are subject alternative names such as ``IP:127.0.0.1`` or ``DNS:host``. Takes about 20
    ms.
    """
    request = _REQUEST_CONFIG.format(names=",".join(names)).encode()
    try:
        completed = await run(["openssl", *_ARGUMENTS, "-days", str(days), *_OUTPUT], input=request)
    except OSError:
        return None
    return (
        completed.stdout if not completed.code and _CERTIFICATE_HEADER in completed.stdout else None
    )


def extract_certificate(pem: bytes) -> bytes:
    """Return the certificate of ``pem`` without the key, for clients that should trust it."""
    return pem[pem.index(_CERTIFICATE_HEADER) :]


async def load_or_create_certificate(address: str, *, directory: Path) -> Path | None:
    """Return a PEM file with a key and a self-signed certificate for an IP address.

    It is kept in ``directory``, readable by its owner only, and renewed after 300 days. Returns
    None if ``openssl`` is missing or fails.
    """
    path = directory / f"{address.replace(':', '_')}.pem"
    if _is_fresh(path):
        return path
    certificate = await create_certificate([f"IP:{address}"], days=_VALID_DAYS)
    if certificate is None:
        return None
    # Key and certificate in one file, so that two processes that create it don't mix theirs.
    write_atomic(path, certificate, mode=0o600, sync=False)
    return path


def _is_fresh(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _RENEW_AFTER_SECONDS
    except OSError:
        return False
