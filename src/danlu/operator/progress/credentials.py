"""The credentials of the report server, kept in a Secret: a signing key and a certificate."""

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
from danlu.kube.errors import AlreadyExists, NotFound
from danlu.kube.resources import SECRETS
from danlu.kube.types import Key, Manifest
from danlu.operator.rbac import REPORTS_SECRET
from danlu.util.certificate import create_certificate, extract_certificate

_log = logging.getLogger(__name__)
_KEY, _PEM, _HOST = "key", "tls.pem", "host"
#: The certificate is not renewed: to replace it, delete the Secret and restart the operator.
_VALID_DAYS = 3650
# At least the length of the hash (RFC 2104, 3).
_KEY_BYTES = 32
_MAX_TRIES = 3


@dataclass(frozen=True)
class ServerCredentials:
    """The signing key, and the PEM of the private key with its certificate; never printed."""

    key: bytes
    certificate: bytes

    def __repr__(self) -> str:
        return "ServerCredentials(...)"

    @property
    def ca(self) -> bytes:
        """The certificate without its private key, for clients to trust."""
        return extract_certificate(self.certificate)

    def token(self, job: Key, uid: str) -> str:
        """Return the token of one job; it is invalid for a later job of the same name."""
        message = f"{job.namespace}/{job.name}/{uid}".encode()
        digest = hmac.digest(self.key, message, "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def resolve_reports_url(address: str, url: str) -> str:
    """Return the URL at which replicas reach ``address``: ``url`` if given.

    Raises :class:`UsageError` if it is not given and the address has no host.
    """
    host, _, port = address.rpartition(":")
    if url:
        return url.rstrip("/")
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        raise UsageError(
            "cannot tell at which URL replicas reach the report server",
            hint=f"pass --reports-url https://HOST:{port}",
        )
    return f"https://{host}:{port}"


async def load_or_create_credentials(
    client: Client, namespace: str, *, url: str
) -> ServerCredentials:
    """Load the credentials of the operator in ``namespace``, or create them for a URL's host.

    Operators that start at the same time end up with the same credentials.
    """
    host = urlsplit(url).hostname or ""
    for _ in range(_MAX_TRIES):
        try:
            secret = await client.get(SECRETS, REPORTS_SECRET, namespace=namespace)
        except NotFound:
            try:
                await client.create(SECRETS, await _build_secret(namespace, host, key=_new_key()))
            except AlreadyExists:
                _log.debug("another operator created %s", REPORTS_SECRET)
            continue
        key = _secret_value(secret, _KEY)
        if _secret_value(secret, _HOST) == host.encode() and len(key) == _KEY_BYTES:
            return ServerCredentials(key, _secret_value(secret, _PEM))
        # The certificate is for one host. Keep the key, so that the tokens of jobs remain valid.
        _log.info("creating a certificate for reports at %s", host)
        new_key = key if len(key) == _KEY_BYTES else _new_key()
        manifest = await _build_secret(namespace, host, key=new_key)
        manifest["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"]
        await client.update(SECRETS, manifest)
    raise MachineError(f"Secret {REPORTS_SECRET} in {namespace} keeps changing")


async def _build_secret(namespace: str, host: str, *, key: bytes) -> Manifest:
    certificate = await create_certificate([_subject_alt_name(host)], days=_VALID_DAYS)
    if certificate is None:
        raise MachineError(
            "cannot create a certificate for the report server: openssl not found",
            hint="install openssl in the operator's image",
        )
    data = {_KEY: key, _PEM: certificate, _HOST: host.encode()}
    return SECRETS.to_manifest(
        {
            "metadata": {"name": REPORTS_SECRET, "namespace": namespace},
            "type": "Opaque",
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }
    )


def _new_key() -> bytes:
    return secrets.token_bytes(_KEY_BYTES)


def _subject_alt_name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _secret_value(secret: Manifest, name: str) -> bytes:
    return base64.b64decode((secret.get("data") or {}).get(name, ""))
