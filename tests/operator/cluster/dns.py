"""A DNS server for pods, which resolves the names of Services as a cluster's does.

One thread and one socket; the addresses are read at every question.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["serve_names"]

_DOMAIN = "cluster.local"
_A, _ANY = 1, 255
_NO_NAME, _ANSWER = 3, 0x8480


def _parse_question(question: bytes) -> tuple[str, int, int]:
    """Return the name, the type, and the end of the question (RFC 1035, section 4.1.2)."""
    labels, at = [], 12
    while (length := question[at]) != 0:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    (kind,) = struct.unpack_from(">H", question, at + 1)
    return ".".join(labels).lower(), kind, at + 5


def _render_answer(question: bytes, addresses: list[str] | None) -> bytes:
    _, kind, end = _parse_question(question)
    result = (addresses or []) if kind in (_A, _ANY) else []
    flags = _ANSWER | (_NO_NAME if addresses is None else 0)
    head = question[:2] + struct.pack(">HHHHH", flags, 1, len(result), 0, 0)
    # Each points back to the name of the question, and is true for no second longer.
    records = [
        struct.pack(">HHHIH", 0xC00C, _A, 1, 0, 4) + socket.inet_aton(address) for address in result
    ]
    return head + question[12:end] + b"".join(records)


@contextmanager
def serve_names(
    address: str, lookup: Callable[[str, str, str], list[str] | None]
) -> Iterator[None]:
    """Answer at ``address``, port 53.

    ``lookup`` gives addresses by Service, namespace, and host name of a pod if it is asked for.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        server.settimeout(0.2)
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                try:
                    question, sender = server.recvfrom(4096)
                except TimeoutError:
                    continue
                name = _parse_question(question)[0].removesuffix(f".svc.{_DOMAIN}")
                host, *place = ["", *name.split(".")] if name.count(".") == 1 else name.split(".")
                addresses = lookup(place[0], place[1], host) if len(place) == 2 else None
                server.sendto(_render_answer(question, addresses), sender)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
