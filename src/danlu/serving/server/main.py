"""The program ``serve`` of a packed image: worker processes that share one listening socket.

A worker loads the model and answers requests until SIGTERM, after which it finishes those that it
has. The parent replaces a worker that died or whose predictor hangs; if a worker cannot load the
model, it ends all with exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

BACKLOG = 2048
#: The exit code of a worker that cannot load the model.
CANNOT_LOAD = 3
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0


def parse_options(args: list[str]) -> argparse.Namespace:
    """Return the options; ports of SageMaker and of other platforms come from variables."""
    port = os.environ.get("SAGEMAKER_BIND_TO_PORT") or os.environ.get("PORT") or "8080"
    parser = argparse.ArgumentParser("serve", description="Serve the model of this image.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=int(port) if port.isdigit() else 8080)
    parser.add_argument("--grpc-port", type=int, help="port for gRPC (`danlu pack --grpc`)")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with the model")
    parser.add_argument("--max-batch", type=int, default=32, help="most rows of a call")
    parser.add_argument("--max-waiting", type=int, default=256, help="most requests that wait")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for an answer")
    parser.add_argument("--max-body", type=int, default=64, help="MiB of a request")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    for name in ("port", "grpc_port"):
        if not 0 <= (getattr(options, name) or 0) <= 65535:
            parser.error(f"--{name.replace('_', '-')} must be from 0 to 65535")
    if options.grpc_port is not None and importlib.util.find_spec("grpc") is None:
        parser.error("--grpc-port: the image was packed without --grpc")
    for name in ("workers", "max_batch", "max_waiting", "timeout", "max_body"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0")
    return options


def main(args: list[str]) -> int:
    """Run the parent, or with ``--worker`` a worker; return the exit code."""
    options = parse_options(args)
    if options.worker is not None:
        try:
            from .worker import run_worker
        except ModuleNotFoundError as error:
            print(f"error: the model server needs {error.name} in the image", file=sys.stderr)
            return CANNOT_LOAD
        return run_worker(options)
    port, held = options.port, []
    try:
        listener = bind_socket(options.host, port)
        listener.listen(BACKLOG)
        listener.set_inheritable(True)
        if options.grpc_port is not None:
            port = options.grpc_port
            # Workers listen there themselves. Only without SO_REUSEPORT is it known to be free.
            with bind_socket(options.host, port) as free:
                port = free.getsockname()[1]
            held.append(bind_socket(options.host, port, is_shared=True))
            args = [*args, "--grpc-port", str(port)]
            print(f"listening for gRPC on {options.host}:{port}", file=sys.stderr, flush=True)
    except OSError as error:
        print(f"error: cannot listen on {options.host}:{port}: {error}", file=sys.stderr)
        return 1
    return WorkerGroup(listener, args, options.workers).run()


def bind_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket that is bound; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
    bound.bind((host, port))
    return bound


class WorkerGroup:
    """The parent of the workers."""

    def __init__(self, listener: socket.socket, args: list[str], workers: int) -> None:
        self._listener = listener
        self._descriptor = listener.fileno()
        worker = ("--worker", str(self._descriptor))
        self._command = [sys.executable, sys.argv[0], *args, *worker]
        self._count = workers
        self._workers: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._stopping = False
        self._failed = False
        self._delay = _FIRST_DELAY

    def run(self) -> int:
        """Keep the workers running until SIGTERM or SIGINT; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_workers)
        host, port = self._listener.getsockname()[:2]
        print(f"listening on http://{host}:{port}", file=sys.stderr, flush=True)
        for _ in range(self._count):
            self._start_worker()
        while self._workers:
            pid, status = os.wait()
            if pid in self._workers:
                self._replace_worker(pid, os.waitstatus_to_exitcode(status))
        return 1 if self._failed else 0

    def _start_worker(self) -> None:
        try:
            process = subprocess.Popen(self._command, pass_fds=(self._descriptor,))
        except (OSError, ValueError):
            if self._stopping:  # the socket was closed meanwhile
                return
            raise
        self._workers[process.pid] = process, time.monotonic()
        if self._stopping:
            process.terminate()

    def _replace_worker(self, pid: int, code: int) -> None:
        process, start = self._workers.pop(pid)
        process.returncode = code
        if code == CANNOT_LOAD:
            self._failed = True
            self._stop_workers(signal.SIGTERM, None)
        if self._stopping:
            return
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        print(f"worker {pid} ended ({why}); starting another", file=sys.stderr, flush=True)
        if time.monotonic() - start > _LONGEST_DELAY:
            self._delay = _FIRST_DELAY
        time.sleep(self._delay)
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        if not self._stopping:
            self._start_worker()

    def _stop_workers(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._listener.close()  # else connections would wait for nobody
        for process, _ in self._workers.values():
            process.terminate()
