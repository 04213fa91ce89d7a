"""The Jupyter server of an environment: JupyterLab for this machine only, with a token."""

from __future__ import annotations

import base64
import os
import socket
import time

import msgspec

from danlu.engine.container_scripts import FIND_SHELL_SCRIPT
from danlu.engine.detached_process import read_report, spawn_module
from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    PortForward,
    ServiceSpec,
)
from danlu.engine.environment_ports import find_listener_conflict
from danlu.environment.runtime_settings import JupyterSettings
from danlu.sandbox.types import PROJECT_DIRECTORY
from danlu.util.locks import lock_is_held

SERVICE_NAME = "jupyter"

_ADDRESS = "127.0.0.1"
_POLL_SECONDS, _ANSWER_SECONDS = 0.1, 5.0
#: Where kernels find the extension ``danlu.notebook`` and its socket; the same one in
#: :mod:`danlu.notebook.inside.extension`.
NOTEBOOK_VARIABLE = "DANLU_NOTEBOOK"
#: Locked while the process runs that starts the jobs of notebooks, contains the supervisor's
#: process id; and what it reports.
BRIDGE_LOCK, BRIDGE_READY = "notebook.lock", b"ready"
BRIDGE_LOG = "notebook.log"
_BRIDGE_MODULE = "danlu.notebook.environment_bridge"
_TOKEN_VARIABLE, _PORT_VARIABLE = "JUPYTER_TOKEN", "JUPYTER_PORT"
# Last, so that a danlu of the environment's own is found first; see danlu.notebook.inside.stub.
FIND_EXTENSION_SCRIPT = f"""\
if [ -n "${NOTEBOOK_VARIABLE}" ]; then
    export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}${NOTEBOOK_VARIABLE}/modules.zip"
fi
"""
# The token and the port are variables, because every user of the machine can read arguments. Only
# the project is served: a root above the home directory would show the server's own token file
# (GHSA-q874-g24w-4q9g).
# Its terminals run SHELL, and without it sh.
_ARGS = (
    "/bin/sh",
    "-c",
    f'{FIND_EXTENSION_SCRIPT}{FIND_SHELL_SCRIPT}exec "$@"',
    "jupyter",
    "jupyter",
    "lab",
    "--no-browser",
    "--allow-root",
    f"--ServerApp.ip={_ADDRESS}",
    "--ServerApp.port_retries=0",
    f"--ServerApp.root_dir={PROJECT_DIRECTORY}",
)


def add_jupyter(
    spec: EnvironmentSpec, settings: JupyterSettings, earlier: EnvironmentSpec | None
) -> EnvironmentSpec:
    """Return ``spec`` with a Jupyter server, which keeps the token and port it had ``earlier``."""
    before = find_service(earlier) if earlier is not None else None
    known = before.environment if before is not None else {}
    token = settings.token or known.get(_TOKEN_VARIABLE) or _make_token()
    port = settings.port or int(known.get(_PORT_VARIABLE, 0)) or find_free_port()
    # Other users inside cannot guess it, and put another extension there.
    notebook = known.get(NOTEBOOK_VARIABLE) or f"/tmp/danlu-notebook-{os.urandom(8).hex()}"
    environment = {
        _TOKEN_VARIABLE: token,
        _PORT_VARIABLE: str(port),
        NOTEBOOK_VARIABLE: notebook,
    }
    service = ServiceSpec(SERVICE_NAME, _ARGS, environment)
    forward = PortForward(port, port, _ADDRESS, SERVICE_NAME, fixed=bool(settings.port))
    return msgspec.structs.replace(
        spec, services=(*spec.services, service), ports=(*spec.ports, forward)
    )


def replace_taken_port(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Return ``spec`` with another port for Jupyter if another program uses that one."""
    service = find_service(spec)
    if service is None:
        return spec
    number = int(service.environment[_PORT_VARIABLE])
    # The user may have given the same name to ports of other programs. Ours was added last.
    own = next(
        port
        for port in reversed(spec.ports)
        if (port.service, port.address, port.port) == (SERVICE_NAME, _ADDRESS, number)
    )
    if own.fixed or not find_listener_conflict(own):
        return spec
    port = find_free_port()
    moved = msgspec.structs.replace(
        service, environment={**service.environment, _PORT_VARIABLE: str(port)}
    )
    forward = PortForward(port, port, _ADDRESS, SERVICE_NAME, fixed=False)
    return msgspec.structs.replace(
        spec,
        services=tuple(moved if item is service else item for item in spec.services),
        ports=tuple(forward if item is own else item for item in spec.ports),
    )


def find_service(spec: EnvironmentSpec) -> ServiceSpec | None:
    """Return the Jupyter server of an environment, if it has one."""
    return next((service for service in spec.services if service.name == SERVICE_NAME), None)


def notebook_variables(spec: EnvironmentSpec) -> dict[str, str]:
    """Return what kernels need besides :data:`FIND_EXTENSION_SCRIPT` to find the extension."""
    service = find_service(spec)
    known = service.environment if service is not None else {}
    return {name: value for name, value in known.items() if name == NOTEBOOK_VARIABLE}


def format_jupyter_url(spec: EnvironmentSpec) -> str:
    """Return the address to open in a browser, with the token; empty without a server."""
    service = find_service(spec)
    if service is None:
        return ""
    port, token = (service.environment[name] for name in (_PORT_VARIABLE, _TOKEN_VARIABLE))
    return f"http://{_ADDRESS}:{port}/lab?token={token}"


def connect_notebooks(environment: EnvironmentDirectory) -> str:
    """Start the process to which the environment's notebooks send job cells, unless one runs.

    Returns a note if they cannot.
    """
    if not notebook_variables(environment.read_spec()):
        return ""
    lock = environment.directory / BRIDGE_LOCK
    # One of an earlier supervisor may be about to exit.
    if lock_is_held(lock) and lock.read_text() == environment.lock.read_text():
        return ""
    log = environment.directory / BRIDGE_LOG
    report = read_report(spawn_module(_BRIDGE_MODULE, (str(environment.directory),), log))
    if report == BRIDGE_READY:
        return ""
    reason = report.decode(errors="replace") or f"see {log}"
    return f"cells of its notebooks cannot run as jobs: {reason}"


def wait_for_jupyter(environment: EnvironmentDirectory, timeout: float = 30.0) -> str:
    """Wait until the environment's Jupyter server answers; return a note if it does not."""
    spec = environment.read_spec()
    service = find_service(spec)
    if service is None:
        return ""
    log = f"see `danlu logs {environment.name} {SERVICE_NAME}`"
    port = int(service.environment[_PORT_VARIABLE])
    deadline = time.monotonic() + timeout
    while not _answers_http(port):
        state = environment.read_state()
        own = next((item for item in state.services if item.name == SERVICE_NAME), None)
        if state.phase != "Running" or (own is not None and own.exit_code is not None):
            return f"JupyterLab does not start; {log}"
        if time.monotonic() > deadline:
            return f"JupyterLab does not answer yet; {log}"
        time.sleep(_POLL_SECONDS)
    return ""


def _answers_http(port: int) -> bool:
    """Return whether a server answers: a forwarded port accepts connections before it listens."""
    try:
        with socket.create_connection((_ADDRESS, port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(b"GET /api HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def find_free_port() -> int:
    """Return a port of the loopback address that no program uses now."""
    with socket.create_server((_ADDRESS, 0)) as server:
        return int(server.getsockname()[1])


def _make_token() -> str:
    # As secrets.token_urlsafe, whose module takes longer to load than an environment to find.
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
