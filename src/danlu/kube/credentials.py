"""Who asks: tokens and certificates as they are stated, or as their files hold them now."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from danlu.errors import UsageError
from danlu.kube.access import Certificate, Identity
from danlu.kube.clock import REAL
from danlu.kube.types import Clock

__all__ = ["Stated"]

#: Seconds for which what a file held is believed; a kubelet rotates tokens long before their end
#: (client-go, transport/token_source.go).
_FRESH = 60.0


@dataclass(kw_only=True)
class Stated:
    """An identity of a token or password and a certificate, each a value or a file.

    Files are read anew a minute after they were read last, and after a refusal: projected service
    account tokens and certificates are rotated by replacing them. A ``token_file`` has precedence
    over ``token``. ``chain`` and ``key`` are PEM, or where it is. ``headers`` come with each
    request (impersonation).
    """

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    chain: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    clock: Clock = REAL
    _known: Identity | None = field(default=None, init=False, repr=False)
    _read: float = field(default=0.0, init=False, repr=False)

    async def identity(self) -> Identity:
        """The identity, of files read at most a minute ago.

        Raises :class:`UsageError` for a file that cannot be read, unless it could be before: one
        that is just being replaced may be missing for a moment.
        """
        now = self.clock.monotonic()
        if self._known is None or (self._in_files and now - self._read >= _FRESH):
            try:
                self._known = self._now()
            except OSError as error:
                if self._known is None:
                    raise UsageError(
                        f"cannot read {error.filename}: {error.strerror}",
                        hint="the kubeconfig, or the pod's service account, names this file",
                    ) from error
            self._read = now
        return self._known

    def refused(self) -> bool:
        """Read the files again; there is nothing else to try."""
        self._read = float("-inf")
        return self._in_files

    @property
    def _in_files(self) -> bool:
        return self.token_file is not None or isinstance(self.chain, Path)

    def _now(self) -> Identity:
        chain, key = _bytes(self.chain), _bytes(self.key)
        certificate = Certificate(chain, key) if chain and key else None
        return Identity((*self._authorization(), *self.headers), certificate)

    def _authorization(self) -> tuple[tuple[str, str], ...]:
        token = self.token_file.read_text().strip() if self.token_file else self.token
        if token:
            return (("Authorization", f"Bearer {token}"),)
        if self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return (("Authorization", f"Basic {pair}"),)
        return ()


def _bytes(source: bytes | Path | None) -> bytes:
    if isinstance(source, Path):
        return source.read_bytes()
    return source or b""
