"""A worker of the program ``serve``: loads the model and answers requests with uvicorn."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import importlib
import math
import os
import re
import signal
import socket
import struct
import sys
import time
from types import FrameType
from typing import Any

import uvicorn  # type: ignore[import-not-found]
from uvicorn.protocols.http.httptools_impl import (  # type: ignore[import-not-found]
    HttpToolsProtocol,
)

from . import BACKLOG, CANNOT_LOAD
from .app import ServerApp, ServerOptions
from .model import ServedModel

#: How long a worker that ends accepts connections and answers on those that it has, so that
#: clients and load balancers see that it ends.
_LINGER_SECONDS = 5
_MAX_HEAD = 64 << 10
#: The exit code of a worker whose predictor hangs.
_STUCK = 70
_SO_ATTACH_FILTER = 26
#: Clients of Java's own ask for HTTP/2, after which httptools would take no body.
_H2C = re.compile(rb"\r\nupgrade:(?=\s*h2c)", re.IGNORECASE)


def run_worker(options: argparse.Namespace) -> int:
    """Serve on the inherited socket; return the exit code."""
    app = ServerApp(
        load_model,
        ServerOptions(
            options.max_batch,
            options.max_waiting,
            options.timeout,
            options.max_body << 20,
            tuple(options.cors),
        ),
        on_start=lambda: server.start_grpc(),
        on_stuck=lambda: server.drain(is_replaced=True),
    )
    config = uvicorn.Config(
        app,
        http=_LimitedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=options.keep_alive,
        timeout_graceful_shutdown=math.ceil(options.timeout),
        backlog=BACKLOG,
    )
    server = _DrainingServer(config, app, options)
    server.run(sockets=[server.listener])
    if app.is_calling:  # a thread that hangs would keep the process
        sys.stderr.flush()
        os._exit(_STUCK)
    return 0 if server.started else CANNOT_LOAD


def load_model() -> ServedModel:
    """Load the packed model, and call it with its examples."""
    runner = importlib.import_module("run")
    model = ServedModel(
        runner.load_predictor(runner.read_json("predictor.json")),
        runner.read_json("golden.json"),
        name=os.environ.get("MODEL_NAME", "model"),
        version=os.environ.get("MODEL_VERSION", "1"),
    )
    model.warm_up()
    return model


def read_memory() -> int:
    """Return this process's resident memory in bytes (proc(5), ``statm``)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def refuse_connections(listener: socket.socket) -> None:
    """Let the kernel drop what would become a new connection (socket(7), SO_ATTACH_FILTER)."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
    with contextlib.suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(drop))
        )


class _LimitedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """Limits the head of a request in size, and all that waits for the client in time."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head: int | None = 0
        self._idle_since: float | None = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self._head == 0 and b"h2c" in data:
            head, end, body = data.partition(b"\r\n\r\n")
            data = _H2C.sub(b"\r\nx-upgrade:", head) + end + body
        if self._head is not None:
            self._head += len(data)
        super().data_received(data)
        if (self._head or 0) > _MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of the request has more than {_MAX_HEAD} bytes.")

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head = 0
        if not self.cycle.response_complete:
            self._idle_since = None

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def close_if_idle(self, since: float) -> None:
        """Close the connection if it has waited for the client since then."""
        if self._idle_since is not None and self._idle_since < since:
            self.transport.abort()


class _DrainingServer(uvicorn.Server):  # type: ignore[misc]
    """Ends when no connection is left, or some seconds after SIGTERM."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, options: argparse.Namespace) -> None:
        super().__init__(config)
        self._app = app
        self._options = options
        self.listener = socket.socket(fileno=options.worker[0])
        self._deadline = 0.0
        self._refused_at = 0.0
        self._is_replaced = False
        self._max_memory = options.max_memory << 20
        self._grpc: Any = None
        self._calls = 0

    async def start_grpc(self) -> None:
        """Accept requests by gRPC, if its port is set, and say that the model is ready."""
        if self._options.grpc_port is not None:
            rpc = importlib.import_module(".rpc", __package__)
            host = self._options.host
            address = f"[{host}]" if ":" in host else host
            self._grpc = await rpc.start_grpc(
                self._app, f"{address}:{self._options.grpc_port}", self._options.max_body << 20
            )
        if self._max_memory:
            self._max_memory = max(self._max_memory, read_memory() * 5 // 4)
        model = self._app.model
        batches = "requests are batched" if model.batches else "one request at a time"
        print(f"model {model.name} is ready ({batches})", file=sys.stderr, flush=True)

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        if not self.started:
            raise SystemExit(0)
        if number == signal.SIGTERM:
            self.drain()
        else:
            super().handle_exit(number, frame)

    def drain(self, *, is_replaced: bool = False) -> None:
        """End soon; a worker that is replaced leaves new connections to another."""
        if not self._app.is_draining:
            self._deadline = time.monotonic() + _LINGER_SECONDS
            self._app.is_draining = True
        self._is_replaced |= is_replaced
        if is_replaced:
            for listener in self.servers:
                listener.close()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._check_health()
        if self._app.is_draining:
            is_idle = not self.server_state.connections and self._calls == self._app.calls
            self._calls = self._app.calls
            now = time.monotonic()
            if self._refused_at:
                self.should_exit |= is_idle or now > self._refused_at + 1
            elif is_idle or now > self._deadline:
                # Those that the kernel has accepted already are answered before the socket is
                # closed, which would reset them.
                if not self._is_replaced:
                    refuse_connections(self.listener)
                self._app.is_ending = True
                self._refused_at = now
        return bool(await super().on_tick(counter))

    def _check_health(self) -> None:
        try:
            os.write(self._options.worker[1], b".")
        except OSError:  # the parent has ended
            self.should_exit = True
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            connection.close_if_idle(now - self._options.keep_alive)
        if self._max_memory and not self._app.is_draining:
            memory = read_memory()
            if memory > self._max_memory:
                text = f"{memory >> 20} MiB of memory: the worker is replaced"
                print(text, file=sys.stderr, flush=True)
                self.drain(is_replaced=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has been accepted, then end."""
        if self._grpc is not None:
            await self._grpc.stop(self._options.timeout)
        await super().shutdown(sockets)
