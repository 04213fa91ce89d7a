"""A worker of the program ``serve``: loads the model and answers requests with uvicorn."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import uvicorn  # type: ignore[import-not-found]

from .app import ServerApp, ServerOptions
from .main import BACKLOG, CANNOT_LOAD
from .model import ServedModel

#: After SIGTERM nothing new is accepted, but open connections get one more answer that closes them,
#: for this long: a client that sends a request just when an idle one is closed would lose it.
_LINGER_SECONDS = 5
_DRAIN_SECONDS = 20  # SageMaker and Kubernetes send SIGKILL 30 seconds after SIGTERM
#: The exit code of a worker whose predictor hangs.
_STUCK = 70


def run_worker(options: argparse.Namespace) -> int:
    """Serve on the inherited socket; return the exit code."""
    app = ServerApp(
        load_model,
        ServerOptions(
            options.max_batch, options.max_waiting, options.timeout, options.max_body << 20
        ),
        on_start=lambda: server.start_grpc(),
        on_stuck=end_stuck_worker,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        backlog=BACKLOG,
    )

    server = _DrainingServer(config, app, options)
    threading.Thread(target=_follow_parent, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=options.worker)])
    return 0 if server.started else CANNOT_LOAD


def _follow_parent(server: object) -> None:
    """End with the parent, however that ends."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    server.should_exit = True  # type: ignore[attr-defined]


def load_model() -> ServedModel:
    """Load the packed model, and call it with its examples."""
    runner = importlib.import_module("run")
    model = ServedModel(
        runner.load_predictor(runner.read_json("predictor.json")),
        runner,
        runner.read_json("golden.json"),
        name=os.environ.get("MODEL_NAME", "model"),
        version=os.environ.get("MODEL_VERSION", "1"),
    )
    model.warm_up()
    return model


def end_stuck_worker() -> None:
    """End this process soon: its answers are sent, but a thread that hangs would keep it."""
    threading.Timer(1, os._exit, (_STUCK,)).start()


class _DrainingServer(uvicorn.Server):  # type: ignore[misc]
    """Ends when no connection is left, or some seconds after SIGTERM."""

    def __init__(self, config: uvicorn.Config, app: ServerApp, options: argparse.Namespace) -> None:
        super().__init__(config)
        self._app = app
        self._options = options
        self._deadline = 0.0
        self._grpc: Any = None
        self._grpc_end: asyncio.Task[None] | None = None

    async def start_grpc(self) -> None:
        """Accept requests by gRPC, if its port is set, and say that the model is ready."""
        if self._options.grpc_port is not None:
            rpc = importlib.import_module(".rpc", __package__)
            host = self._options.host
            address = f"[{host}]" if ":" in host else host
            self._grpc = await rpc.start_grpc(
                self._app, f"{address}:{self._options.grpc_port}", self._options.max_body << 20
            )
        model = self._app.model
        batches = "requests are batched" if model.batches else "one request at a time"
        print(f"model {model.name} is ready ({batches})", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has been accepted, then end."""
        if self._grpc is not None:
            await self._grpc.stop(_DRAIN_SECONDS)
        await super().shutdown(sockets)

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        if not self.started:
            raise SystemExit(0)
        if number == signal.SIGTERM and not self._app.is_draining:
            self._deadline = time.monotonic() + _LINGER_SECONDS
            self._app.is_draining = True
            for listener in self.servers:
                listener.close()
        elif number != signal.SIGTERM:
            super().handle_exit(number, frame)

    async def on_tick(self, counter: int) -> bool:
        if self._app.is_draining:
            if self._grpc is not None and self._grpc_end is None:
                self._grpc_end = asyncio.create_task(self._grpc.stop(_DRAIN_SECONDS))
            is_idle = not self.server_state.connections and (
                self._grpc_end is None or self._grpc_end.done()
            )
            self.should_exit |= is_idle or time.monotonic() > self._deadline
        return bool(await super().on_tick(counter))
