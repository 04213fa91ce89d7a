"""The address of an API server, how to trust it, and who is asking."""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.errors import UsageError
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.util.files import private_directory, remove_tree

#: How long the contents of a credential file are cached. A kubelet rotates tokens long before they
#: expire (client-go, transport/token_source.go).
_CACHE_SECONDS = 60.0


class ClientCertificate(msgspec.Struct, frozen=True):
    """A client certificate with its chain, and its private key, both PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ClientCertificate(...)"


class ClientIdentity(msgspec.Struct, frozen=True):
    """What a request shows of its sender: headers, and a client certificate if there is one."""

    headers: tuple[tuple[str, str], ...] = ()
    certificate: ClientCertificate | None = None

    def __repr__(self) -> str:
        return "ClientIdentity(...)"


class Credentials(Protocol):
    """A source of identities."""

    async def get_identity(self) -> ClientIdentity:
        """Return the identity to use now.

        Called before every request, so implementations cache. Raises
        :class:`danlu.errors.DanluError` if no identity is available.
        """

    def invalidate(self) -> bool:
        """Drop the cached identity, which the server rejected; return whether to try once more."""


@dataclass(kw_only=True)
class StaticCredentials:
    """A token or password and a client certificate, each given as a value or as a file, or nothing.

    Files are read again after a minute and after the server rejects them, because projected service
    account tokens and certificates are rotated by replacing the file. ``token_file`` takes
    precedence over ``token``. ``chain`` and ``key`` are PEM, or paths to PEM files. ``headers`` are
    sent with every request (impersonation).
    """

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    chain: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    clock: Clock = REAL_CLOCK
    _cached: ClientIdentity | None = field(default=None, init=False, repr=False)
    _read_at: float = field(default=0.0, init=False, repr=False)

    async def get_identity(self) -> ClientIdentity:
        """Return the identity, from files that were read at most a minute ago.

        Raises :class:`UsageError` if a file cannot be read and never could be. A file that was
        readable before may be missing for a moment while it is being replaced, so the cached
        identity is used then.
        """
        now = self.clock.monotonic()
        if self._cached is None or (self._uses_files and now - self._read_at >= _CACHE_SECONDS):
            try:
                self._cached = self._load_identity()
            except OSError as error:
                if self._cached is None:
                    raise UsageError(
                        f"cannot read {error.filename}: {error.strerror}",
                        hint="this file is named by the kubeconfig, or is the pod's"
                        " service account token",
                    ) from error
            self._read_at = now
        return self._cached

    def invalidate(self) -> bool:
        """Read the files again; without files there is nothing else to try."""
        self._read_at = float("-inf")
        return self._uses_files

    @property
    def _uses_files(self) -> bool:
        return self.token_file is not None or isinstance(self.chain, Path)

    def _load_identity(self) -> ClientIdentity:
        chain, key = _read_bytes(self.chain), _read_bytes(self.key)
        certificate = ClientCertificate(chain, key) if chain and key else None
        return ClientIdentity((*self._authorization_header(), *self.headers), certificate)

    def _authorization_header(self) -> tuple[tuple[str, str], ...]:
        token = self.token_file.read_text().strip() if self.token_file else self.token
        if token:
            return (("Authorization", f"Bearer {token}"),)
        if self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return (("Authorization", f"Basic {pair}"),)
        return ()


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """How to connect to an API server (client-go's ``rest.Config``).

    Args:
        server: The URL, with a path if several servers share an address.
        namespace: The namespace of the context, used if none is named.
        ca: PEM certificates to trust instead of this machine's.
        insecure: Do not verify the server's certificate.
        server_name: The name in the server's certificate, if it differs from the URL's host.
        proxy: The URL of a proxy. If empty, ``HTTPS_PROXY`` and ``NO_PROXY`` apply.
    """

    server: str
    credentials: Credentials = field(default_factory=StaticCredentials)
    namespace: str = "default"
    ca: bytes = b""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""


def create_ssl_context(
    config: ClusterConfig, certificate: ClientCertificate | None
) -> ssl.SSLContext:
    """Return a context that verifies the server and presents ``certificate``.

    Raises :class:`UsageError` if a certificate or key is invalid.
    """
    try:
        context = ssl.create_default_context(cadata=config.ca.decode() if config.ca else None)
        if config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            load_pem(context, certificate.chain.rstrip() + b"\n" + certificate.key)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"invalid certificate or key for {config.server}: {error}",
            hint="check the kubeconfig; its -data fields must be base64-encoded PEM",
        ) from error
    return context


def load_pem(context: ssl.SSLContext, pem: bytes) -> None:
    """Present this certificate chain and key; raises :class:`ssl.SSLError` if it is invalid."""
    # The ssl module only loads certificates from files.
    directory = private_directory(_find_temp_directory(), "danlu-kube")
    try:
        path = directory / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        # Without a callback OpenSSL would ask for the password of an encrypted key on the terminal.
        context.load_cert_chain(path, password=lambda: b"")
    finally:
        remove_tree(directory)


def _find_temp_directory() -> Path:
    """Return a directory in memory if possible, so that private keys do not reach a disk."""
    for path in (os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", "/tmp"):
        if path and os.access(path, os.W_OK):
            return Path(path)
    return Path.cwd()


def _read_bytes(source: bytes | Path | None) -> bytes:
    return source.read_bytes() if isinstance(source, Path) else source or b""
