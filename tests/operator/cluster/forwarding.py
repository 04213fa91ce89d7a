"""Services at their addresses, where pods look for them: connections are handed on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer

__all__ = ["forwarding"]


class _ForwardServer(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def forwarding(address: str, port: int, *, to: Callable[[], tuple[str, int]]) -> Iterator[None]:
    """Forward connections at an address of this machine; ``to`` returns the target of each.

    One that cannot be handed on ends at once, as at a Service without a pod.
    """

    class ForwardHandler(BaseRequestHandler):
        def handle(self) -> None:
            try:
                other = socket.create_connection(to(), timeout=60)
            except OSError:
                return
            with other:
                other.settimeout(None)
                back = threading.Thread(target=_copy_bytes, args=(other, self.request), daemon=True)
                back.start()
                _copy_bytes(self.request, other)
                back.join()

    with _ForwardServer((address, port), ForwardHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # The other side is gone: so is this connection.
        target.close()
