"""The connection of OpenSSH's ``ProxyCommand``: stdin and stdout as one socket."""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import suppress

_CHUNK_SIZE = 1 << 18


class StreamTransport:
    """A socket for two descriptors: themselves if they are one socket, else copied by threads.

    OpenSSH gives its ``ProxyCommand`` two pipes, and some editors a pair of sockets.
    """

    def __init__(self, input: int, output: int) -> None:
        self._output_thread: threading.Thread | None = None
        if _are_one_socket(input, output):
            self.socket = socket.socket(fileno=os.dup(input))
            return
        self.socket, inner = socket.socketpair()
        threading.Thread(target=_copy_to_socket, args=(input, inner), daemon=True).start()
        self._output_thread = threading.Thread(target=_copy_from_socket, args=(inner, output))
        self._output_thread.daemon = True
        self._output_thread.start()

    def finish(self) -> None:
        """Close the socket, and wait until all that was sent is written."""
        self.socket.close()
        if self._output_thread is not None:
            self._output_thread.join()


def _are_one_socket(input: int, output: int) -> bool:
    first, second = os.fstat(input), os.fstat(output)
    return stat.S_ISSOCK(first.st_mode) and (first.st_dev, first.st_ino) == (
        second.st_dev,
        second.st_ino,
    )


def _copy_to_socket(source: int, target: socket.socket) -> None:
    """Copy until the client closes its end, then end the socket's input."""
    with suppress(OSError):
        while data := os.read(source, _CHUNK_SIZE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _copy_from_socket(source: socket.socket, target: int) -> None:
    """Copy until the server closes the socket; if the client is gone, end the socket."""
    with suppress(OSError):
        while data := source.recv(_CHUNK_SIZE):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    with suppress(OSError):
        source.shutdown(socket.SHUT_RDWR)
