"""The HTTP proxies of the environment, and which of them does not answer."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from danlu.util.urls import mask_credentials

_VARIABLES = ("https_proxy", "http_proxy", "all_proxy")
_DEFAULT_PORTS = {"https": 443, "http": 80}
_SOCKS_PORT = 1080
_CONNECT_SECONDS = 2.0


def explain_dead_proxy(environ: Mapping[str, str]) -> str:
    """Return what to do about a proxy that does not accept connections; empty if all do.

    Connects to each of them.
    """
    for lower in _VARIABLES:
        name = lower if environ.get(lower) else lower.upper()
        address = environ.get(name, "")
        reason = _try_to_connect(address) if address else ""
        if reason:
            return (
                f"the proxy {mask_credentials(address)} does not accept connections ({reason}):"
                f" correct or unset {name}; NO_PROXY lists hosts to reach without it"
            )
    return ""


def _try_to_connect(address: str) -> str:
    """Return why a proxy cannot be reached; empty if it can."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, _SOCKS_PORT)
        with socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
