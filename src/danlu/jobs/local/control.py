"""The control socket of a supervisor: one JSON request per connection, answered by one response.

``exec`` runs a program next to a replica. Its standard streams are three descriptors sent with the
request; the program is stopped when the client disconnects. Clients of older versions send the same
messages, so names of fields must not change.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import abc

from danlu.errors import DanluError, UsageError
from danlu.jobs.local.engine import ContainerExit, ReplicaEngine, RunningContainer
from danlu.jobs.local.job_directory import JobDirectory, short_socket_path
from danlu.jobs.scaling import with_replicas
from danlu.training.types import Job, ReplicaPhase

if TYPE_CHECKING:
    # Clients send requests without loading the supervisor's half.
    from danlu.jobs.local.replica_manager import ReplicaManager

_CHUNK_SIZE = 1 << 16
_STREAM_COUNT = 3
_REQUEST_TIMEOUT = 10.0
_START_TIMEOUT = 60.0
_POLL_SECONDS = 0.02


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request; ``do`` is ``stop``, ``suspend``, ``scale``, ``leave`` or ``exec``."""

    do: str
    grace: float | None = None
    suspended: bool = False
    replicas: Mapping[str, int] = {}
    target: str = ""
    args: tuple[str, ...] = ()


class ControlResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response: empty, or an error; ``code`` is the exit code of an ``exec``."""

    error: str = ""
    hint: str = ""
    code: int = 0


@dataclass(frozen=True)
class ControlHandlers:
    """The supervisor's side of the requests."""

    job: Callable[[], Job]
    replicas: ReplicaManager
    update_job: Callable[[Job], None]
    stop: Callable[[float | None], None]
    leave: Callable[[], None]


def socket_file(job_dir: JobDirectory) -> str:
    """Return the path of the socket, next to the framework's files, which containers see."""
    return str(job_dir.files / "control.sock")


async def serve_control(
    job_dir: JobDirectory,
    handlers: ControlHandlers,
    *,
    task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve requests until cancelled."""
    job_dir.files.mkdir(mode=0o755, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with short_socket_path(job_dir.files / "control.sock") as name:
            listener.bind(name)
        # Containers see this directory, and their users must not control the job.
        os.chmod(socket_file(job_dir), 0o600)
        listener.listen(64)
        listener.setblocking(False)
        task_status.started()
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listener)
                with suppress(BlockingIOError, ConnectionError):
                    connection, _ = listener.accept()
                    group.start_soon(_handle_connection, connection, handlers)


async def _handle_connection(connection: socket.socket, handlers: ControlHandlers) -> None:
    connection.setblocking(False)
    descriptors: list[int] = []
    with connection:
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT):
                request = await _read_request(connection, descriptors)
            response = await _dispatch_request(request, descriptors, connection, handlers)
        except DanluError as error:
            response = ControlResponse(error.message, error.hint)
        except (msgspec.MsgspecError, OSError) as error:
            response = ControlResponse(f"invalid request: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with suppress(OSError):
            connection.send(msgspec.json.encode(response) + b"\n")


async def _read_request(connection: socket.socket, descriptors: list[int]) -> ControlRequest:
    data = b""
    while not data.endswith(b"\n"):
        await anyio.wait_readable(connection)
        # Descriptors arrive with the first bytes of the message, which may come in several chunks.
        chunk, fds, _, _ = socket.recv_fds(
            connection, _CHUNK_SIZE, _STREAM_COUNT, socket.MSG_CMSG_CLOEXEC
        )
        descriptors += fds
        if not chunk:
            raise ConnectionResetError("the client disconnected")
        data += chunk
    return msgspec.json.decode(data, type=ControlRequest)


async def _dispatch_request(
    request: ControlRequest,
    descriptors: list[int],
    connection: socket.socket,
    handlers: ControlHandlers,
) -> ControlResponse:
    match request.do:
        case "stop":
            handlers.stop(request.grace)
        case "leave":
            handlers.leave()
        case "suspend":
            job = handlers.job()
            policy = msgspec.structs.replace(job.run_policy, suspend=request.suspended)
            handlers.update_job(msgspec.structs.replace(job, run_policy=policy))
        case "scale":
            handlers.update_job(with_replicas(handlers.job(), request.replicas))
        case "exec":
            return await _run_exec(request, descriptors, connection, handlers.replicas)
        case _:
            raise UsageError(f"unknown request: {request.do}")
    return ControlResponse()


async def _run_exec(
    request: ControlRequest,
    descriptors: list[int],
    connection: socket.socket,
    replicas: ReplicaManager,
) -> ControlResponse:
    if len(descriptors) != _STREAM_COUNT:
        raise UsageError(f"exec needs {_STREAM_COUNT} descriptors, got {len(descriptors)}")
    engine, main = await _wait_for_replica(request.target, replicas)
    running = await engine.exec(
        main,
        request.args,
        {},
        stdin=descriptors[0],
        stdout=descriptors[1],
        stderr=descriptors[2],
    )
    # Our copies would keep pipes open whose end the other side waits for.
    while descriptors:
        os.close(descriptors.pop())
    exit = await _wait_or_disconnect(running, connection)
    error = exit.message if exit.reason == "StartError" else ""
    return ControlResponse(error, code=exit.code)


async def _wait_for_replica(
    target: str, replicas: ReplicaManager
) -> tuple[ReplicaEngine, RunningContainer]:
    """Return what runs in a replica, waiting for its start: launchers don't wait for workers."""
    replica = replicas.topology.find_replica(target)
    with anyio.move_on_after(_START_TIMEOUT):
        while replica is not None:
            attempt = replicas.latest.get(replica)
            if attempt is not None and attempt.phase is ReplicaPhase.RUNNING:
                assert attempt.engine is not None
                assert attempt.running is not None
                return attempt.engine, attempt.running
            await anyio.sleep(_POLL_SECONDS)
    raise UsageError(f"replica {target} is not running")


async def _wait_or_disconnect(
    running: RunningContainer, connection: socket.socket
) -> ContainerExit:
    async with anyio.create_task_group() as group:

        async def stop_on_disconnect() -> None:
            # A client sends nothing after its request, so readable means closed.
            await anyio.wait_readable(connection)
            await running.stop(grace=1.0)

        group.start_soon(stop_on_disconnect)
        exit = await running.wait()
        group.cancel_scope.cancel()
    return exit


def send_request(job_dir: JobDirectory, request: ControlRequest) -> ControlResponse:
    """Send a request and block until the response arrives.

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` if no supervisor is listening.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REQUEST_TIMEOUT)
        with short_socket_path(job_dir.files / "control.sock") as name:
            connection.connect(name)
        connection.sendall(msgspec.json.encode(request) + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            chunk = connection.recv(_CHUNK_SIZE)
            if not chunk:
                raise ConnectionResetError("the supervisor closed the connection")
            data += chunk
    return msgspec.json.decode(data, type=ControlResponse)
