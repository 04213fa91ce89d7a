"""A network between a client and a server that holds or loses connections at a given byte."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK = 1 << 16


class TcpProxy:
    """Forwards connections to ``target`` (``host:port``); use as a context manager.

    After ``limit`` bytes from the client (``upstream``) or to it, over all connections, the network
    either holds everything until :meth:`release` (``reached`` is set then), or, with ``drops``,
    drops as many connections as that, each after ``limit`` further bytes.
    """

    def __init__(self, target: str, *, limit: int, upstream: bool, drops: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._limit = limit
        self._upstream = upstream
        self._drops = drops
        self._holds = drops == 0
        self._passed = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._sockets: list[socket.socket] = []
        self.reached = threading.Event()

    def __enter__(self) -> TcpProxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept_connections, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._listener.close()
        for connection in self._sockets:
            _close_socket(connection)

    @property
    def host(self) -> str:
        """The address to connect to."""
        return f"localhost:{self._listener.getsockname()[1]}"

    def release(self) -> None:
        """Let everything through from now on."""
        self._holds = False
        self._open.set()

    def _accept_connections(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            for source, sink, upstream in ((client, server, True), (server, client, False)):
                arguments = (source, sink, upstream)
                threading.Thread(target=self._forward_bytes, args=arguments, daemon=True).start()

    def _forward_bytes(self, source: socket.socket, sink: socket.socket, upstream: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if upstream == self._upstream and not self._count_and_wait(len(data)):
                    break
                sink.sendall(data)
        _close_socket(source)
        _close_socket(sink)

    def _count_and_wait(self, size: int) -> bool:
        """Count the bytes; wait, or return whether they get through."""
        with self._lock:
            self._passed += size
            if self._passed < self._limit:
                return True
            if self._drops:
                self._drops -= 1
                self._passed = 0
                return False
            holds = self._holds
        if holds:
            self.reached.set()
            self._open.wait()
        return True


def _close_socket(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
