"""The process that serves the SSH connections of one environment, each in a fork of itself.

``python -m danlu.engine.ssh.connection_listener DIRECTORY`` is started by the first connection
(:mod:`danlu.engine.ssh.connection_client`), so that later ones need not load an SSH server. A
client sends its three standard streams over a Unix socket. The listener ends with the environment,
and when it was not used for ten minutes.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec

from danlu.engine.detached_process import FIRST_FD
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.environment_ports import shares_host_network
from danlu.engine.ssh.connection_client import ACCEPTED, PROTOCOL, STREAM_COUNT
from danlu.engine.ssh.forwarding import SupervisorConnector
from danlu.engine.ssh.keys import SshKeys, environment_keys
from danlu.engine.ssh.stdio import serve_standard_streams
from danlu.engine.supervised_exec import SupervisedExecClient
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.errors import DanluError
from danlu.util.sockets import short_socket_path

_IDLE_SECONDS = 600.0
_REQUEST_TIMEOUT = 10.0
_BACKLOG = 64


class ConnectionListener:
    """Accepts clients and forks a server for each."""

    def __init__(self, environment: EnvironmentDirectory, listener: socket.socket) -> None:
        self._environment = environment
        self._listener = listener
        self._servers: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()

    def serve_clients(self, supervisor: int) -> None:
        """Serve clients until the process of the pidfd ``supervisor`` ends, or nobody connects.

        Servers that still run then end with their clients.
        """
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(supervisor, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(_IDLE_SECONDS)]
            if supervisor in ready or not (ready or self._servers):
                return
            for item in ready:
                if item is self._listener:
                    self._accept_client()
                else:
                    assert isinstance(item, int)
                    self._reap_server(item)

    def _accept_client(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            with connection:
                # Possible because this process has neither threads nor an event loop: a fork copies
                # the locks of threads, but not the threads that would release them.
                server = os.fork()
                if server == 0:
                    self._serve_and_exit(connection)
            pidfd = os.pidfd_open(server)
            self._servers[pidfd] = server
            self._selector.register(pidfd, selectors.EVENT_READ)

    def _reap_server(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._servers.pop(pidfd), 0)

    def _serve_and_exit(self, connection: socket.socket) -> None:
        try:
            self._listener.close()
            self._selector.close()
            for pidfd in self._servers:
                os.close(pidfd)
            _serve_client(connection, self._environment)
        except BaseException:
            traceback.print_exc()
        finally:
            # The loop and the exit handlers are the listener's.
            os._exit(0)


def _serve_client(connection: socket.socket, environment: EnvironmentDirectory) -> None:
    """Take over the client's streams, serve it, and send how it ended."""
    connection.settimeout(_REQUEST_TIMEOUT)
    if not _receive_streams(connection):
        return
    connection.settimeout(None)
    connection.sendall(ACCEPTED)
    threading.Thread(target=_exit_with_client, args=(connection,), daemon=True).start()
    try:
        shares_host = shares_host_network(environment.read_spec())
        serve_standard_streams(
            SupervisedExecClient(environment),
            environment_keys(environment),
            network=None if shares_host else SupervisorConnector(environment),
        )
    except DanluError as error:
        response = SupervisorResponse.of(error)
    else:
        response = SupervisorResponse()
    # ssh may end the client as soon as it has the exit code.
    with suppress(ConnectionError):
        connection.sendall(msgspec.json.encode(response))


def _receive_streams(connection: socket.socket) -> bool:
    """Replace our standard streams by those of the client; return False if it sends none."""
    try:
        request, streams, _, _ = socket.recv_fds(
            connection, len(PROTOCOL) + 1, STREAM_COUNT, socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return False
    if request != PROTOCOL + b"\n" or len(streams) != STREAM_COUNT:
        return False
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    return True


def _exit_with_client(connection: socket.socket) -> None:
    """End this process when the client's has ended, which ends the programs it started."""
    with suppress(OSError):
        # The client sends nothing: this returns when the kernel closes its socket, however it
        # ended.
        connection.recv(1)
    os._exit(0)


def _bind_socket(keys: SshKeys) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    keys.server_socket.unlink(missing_ok=True)
    with short_socket_path(keys.server_socket) as name:
        listener.bind(name)
    # Connecting needs permission to write to the socket, which bind(2) created by the umask.
    os.chmod(keys.server_socket, 0o600)
    listener.listen(_BACKLOG)
    return listener


def main(directory: str) -> None:
    """Serve the environment in ``directory`` while it runs; report when clients can connect."""
    # Nothing of the client that started us: its descriptors would stay open, its directory used.
    os.closerange(FIRST_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(FIRST_FD, False)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment = EnvironmentDirectory(Path(directory))
    # The supervisor writes its process id before it listens.
    if not environment.control_socket.exists():
        return
    supervisor = os.pidfd_open(int(environment.lock.read_text()))
    listener = _bind_socket(environment_keys(environment))
    anyio.run(anyio.sleep, 0)  # loads what anyio loads late
    gc.freeze()
    os.write(FIRST_FD, b"ready")
    os.close(FIRST_FD)
    ConnectionListener(environment, listener).serve_clients(supervisor)


if __name__ == "__main__":
    main(sys.argv[1])
