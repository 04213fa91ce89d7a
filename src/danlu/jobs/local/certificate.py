"""A certificate for a server of this machine, made once for each address and kept."""

from __future__ import annotations

import time
from pathlib import Path

from danlu.util.files import write_atomic

__all__ = ["certificate_for", "public_part"]

_DAYS = 397
_RENEW = 300 * 86400.0

# Python 3.13 verifies strictly (RFC 5280): a root says that it is one, and what its key is for.
_REQUEST = """\
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
subjectAltName = IP:{address}
"""
_ARGUMENTS = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_OUTPUT = ("-days", str(_DAYS), "-config", "/dev/stdin", "-keyout", "-", "-out", "-")
_BEGIN = b"-----BEGIN CERTIFICATE-----"


async def certificate_for(address: str, *, directory: Path) -> Path | None:
    """A PEM file with a key and a self-signed certificate for an IP address.

    It is kept in ``directory``, readable by its owner only, and made anew when it has served for
    300 days. Making one takes the ``openssl`` program some 20 ms; without it there is None.
    """
    path = directory / f"{address.replace(':', '_')}.pem"
    if _young(path):
        return path
    from danlu.util.process import run

    request = _REQUEST.format(address=address).encode()
    try:
        made = await run(["openssl", *_ARGUMENTS, *_OUTPUT], input=request)
    except OSError:
        return None
    if made.code or _BEGIN not in made.stdout:
        return None
    # Key and certificate in one file: two supervisors that make one at once never mix them.
    write_atomic(path, made.stdout, mode=0o600, sync=False)
    return path


def public_part(certificate: Path) -> bytes:
    """The certificate without its key, for those who are to trust it."""
    whole = certificate.read_bytes()
    return whole[whole.index(_BEGIN) :]


def _young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _RENEW
    except OSError:
        return False
