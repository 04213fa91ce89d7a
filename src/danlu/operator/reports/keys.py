"""The operator's key, from which tokens of jobs are made, and its certificate: kept in a Secret."""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from danlu.errors import MachineError, UsageError
from danlu.kube.client import Client
from danlu.kube.failures import AlreadyExists, NotFound
from danlu.kube.resources import SECRETS
from danlu.kube.types import Document, Key
from danlu.operator.rbac import REPORTS_SECRET
from danlu.util.certificate import public_part, self_signed

__all__ = ["Keys", "keys_of", "served_url"]

_log = logging.getLogger(__name__)
_KEY, _PEM, _HOST = "key", "tls.pem", "host"
#: As long as the Secret is likely to be: who wants another deletes it and restarts the operator.
_DAYS = 3650
_BYTES = 32


@dataclass(frozen=True)
class Keys:
    """A secret ``key``, and the PEM of a private key with its ``certificate``; neither is shown."""

    key: bytes
    certificate: bytes

    def __repr__(self) -> str:
        return "Keys(...)"

    @property
    def ca(self) -> bytes:
        """What is to be trusted."""
        return public_part(self.certificate)

    def token(self, job: Key, uid: str) -> str:
        """The token of one job, that of no other, nor of a later one of its name."""
        words = f"{job.namespace}/{job.name}/{uid}".encode()
        return base64.urlsafe_b64encode(hmac.digest(self.key, words, "sha256")).decode().rstrip("=")


def served_url(address: str, url: str) -> str:
    """How replicas reach ``address``: ``url`` where it is given.

    Raises :class:`UsageError` where it is not, and the address names no host.
    """
    host, _, port = address.rpartition(":")
    if url:
        return url.rstrip("/")
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        raise UsageError(
            "how replicas reach the address of reports is not known",
            hint=f"give --reports-url https://HOST:{port}",
        )
    return f"https://{host}:{port}"


async def keys_of(client: Client, namespace: str, *, url: str) -> Keys:
    """The keys of the operator of ``namespace``, made where there are none for the host of ``url``.

    Several operators that begin at once come to have the same.
    """
    host = urlsplit(url).hostname or ""
    for _ in range(3):
        try:
            found = await client.get(SECRETS, REPORTS_SECRET, namespace=namespace)
        except NotFound:
            await _make(client, namespace, host)
            continue
        key = _text(found, _KEY)
        if _text(found, _HOST) == host.encode() and len(key) == _BYTES:
            return Keys(key, _text(found, _PEM))
        _log.info("reports are served as %s from now on", host)
        wanted = await _secret(namespace, host, key=key if len(key) == _BYTES else _new_key())
        wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await client.update(SECRETS, wanted)
    raise MachineError(f"the Secret {REPORTS_SECRET} in {namespace} changes all the time")


async def _make(client: Client, namespace: str, host: str) -> None:
    try:
        await client.create(SECRETS, await _secret(namespace, host, key=_new_key()))
    except AlreadyExists:
        _log.debug("another operator made %s", REPORTS_SECRET)


async def _secret(namespace: str, host: str, *, key: bytes) -> Document:
    made = await self_signed([_alternative(host)], days=_DAYS)
    if made is None:
        raise MachineError(
            "reports are served over HTTPS, and no certificate can be made for that",
            hint="install openssl where the operator runs (add it to its image)",
        )
    data = {_KEY: key, _PEM: made, _HOST: host.encode()}
    return SECRETS.document(
        {
            "metadata": {"name": REPORTS_SECRET, "namespace": namespace},
            "type": "Opaque",
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }
    )


def _new_key() -> bytes:
    return secrets.token_bytes(_BYTES)


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _text(secret: Document, name: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(name, ""))
