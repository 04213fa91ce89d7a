"""Requests to an environment's supervisor, which may come with the streams of a program.

An ``exec`` request comes with the three streams of the program. The client may then send
``signal`` and ``resize`` messages on the same connection; the program is killed when the client
disconnects. The response is the program's exit.
"""

from __future__ import annotations

import msgspec

from danlu.engine.control_client import send_request, terminal_variables
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError, OutsideError, UsageError
from danlu.util.decoding import decode_json
from danlu.util.fd_limit import fd_shortage_error, is_fd_shortage
from danlu.util.json_codec import encode


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """Stop the environment: SIGTERM, and SIGKILL ``grace`` seconds later."""

    grace: float


class RestartServiceRequest(msgspec.Struct, frozen=True, tag="restart-service"):
    """Restart a service."""

    service: str


class StartExecRequest(msgspec.Struct, frozen=True, tag="exec"):
    """Run a program with the three descriptors sent along as its streams."""

    exec: ExecRequest


class ConnectPortRequest(msgspec.Struct, frozen=True, tag="connect-port"):
    """Connect the socket sent along to a port of an environment that has another network."""

    port: int


SupervisorRequest = StopRequest | RestartServiceRequest | StartExecRequest | ConnectPortRequest


class ExecMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client sends while its program runs."""

    signal: int = 0
    resize: bool = False


def terminal_request(args: tuple[str, ...], *, user: str = "", directory: str = "") -> ExecRequest:
    """Return a request for a program in our terminal; without arguments the login shell."""
    variables = terminal_variables()
    return ExecRequest(args, environment=variables, user=user, directory=directory, terminal=True)


def encode_exec(request: ExecRequest) -> bytes:
    """Return what is sent to start a program; raise :class:`UsageError` if it is not UTF-8."""
    return encode(StartExecRequest(request))


def request_from_supervisor(
    environment: EnvironmentDirectory, request: SupervisorRequest
) -> SupervisorResponse:
    """Send a request other than ``exec``; raise :class:`UsageError` if no supervisor runs."""
    try:
        data = send_request(environment.control_socket, msgspec.json.encode(request))
    except OSError as error:
        raise translate_connect_error(error, environment.name) from error
    response = decode_json(data, SupervisorResponse)
    response.raise_error()
    return response


def translate_connect_error(error: OSError, name: str) -> DanluError:
    """Return the error of a request that did not reach the supervisor of environment ``name``."""
    return fd_shortage_error() if is_fd_shortage(error) else not_running_error(name)


def stopped_error() -> OutsideError:
    """Return the error for a program whose environment was stopped."""
    return OutsideError("the environment was stopped")


def not_running_error(name: str) -> UsageError:
    """Return the error for a request to an environment that does not run."""
    return UsageError(
        f"environment {name} is not running", hint=f"start it with `danlu start {name}`"
    )
