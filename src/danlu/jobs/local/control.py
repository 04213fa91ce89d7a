"""Orders to a supervisor over its socket, one JSON object a line; the answer is one, too.

A program that is run beside a replica (``exec``) has the three descriptors that come with its
order as its standard streams; who ordered it goes away to end it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import anyio
import msgspec
from anyio import abc

from danlu.errors import DanluError, UsageError
from danlu.jobs.local.crew import Crew
from danlu.jobs.local.state import Place, short_name
from danlu.jobs.local.types import Engine, Exit, Running
from danlu.jobs.scaling import scaled
from danlu.training.types import Job, Phase

__all__ = ["Answer", "Order", "Orders", "give", "serve", "socket_file"]

_PIECE = 1 << 16
_DESCRIPTORS = 3
_PATIENCE = 10.0
_START = 60.0
_LOOK = 0.02


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a supervisor is told to ``do``: stop, suspend, scale, leave or exec."""

    do: str
    grace: float = 5.0
    suspended: bool = False
    replicas: Mapping[str, int] = {}
    target: str = ""
    args: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it says: nothing, or why not; the exit code of an ``exec``."""

    error: str = ""
    hint: str = ""
    code: int = 0


@dataclass(frozen=True)
class Orders:
    """What carries orders out."""

    job: Callable[[], Job]
    crew: Crew
    change: Callable[[Job], None]
    stop: Callable[[float], None]
    leave: Callable[[], None]


def socket_file(place: Place) -> str:
    """Where a supervisor listens; beside the framework's files, which containers see."""
    return str(place.files / "control.sock")


async def serve(
    place: Place, orders: Orders, *, task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Take orders for ever."""
    place.files.mkdir(mode=0o755, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        with short_name(place.files / "control.sock") as name:
            listening.bind(name)
        os.chmod(socket_file(place), 0o600)
        listening.listen(64)
        listening.setblocking(False)
        task_status.started()
        async with anyio.create_task_group() as group:
            while True:
                await anyio.wait_readable(listening)
                with suppress(BlockingIOError, ConnectionError):
                    connection, _ = listening.accept()
                    group.start_soon(_answer, connection, orders)


async def _answer(connection: socket.socket, orders: Orders) -> None:
    connection.setblocking(False)
    descriptors: list[int] = []
    with connection:
        try:
            with anyio.fail_after(_PATIENCE):
                order = await _read(connection, descriptors)
            answer = await _carried_out(order, descriptors, connection, orders)
        except DanluError as error:
            answer = Answer(error.message, error.hint)
        except (msgspec.MsgspecError, OSError) as error:
            answer = Answer(f"this is no order: {error}")
        finally:
            for one in descriptors:
                os.close(one)
        with suppress(OSError):
            connection.send(msgspec.json.encode(answer) + b"\n")


async def _read(connection: socket.socket, descriptors: list[int]) -> Order:
    data = b""
    while not data.endswith(b"\n"):
        await anyio.wait_readable(connection)
        piece, fds, _, _ = socket.recv_fds(
            connection, _PIECE, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        descriptors += fds
        if not piece:
            raise ConnectionResetError("it broke off")
        data += piece
    return msgspec.json.decode(data, type=Order)


async def _carried_out(
    order: Order, descriptors: list[int], connection: socket.socket, orders: Orders
) -> Answer:
    match order.do:
        case "stop":
            orders.stop(order.grace)
        case "leave":
            orders.leave()
        case "suspend":
            job = orders.job()
            policy = msgspec.structs.replace(job.run_policy, suspend=order.suspended)
            orders.change(msgspec.structs.replace(job, run_policy=policy))
        case "scale":
            orders.change(scaled(orders.job(), order.replicas))
        case "exec":
            return await _exec(order, descriptors, connection, orders.crew)
        case _:
            raise UsageError(f"a supervisor cannot {order.do}")
    return Answer()


async def _exec(
    order: Order, descriptors: list[int], connection: socket.socket, crew: Crew
) -> Answer:
    if len(descriptors) != _DESCRIPTORS:
        raise UsageError("a program needs three descriptors to run on")
    engine, main = await _once_running(order.target, crew)
    running = await engine.exec(
        main,
        order.args,
        {},
        stdin=descriptors[0],
        stdout=descriptors[1],
        stderr=descriptors[2],
    )
    # Ours keep a pipe open whose end the other side waits for.
    while descriptors:
        os.close(descriptors.pop())
    exit = await _unless_gone(running, connection)
    return Answer(exit.message if exit.reason == "StartError" else "", code=exit.code)


async def _once_running(target: str, crew: Crew) -> tuple[Engine, Running]:
    """What runs in a replica, which may be about to start: a launcher does not wait for workers."""
    replica = crew.topology.find(target)
    with anyio.move_on_after(_START):
        while replica is not None:
            attempt = crew.latest.get(replica)
            if attempt is not None and attempt.phase is Phase.RUNNING:
                assert attempt.engine is not None
                assert attempt.running is not None
                return attempt.engine, attempt.running
            await anyio.sleep(_LOOK)
    raise UsageError(f"no replica {target} runs here")


async def _unless_gone(running: Running, connection: socket.socket) -> Exit:
    async with anyio.create_task_group() as group:

        async def end_with_it() -> None:
            await anyio.wait_readable(connection)
            await running.end(grace=1.0)

        group.start_soon(end_with_it)
        exit = await running.wait()
        group.cancel_scope.cancel()
    return exit


def give(place: Place, order: Order) -> Answer:
    """Give an order and wait for the answer (blocks).

    Raises :class:`ConnectionError` or :class:`FileNotFoundError` where nobody takes orders.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        with short_name(place.files / "control.sock") as name:
            connection.connect(name)
        connection.sendall(msgspec.json.encode(order) + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            piece = connection.recv(_PIECE)
            if not piece:
                raise ConnectionResetError("the supervisor went away")
            data += piece
    return msgspec.json.decode(data, type=Answer)
