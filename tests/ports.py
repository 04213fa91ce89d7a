"""Ports for servers that must know theirs before they start."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

#: Below those that the kernel gives to connections and to servers that ask for any (ip(7)), which
#: parallel tests would take before the server has started.
_PORTS = range(10_000, 32_768)


def free_port() -> int:
    """Return a port of the loopback address that nothing uses."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port found")
