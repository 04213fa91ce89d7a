"""Whether the ports of an environment can be used, and need a forward."""

from __future__ import annotations

import socket

from danlu.engine.environment_directory import PortForward


def needs_forward(port: PortForward) -> bool:
    """Return whether the service's own socket is not already what the user asked for."""
    return port.host_port not in (0, port.port)


def find_listener_conflict(port: PortForward) -> str:
    """Return why a port cannot be used by the environment; empty if it is free."""
    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.address, port.host_port or port.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
