"""A certificate for a server of this machine, made once for each address and kept."""

from __future__ import annotations

import time
from pathlib import Path

from danlu.util import certificate as made_by
from danlu.util.files import write_atomic

__all__ = ["certificate_for", "public_part"]

_DAYS = 397
_RENEW = 300 * 86400.0


async def certificate_for(address: str, *, directory: Path) -> Path | None:
    """A PEM file with a key and a self-signed certificate for an IP address.

    It is kept in ``directory``, readable by its owner only, and made anew when it has served for
    300 days. None where there is no ``openssl`` program to make one.
    """
    path = directory / f"{address.replace(':', '_')}.pem"
    if _young(path):
        return path
    made = await made_by.self_signed([f"IP:{address}"], days=_DAYS)
    if made is None:
        return None
    # Key and certificate in one file: two supervisors that make one at once never mix them.
    write_atomic(path, made, mode=0o600, sync=False)
    return path


def public_part(certificate: Path) -> bytes:
    """The certificate without its key, for those who are to trust it."""
    return made_by.public_part(certificate.read_bytes())


def _young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < _RENEW
    except OSError:
        return False
