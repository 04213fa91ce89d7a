"""Start MPI's processes on the hosts of a SageMaker job, without an SSH server.

``wait PORT FIRST`` runs on every host but the first: it executes commands that the first one sends,
and ends with it. ``launch PORT HOST,… COMMAND…`` runs ``mpirun`` there. ``exec PORT [OPTION…] HOST
COMMAND…`` is what ``mpirun`` calls instead of ssh. Only the address of the first host is accepted.
The program is copied into images next to ``sagemaker.py``.
"""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

#: How many seconds to wait for the other hosts.
HOST_TIMEOUT = "DANLU_HOST_TIMEOUT"

_RETRY_SECONDS = 0.2
_DRAIN_SECONDS = 5
_MAX_REQUEST = 4 << 20
_RANK = re.compile(b"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=")
# Options of ssh(1) that are followed by a value.
_VALUE_OPTIONS = "BbcDEeFIiJLlmOoPpQRSWw"


def main(role: str, port: int, words: "list[str]") -> int:
    """Run as one of the three roles; return the exit code."""
    if role == "exec":
        return execute_on_host(port, words)
    if role == "wait":
        return wait_for_launcher(port, words[0])
    return launch(port, [host for host in words[0].split(",") if host], words[1:])


def launch(port: int, hosts: "list[str]", command: "list[str]") -> int:
    """Run a command once all hosts wait, then let them end; return its exit code."""
    connections = []
    end = time.monotonic() + _read_limit()
    for host in hosts:
        try:
            connection = connect_to_host(host, port, end)
        except OSError as error:
            print(f"error: host {host} does not wait for MPI: {error}", file=sys.stderr)
            return 1
        send_message(connection, {"launcher": True})
        connections.append(connection)
    if hosts and not runs_open_mpi(command[0]):
        message = f"{command[0]} is not Open MPI's, and would start all processes on one host"
        print(f"error: {message}\nhint: install Open MPI in the image", file=sys.stderr)
        return 1  # and the other hosts with it
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def stop(number: int, _: Any) -> None:
        # mpirun would kill them a second later.
        if not signal_ranks(number):
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    code = process.wait()
    code = code if code >= 0 else 128 - code
    for connection in connections:
        with suppress(OSError):  # a host that was lost has ended the command
            send_message(connection, {"code": code})
    return code


def runs_open_mpi(program: str) -> bool:
    """Return whether a program is Open MPI's, or cannot be started at all."""
    try:
        result = subprocess.run([program, "--version"], stdout=subprocess.PIPE, check=False)
    except OSError:
        return True
    return b"Open MPI" in result.stdout


def wait_for_launcher(port: int, first: str) -> int:
    """Execute commands until the first host's command has ended; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # The first host gets the signal, too; this one ends with it.
        signal.signal(number, lambda received, _: signal_ranks(received))
    messages = queue.Queue()  # type: queue.Queue[str]
    commands = []  # type: list[threading.Thread]
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", port))
        server.listen()
        accept = threading.Thread(
            target=_accept_connections, args=(server, first, messages, commands), daemon=True
        )
        accept.start()
        limit = _read_limit()
        try:
            kind = messages.get(timeout=limit)
        except queue.Empty:
            print(f"error: host {first} did not start MPI in {limit} seconds", file=sys.stderr)
            return 1
        if kind == "launcher":
            kind = messages.get()
        for thread in commands:
            thread.join(_DRAIN_SECONDS)  # so that the first host gets their exit codes
    if kind == "ended":
        # The first host reports the failure of its command.
        return 0
    print(f"error: lost the connection to host {first}, which runs mpirun", file=sys.stderr)
    return 1


def execute_on_host(port: int, words: "list[str]") -> int:
    """Execute a command on a host as ssh would, and return its exit code."""
    while words[0].startswith("-"):
        value_follows = len(words[0]) == 2 and words[0][1] in _VALUE_OPTIONS
        words = words[2 if value_follows else 1 :]
    host, words = words[0], words[1:]
    try:
        with connect_to_host(host, port, time.monotonic() + _read_limit()) as connection:
            send_message(connection, {"command": " ".join(words)})
            answer = read_message(connection.makefile("rb"))
    except (OSError, ValueError) as error:
        print(f"error: cannot execute a command on {host}: {error}", file=sys.stderr)
        return 255
    return int(answer["code"])


def signal_ranks(number: int) -> bool:
    """Send a signal to MPI's processes on this host; return whether there are any."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if _RANK.search(environ.read()):
                with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
                    parents[pid] = stat.read().rpartition(")")[2].split()[1]
    # A rank signals its own children, if they need to know.
    ranks = [pid for pid, parent in parents.items() if parent not in parents]
    for pid in ranks:
        with suppress(OSError):
            os.kill(int(pid), number)
    return bool(ranks)


def connect_to_host(host: str, port: int, end: float) -> socket.socket:
    """Return a connection to a host, once it accepts one; raise OSError after ``end``."""
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=10)
        except OSError:
            if time.monotonic() >= end:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        _keep_alive(connection)
        return connection


def send_message(connection: socket.socket, message: "dict[str, Any]") -> None:
    """Send a message, which is one line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_message(stream: Any) -> "dict[str, Any]":
    """Return the next message; raise ValueError if the connection was closed."""
    value = json.loads(stream.readline(_MAX_REQUEST) or b"null")
    if not isinstance(value, dict):
        raise ValueError("the connection was closed")
    return value


def _accept_connections(
    server: socket.socket,
    first: str,
    messages: "queue.Queue[str]",
    commands: "list[threading.Thread]",
) -> None:
    while True:
        try:
            connection, (address, *_) = server.accept()
        except OSError:
            return  # closed
        known = []  # type: list[str]
        with suppress(OSError):  # its name is gone with it
            known = socket.gethostbyname_ex(first)[2]
        if address not in known:
            print(f"warning: refused a connection from {address}: not {first}", file=sys.stderr)
            connection.close()
            continue
        _keep_alive(connection)
        arguments = (connection, messages, commands)
        threading.Thread(target=_serve_connection, args=arguments, daemon=True).start()


def _serve_connection(
    connection: socket.socket, messages: "queue.Queue[str]", commands: "list[threading.Thread]"
) -> None:
    """Execute a command, or follow the launcher until it ends."""
    with connection, connection.makefile("rb") as stream, suppress(OSError, ValueError):
        request = read_message(stream)
        if "command" in request:
            commands.append(threading.current_thread())
            command = ["/bin/sh", "-c", str(request["command"])]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            code = process.wait()
            send_message(connection, {"code": code if code >= 0 else 128 - code})
            return
        messages.put("launcher")
        try:
            messages.put("ended" if "code" in read_message(stream) else "lost")
        except (OSError, ValueError):
            messages.put("lost")


def _keep_alive(connection: socket.socket) -> None:
    """Wait without a limit, but notice within two minutes that the other host is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read_limit() -> int:
    return int(os.environ.get(HOST_TIMEOUT, "900"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
