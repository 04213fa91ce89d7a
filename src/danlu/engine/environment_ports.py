"""Whether the ports of an environment can be used, and need a forward."""

from __future__ import annotations

import socket

from danlu.engine.environment_directory import EnvironmentSpec, PortForward
from danlu.engine.registry import find_engine


def shares_host_network(spec: EnvironmentSpec) -> bool:
    """Return whether what listens in the environment listens on this machine."""
    return spec.network == "host" and "host" in find_engine(spec.engine).features.networks


def needs_forward(port: PortForward, spec: EnvironmentSpec) -> bool:
    """Return whether a port must be forwarded, because its service does not listen there itself."""
    return not shares_host_network(spec) or port.host_port not in (0, port.port)


def find_listener_conflict(port: PortForward) -> str:
    """Return why a port cannot be used by the environment; empty if it is free."""
    family = socket.AF_INET6 if ":" in port.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers set it. Without it the last server's connections in TIME_WAIT count
        # (socket(7)).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.address, port.host_port or port.port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
