"""How an API server is reached, and as whom."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.errors import UsageError
from danlu.util.files import private_directory, remove_tree

__all__ = ["Access", "Anonymous", "Certificate", "Credentials", "Identity", "load_pem", "tls_of"]


class Certificate(msgspec.Struct, frozen=True):
    """A client's certificate with its chain, and its key, both PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Certificate(...)"


class Identity(msgspec.Struct, frozen=True):
    """What a request shows of who asks: headers, and a certificate where there is one."""

    headers: tuple[tuple[str, str], ...] = ()
    certificate: Certificate | None = None

    def __repr__(self) -> str:
        return "Identity(...)"


class Credentials(Protocol):
    """Where an identity comes from."""

    async def identity(self) -> Identity:
        """The identity to use now; asked for before every request, so kept by who makes it.

        Raises :class:`danlu.errors.DanluError` where there is none to be had.
        """

    def refused(self) -> bool:
        """Forget what was given last, for the server refused it; whether to ask once more."""


class Anonymous:
    """Nobody."""

    async def identity(self) -> Identity:
        """The identity of nobody."""
        return Identity()

    def refused(self) -> bool:
        """Nobody has no other name."""
        return False


@dataclass(frozen=True, kw_only=True)
class Access:
    """A server, and how to speak to it.

    ``server`` is a URL, with a path where servers share an address. ``ca`` are PEM certificates to
    trust instead of this machine's; ``insecure`` trusts any. ``server_name`` is the name that the
    server's certificate must have, if not that of the URL. ``proxy`` is a URL; without one
    HTTPS_PROXY and NO_PROXY count. ``namespace`` is that of the context, where none is named.
    """

    server: str
    credentials: Credentials = field(default_factory=Anonymous)
    namespace: str = "default"
    ca: bytes = b""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""


def tls_of(access: Access, certificate: Certificate | None) -> ssl.SSLContext:
    """How the server is verified, and what it is shown.

    Raises :class:`UsageError` for certificates or keys that are none.
    """
    try:
        context = ssl.create_default_context(cadata=access.ca.decode() if access.ca else None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _show(context, certificate)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"the certificates for {access.server} cannot be used: {error}",
            hint="the kubeconfig names them; are its -data fields base64 of PEM?",
        ) from error
    return context


def _show(context: ssl.SSLContext, certificate: Certificate) -> None:
    load_pem(context, certificate.chain.rstrip() + b"\n" + certificate.key)


def load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """Show this chain and key to the other side; raises :class:`ssl.SSLError` for what is none."""
    # The ssl module reads certificates from files only.
    directory = private_directory(_temporary(), "danlu-kube")
    try:
        path = directory / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        # Without a callback a key with a password would be asked for on the terminal.
        context.load_cert_chain(path, password=lambda: b"")
    finally:
        remove_tree(directory)


def _temporary() -> Path:
    """Where memory is a file system, so that a key does not go to a disk; else a usual place."""
    for place in (os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", "/tmp"):
        if place and os.access(place, os.W_OK):
            return Path(place)
    return Path.cwd()
