"""Who may use the page: the user who started it, from a page of the same origin.

Loopback addresses are open to every user and every web page of the machine. So a request must have
the cookie that the token is exchanged for, a name of this machine as ``Host`` (else a rebound DNS
name could read the page), and its own origin if it changes something. Cookies are the same for all
ports of a host, and another user may listen on one of them: the peer's user is checked as well.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::")
_UNSAFE_FETCH_SITES = ("cross-site", "same-site")
_ROOT = 0

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Decides about requests; ``host`` is that of ``--host``, if it is not a loopback address."""

    token: str
    host: str = ""

    @property
    def session(self) -> str:
        """The value of the cookie. It does not reveal the token, and survives a restart with it."""
        return hmac.new(self.token.encode(), b"danlu ui session", "sha256").hexdigest()

    def accepts_token(self, token: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def accepts_session(self, cookie: str) -> bool:
        """Return whether this is the value of the cookie."""
        return hmac.compare_digest(cookie.encode(), self.session.encode())

    def accepts_host(self, header: str) -> bool:
        """Return whether a ``Host`` names this machine; its port may be that of an ssh tunnel.

        On any address it may be any name: the certificate says which ones are right.
        """
        if self.host in ANY_ADDRESS:
            return bool(header)
        name = re.sub(r":\d+$", "", header).strip("[]").lower()
        return name in LOOPBACK_HOSTS or (bool(self.host) and name == self.host.lower())

    def accepts_origin(self, headers: Mapping[str, str], *, changes: bool) -> bool:
        """Return whether a request comes from one of our pages, or from the address bar.

        One that changes something must say its origin, which browsers always do.
        """
        origin = headers.get("Origin")
        if changes or origin is not None:
            return origin is not None and urlsplit(origin).netloc == headers.get("Host", "")
        if headers.get("Sec-Fetch-Site", "none") not in _UNSAFE_FETCH_SITES:
            return True
        # A link on another page.
        return headers.get("Sec-Fetch-Mode") == "navigate"


def find_peer_user(peer: socket.socket) -> int | None:
    """Return the user id of the process at the other end of a loopback connection, if known."""
    if sys.platform != "linux" or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        remote, local = peer.getpeername()[:2], peer.getsockname()[:2]
        table = "tcp6" if peer.family == socket.AF_INET6 else "tcp"
        # The peer's own entry: its local address is our remote one.
        wanted = [_format_address(peer.family, *address) for address in (remote, local)]
        with open(f"/proc/self/net/{table}", encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if fields[1:3] == wanted:
                    return int(fields[7])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _format_address(family: int, host: str, port: int) -> str:
    """Return an address as in /proc/net/tcp: words of four bytes in the machine's order."""
    packed = socket.inet_pton(family, host)
    words = [packed[index : index + 4] for index in range(0, len(packed), 4)]
    swapped = (word[::-1] if sys.byteorder == "little" else word for word in words)
    return f"{b''.join(swapped).hex().upper()}:{port:04X}"


def is_foreign_user(user: int | None) -> bool:
    """Return whether a peer belongs to another user than this process, and not to root."""
    return user is not None and user not in (os.geteuid(), _ROOT)
