"""Generate key pairs for ssh; slow to import."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def generate_ed25519_keys() -> tuple[bytes, bytes]:
    """Return an ed25519 private key and its public key in OpenSSH's formats."""
    return _encode_keys(Ed25519PrivateKey.generate(), PrivateFormat.OpenSSH)


def generate_p521_keys() -> tuple[bytes, bytes]:
    """Return an ECDSA private key of P-521 in the format of OpenSSL, and its public key."""
    return _encode_keys(ec.generate_private_key(ec.SECP521R1()), PrivateFormat.TraditionalOpenSSL)


def _encode_keys(
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, form: PrivateFormat
) -> tuple[bytes, bytes]:
    private = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
