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

from . import BACKLOG, CANNOT_LOAD

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 30.0
_PATIENCE = 10.0
_TURN_SECONDS = 0.1
_MEMORY_SHARE = 0.9


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
    parser.add_argument("--keep-alive", type=int, default=75, help="seconds to wait for a client")
    parser.add_argument("--max-body", type=int, default=64, help="MiB of a request")
    parser.add_argument(
        "--max-memory", type=int, help="MiB of a worker that is replaced with more; 0 is no limit"
    )
    parser.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN",
        help="origin whose pages may send requests, * for all; may be repeated",
    )  # fmt: skip
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(args)
    for name in ("port", "grpc_port"):
        if not 0 <= (getattr(options, name) or 0) <= 65535:
            parser.error(f"--{name.replace('_', '-')} must be from 0 to 65535")
    if options.grpc_port is not None and importlib.util.find_spec("grpc") is None:
        parser.error("--grpc-port: the image was packed without --grpc")
    for name in ("workers", "max_batch", "max_waiting", "timeout", "keep_alive", "max_body"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be more than 0")
    if options.max_memory is None:
        options.max_memory = int(read_memory_limit() * _MEMORY_SHARE / options.workers) >> 20
    return options


def read_memory_limit() -> int:
    """Return the bytes of memory that the container may use (cgroup v2, v1), 0 without a limit."""
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            with open(f"/sys/fs/cgroup/{path}", encoding="ascii") as file:
                limit = int(file.read())
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:
            return limit
    return 0


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
    return WorkerGroup(listener, args, options).run()


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

    def __init__(self, listener: socket.socket, args: list[str], options: argparse.Namespace):
        self._listener = listener
        self._args = args
        self._count: int = options.workers
        # A worker's loop stands only if the predictor holds Python's lock (GIL).
        self._patience: float = options.timeout + _PATIENCE
        self._workers: dict[int, _WorkerProcess] = {}
        self._stopping = False
        self._interrupted = False
        self._failed = False
        self._delay = _FIRST_DELAY
        self._next_start = 0.0

    def run(self) -> int:
        """Keep the workers running until SIGTERM or SIGINT; return the exit code.

        That is 1 if the model cannot be loaded, 130 after SIGINT (as shells report it), else 0.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_workers)
        host, port = self._listener.getsockname()[:2]
        print(f"listening on http://{host}:{port}", file=sys.stderr, flush=True)
        while self._workers or not self._stopping:
            now = time.monotonic()
            while not self._stopping and len(self._workers) < self._count:
                if now < self._next_start:
                    break
                self._start_worker()
            # As process 1 it has the orphans of the predictor, too.
            pid, status = os.waitpid(-1, os.WNOHANG) if self._workers else (0, 0)
            if pid in self._workers:
                self._forget_worker(pid, os.waitstatus_to_exitcode(status))
            for worker in self._workers.values():
                worker.kill_if_silent(self._patience)
            if not pid:
                time.sleep(_TURN_SECONDS)
        if self._failed:
            return 1
        return 128 + signal.SIGINT if self._interrupted else 0

    def _start_worker(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        inherited = (self._listener.fileno(), writer)
        command = [sys.executable, sys.argv[0], *self._args, "--worker", *map(str, inherited)]
        try:
            process = subprocess.Popen(command, pass_fds=inherited)
        finally:
            os.close(writer)
        self._workers[process.pid] = _WorkerProcess(process, reader)

    def _forget_worker(self, pid: int, code: int) -> None:
        worker = self._workers.pop(pid)
        worker.process.returncode = code
        os.close(worker.reader)
        if code == CANNOT_LOAD:
            self._failed = True
            self._stop_workers(signal.SIGTERM, None)
        if self._stopping:
            return
        if code:
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            print(f"worker {pid} ended ({why}); starting another", file=sys.stderr, flush=True)
        now = time.monotonic()
        if not code or now - worker.start > _LONGEST_DELAY:
            self._delay = _FIRST_DELAY
        self._next_start = now + self._delay
        self._delay = min(2 * self._delay, _LONGEST_DELAY)

    def _stop_workers(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._listener.close()  # the workers still have it
        for worker in self._workers.values():
            worker.process.terminate()


class _WorkerProcess:
    """A worker, from which something is read every second once it has loaded the model."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int) -> None:
        self.process = process
        self.reader = reader
        self.start = time.monotonic()
        self._turns: int | None = None

    def kill_if_silent(self, patience: float) -> None:
        # Turns of the parent: both may have been stopped (`docker pause`).
        try:
            if os.read(self.reader, 1024):
                self._turns = 0
        except BlockingIOError:
            if self._turns is not None:
                self._turns += 1
            if (self._turns or 0) * _TURN_SECONDS > patience:
                print(f"worker {self.process.pid} does not react", file=sys.stderr, flush=True)
                self.process.kill()
                self._turns = None
