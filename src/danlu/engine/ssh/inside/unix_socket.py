"""Connect to a Unix socket, or listen on one, and send the descriptors to stdin's other end.

::

    python3 -c TEXT connect PATH
    python3 -c TEXT listen PATH

Runs inside an environment as its user, so a path means what it means there. Each message on stdin,
a Unix socket, is ``+`` with a connected descriptor, ``=`` when it listens, or ``-`` and an error.
"""

from __future__ import annotations

import array
import os
import select
import socket
import stat
import sys


def send_descriptor(control: socket.socket, connection: socket.socket) -> None:
    """Send a connected socket."""
    rights = array.array("i", [connection.fileno()])
    control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def connect_socket(control: socket.socket, path: str) -> None:
    """Connect to ``path`` and send the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        send_descriptor(control, connection)


def remove_socket(path: str) -> None:
    """Remove a socket, and nothing that is not one."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except OSError:
        pass


def listen_on_socket(control: socket.socket, path: str) -> None:
    """Accept connections and send them until the other end of stdin is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        os.umask(0o177)  # as OpenSSH's StreamLocalBindMask
        listener.bind(path)
        try:
            listener.listen(128)
            control.sendall(b"=")
            while True:
                ready, _, _ = select.select([listener, control], [], [])
                if control in ready:
                    break
                connection, _ = listener.accept()
                with connection:
                    send_descriptor(control, connection)
        finally:
            remove_socket(path)


def main() -> None:
    """Do what the arguments say; report an error in one message."""
    action, path = sys.argv[1:]
    control = socket.socket(fileno=0)
    try:
        (listen_on_socket if action == "listen" else connect_socket)(control, path)
    except OSError as error:
        control.sendall(b"-" + (error.strerror or str(error)).encode()[:500])


if __name__ == "__main__":
    main()
