"""Self-signed certificates, made by the ``openssl`` program."""

from __future__ import annotations

from collections.abc import Iterable

from danlu.util.process import run

__all__ = ["public_part", "self_signed"]

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
subjectAltName = {names}
"""
_ARGUMENTS = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_OUTPUT = ("-config", "/dev/stdin", "-keyout", "-", "-out", "-")
_BEGIN = b"-----BEGIN CERTIFICATE-----"


async def self_signed(names: Iterable[str], *, days: int) -> bytes | None:
    """PEM of a key and its certificate for ``names`` (``IP:127.0.0.1``, ``DNS:host``).

    It takes some 20 ms; None where there is no ``openssl`` that makes one.
    """
    request = _REQUEST.format(names=",".join(names)).encode()
    try:
        made = await run(["openssl", *_ARGUMENTS, "-days", str(days), *_OUTPUT], input=request)
    except OSError:
        return None
    return made.stdout if not made.code and _BEGIN in made.stdout else None


def public_part(pem: bytes) -> bytes:
    """The certificate without its key, for those who are to trust it."""
    return pem[pem.index(_BEGIN) :]
