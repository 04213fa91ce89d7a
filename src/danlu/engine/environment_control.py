"""Requests to an environment's supervisor, and the streams of programs started in it.

An ``exec`` request comes with the three streams of the program. The client may then send
``signal`` and ``resize`` messages on the same connection; the program is killed when the client
disconnects. The response is the program's exit.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from danlu.engine.control_client import connect_control_socket, send_request
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.util.fd_limit import fd_shortage_error, is_fd_shortage
from danlu.util.json_codec import encode

_CHUNK_SIZE = 1 << 12
_ERRORS: Mapping[int, type[DanluError]] = {
    type.exit_code: type for type in (UsageError, OutsideError, MachineError)
}


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


class SupervisorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request: an error with its exit code, or the exit code of a program."""

    error: str = ""
    hint: str = ""
    code: int = 0


def request_from_supervisor(
    environment: EnvironmentDirectory, request: SupervisorRequest
) -> SupervisorResponse:
    """Send a request other than ``exec``; raise :class:`UsageError` if no supervisor runs."""
    try:
        data = send_request(environment.control_socket, msgspec.json.encode(request))
    except OSError as error:
        raise _translate_connect_error(error, environment.name) from error
    response = msgspec.json.decode(data, type=SupervisorResponse)
    raise_response_error(response)
    return response


def raise_response_error(response: SupervisorResponse) -> None:
    """Raise the error that a response reports."""
    if response.error:
        raise _ERRORS.get(response.code, OutsideError)(response.error, hint=response.hint)


def _translate_connect_error(error: OSError, name: str) -> DanluError:
    return fd_shortage_error() if is_fd_shortage(error) else not_running_error(name)


def not_running_error(name: str) -> UsageError:
    """Return the error for a request to an environment that does not run."""
    return UsageError(
        f"environment {name} is not running", hint=f"start it with `danlu start {name}`"
    )


class ExecConnection:
    """The connection of one program, for callers without an event loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._response = b""

    @classmethod
    def open(
        cls, environment: EnvironmentDirectory, request: ExecRequest, streams: tuple[int, int, int]
    ) -> ExecConnection:
        """Start a program.

        Raises :class:`UsageError` if the environment does not run, or if the request is not UTF-8.
        """
        data = encode(StartExecRequest(request))
        try:
            connection = connect_control_socket(
                environment.control_socket, data, descriptors=streams
            )
        except OSError as error:
            raise _translate_connect_error(error, environment.name) from error
        connection.settimeout(None)
        return cls(connection)

    def fileno(self) -> int:
        """Return the socket's descriptor, readable when the program has ended."""
        return self._connection.fileno()

    def send_message(self, message: ExecMessage) -> None:
        """Send a signal, or report a new size of the terminal."""
        # If the program has ended, its exit is waiting to be read.
        with suppress(OSError):
            self._connection.sendall(msgspec.json.encode(message) + b"\n")

    def read_exit(self) -> int | None:
        """Read what has arrived; return the exit code once it is complete, else None.

        Raises :class:`DanluError` if the program could not be started, and :class:`OutsideError`
        if the supervisor ended first.
        """
        try:
            chunk = self._connection.recv(_CHUNK_SIZE)
        except ConnectionError:  # the supervisor was killed before it read our last message
            chunk = b""
        if not chunk:
            raise OutsideError("the environment was stopped")
        self._response += chunk
        if not self._response.endswith(b"\n"):
            return None
        response = msgspec.json.decode(self._response, type=SupervisorResponse)
        raise_response_error(response)
        return response.code

    def close(self) -> None:
        """Disconnect, which kills the program if it still runs."""
        self._connection.close()
