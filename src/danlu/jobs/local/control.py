"""The control socket of a supervisor: one JSON request per connection, answered by one response.

``exec`` runs a program next to a replica. Its standard streams are three descriptors sent with the
request; the program is stopped when the client disconnects. Clients of older versions send the same
messages, so names of fields must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import abc

from danlu.engine import control_client
from danlu.engine.control_socket import ControlConnection, serve_control_socket
from danlu.engine.types import ContainerExit, RunningContainer
from danlu.errors import DanluError, UsageError
from danlu.jobs.local.engine import ReplicaEngine
from danlu.jobs.local.job_directory import JobDirectory
from danlu.jobs.scaling import with_replicas
from danlu.training.types import Job, ReplicaPhase
from danlu.util.decoding import decode_json

if TYPE_CHECKING:
    # Clients send requests without loading the supervisor's half.
    from danlu.jobs.local.replica_manager import ReplicaManager

_STREAM_COUNT = 3
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

    async def handle(connection: ControlConnection) -> bytes:
        try:
            request = decode_json(connection.request, ControlRequest)
            response = await _dispatch_request(request, connection, handlers)
        except DanluError as error:
            response = ControlResponse(error.message, error.hint)
        except (msgspec.MsgspecError, OSError) as error:
            response = ControlResponse(f"invalid request: {error}")
        return msgspec.json.encode(response)

    # Containers see this directory, and their users must not control the job: the socket's mode
    # keeps them out.
    job_dir.files.mkdir(mode=0o755, exist_ok=True)
    await serve_control_socket(Path(socket_file(job_dir)), handle, task_status=task_status)


async def _dispatch_request(
    request: ControlRequest, connection: ControlConnection, handlers: ControlHandlers
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
            return await _run_exec(request, connection, handlers.replicas)
        case _:
            raise UsageError(f"unknown request: {request.do}")
    return ControlResponse()


async def _run_exec(
    request: ControlRequest, connection: ControlConnection, replicas: ReplicaManager
) -> ControlResponse:
    if len(connection.descriptors) != _STREAM_COUNT:
        count = len(connection.descriptors)
        raise UsageError(f"exec needs {_STREAM_COUNT} descriptors, got {count}")
    stdin, stdout, stderr = connection.descriptors
    engine, main = await _wait_for_replica(request.target, replicas)
    running = await engine.exec(
        main,
        request.args,
        {},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    connection.close_descriptors()
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
    running: RunningContainer, connection: ControlConnection
) -> ContainerExit:
    async with anyio.create_task_group() as group:

        async def stop_on_disconnect() -> None:
            while await connection.read_message() is not None:
                pass  # clients send nothing more
            await running.stop(grace=1.0)

        group.start_soon(stop_on_disconnect)
        exit = await running.wait()
        group.cancel_scope.cancel()
    return exit


def send_request(job_dir: JobDirectory, request: ControlRequest) -> ControlResponse:
    """Send a request and block until the response arrives.

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` if no supervisor is listening.
    """
    response = control_client.send_request(Path(socket_file(job_dir)), msgspec.json.encode(request))
    return decode_json(response, ControlResponse)
