"""Connect stdin and stdout to a Unix socket, or listen on one.

::

    python3 -c TEXT connect PATH         "+" on stdout once connected, then frames
    python3 -c TEXT listen PATH          "=" and the path of a queue, then "+" per connection
    python3 -c TEXT accept QUEUE         as connect, for the next connection of the queue

Runs inside an environment as its user, so a path means what it means there. A frame is the length
of data in four bytes, and the data; the length 0 is its end. (The OCI runtime holds stdout open, so
closing it says nothing.) An error is one line on stdout that starts with "-".
"""

from __future__ import annotations

import array
import os
import select
import shutil
import socket
import stat
import sys
import tempfile
import threading
from typing import Any

CHUNK_SIZE = 1 << 16
BACKLOG = 128


def open_socket() -> socket.socket:
    """Return a new Unix stream socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def write_all(data: bytes) -> None:
    """Write to stdout."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def copy_stdin(connection: socket.socket) -> None:
    """Copy stdin to the socket, then end its input."""
    try:
        while True:
            data = os.read(0, CHUNK_SIZE)
            if not data:
                break
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # closed by the other side, which the copy from the socket sees


def relay_connection(connection: socket.socket) -> None:
    """Copy both ways until both have ended."""
    write_all(b"+")
    sender = threading.Thread(target=copy_stdin, args=(connection,))
    sender.start()
    data = b"any"
    while data:
        try:
            data = connection.recv(CHUNK_SIZE)
        except OSError:  # reset
            data = b""
        write_all(len(data).to_bytes(4, "big") + data)
    sender.join()


def connect_socket(path: str) -> None:
    """Connect to ``path`` and copy."""
    connection = open_socket()
    connection.connect(path)
    relay_connection(connection)


def accept_from_queue(queue: str) -> None:
    """Get the next connection from the program that listens, and copy."""
    control = open_socket()
    control.connect(queue)
    size = array.array("i").itemsize
    _, messages, _, _ = control.recvmsg(1, socket.CMSG_SPACE(size))
    rights = array.array("i")
    for _level, _kind, data in messages:
        rights.frombytes(data[:size])
    if not rights:
        raise OSError("no connection is waiting")
    relay_connection(socket.socket(fileno=rights[0]))


def remove_socket(path: str) -> None:
    """Remove a socket, and nothing that is not one."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except OSError:
        pass


def listen_on_socket(path: str) -> None:
    """Announce connections, and hand them over through a queue, until stdin ends."""
    directory = tempfile.mkdtemp(prefix="danlu-ssh-")
    listener, queue = open_socket(), open_socket()
    bound = False
    try:
        os.umask(0o177)  # as OpenSSH's StreamLocalBindMask
        queue.bind(os.path.join(directory, "queue"))
        queue.listen(BACKLOG)
        listener.bind(path)
        bound = True
        listener.listen(BACKLOG)
        write_all(b"=" + os.fsencode(queue.getsockname()) + b"\n")
        hand_over_connections(listener, queue)
    finally:
        if bound:
            remove_socket(path)
        shutil.rmtree(directory, ignore_errors=True)


def hand_over_connections(listener: socket.socket, queue: socket.socket) -> None:
    """Accept connections and pass each to one process that asks for it."""
    waiting: list[socket.socket] = []
    while True:
        sources: list[Any] = [0, listener, *([queue] if waiting else [])]
        ready, _, _ = select.select(sources, [], [])
        if 0 in ready and not os.read(0, CHUNK_SIZE):
            return
        if listener in ready:
            waiting.append(listener.accept()[0])
            write_all(b"+")
        if queue in ready:
            control, _ = queue.accept()
            with control, waiting.pop(0) as connection:
                rights = array.array("i", [connection.fileno()])
                control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def main() -> None:
    """Do what the arguments say; report an error in one line."""
    action, path = sys.argv[1:]
    actions = {"connect": connect_socket, "accept": accept_from_queue, "listen": listen_on_socket}
    try:
        actions[action](path)
    except OSError as error:
        message = (error.strerror or str(error)).encode()[:500]
        write_all(b"-" + message.replace(b"\n", b" ") + b"\n")


if __name__ == "__main__":
    main()
