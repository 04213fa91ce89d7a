"""Links, addresses and routes of the calling thread's network namespace (rtnetlink(7)).

The few requests a sandbox needs, spoken to the kernel directly: no program has to be there.
"""

from __future__ import annotations

import os
import socket
import struct
from types import TracebackType

__all__ = ["Links"]

_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE = 16, 17, 20, 24
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_ERROR = 2
_UP = 1  # IFF_UP
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NS_FD = (
    *(1, 3, 4, 10),
    *(18, 28),
)
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5
_TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNICAST = 254, 4, 1


class Links:
    """A conversation about the links of a network namespace; every method raises :class:`OSError`.

    ``links.bridge("switch"); links.up("switch")``.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)

    def __enter__(self) -> Links:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._socket.close()

    def up(self, name: str) -> None:
        """Set a link up; a loopback then has its address."""
        self._ask(_NEWLINK, _link(socket.if_nametoindex(name), flags=_UP), name)

    def bridge(self, name: str, *, mtu: int) -> None:
        """Make a bridge: a switch between the links that are joined to it."""
        body = _link() + _text(_IFLA_IFNAME, name) + _number(_IFLA_MTU, mtu) + _kind("bridge")
        self._ask(_NEWLINK, body, name, _CREATE | _EXCL)

    def veth(self, name: str, *, mac: bytes, mtu: int, peer: str, peer_namespace: int) -> None:
        """Make a pair of links, ``peer`` in the namespace of that descriptor."""
        other = _link() + _text(_IFLA_IFNAME, peer) + _number(_IFLA_NS_FD, peer_namespace)
        other += _number(_IFLA_MTU, mtu)
        body = _link() + _text(_IFLA_IFNAME, name) + _number(_IFLA_MTU, mtu)
        body += _attribute(_IFLA_ADDRESS, mac)
        body += _kind("veth", _attribute(_VETH_PEER, other))
        self._ask(_NEWLINK, body, name, _CREATE | _EXCL)

    def enslave(self, name: str, bridge: str) -> None:
        """Join a link to a bridge, and set it up."""
        master = _number(_IFLA_MASTER, socket.if_nametoindex(bridge))
        self._ask(_NEWLINK, _link(socket.if_nametoindex(name), flags=_UP) + master, name)

    def remove(self, name: str) -> None:
        """Remove a link, and the other end of a pair."""
        self._ask(_DELLINK, _link(socket.if_nametoindex(name)), name)

    def address(self, name: str, address: str, *, prefix: int) -> None:
        """Give a link an address (IPv4) and with it the route to its neighbours."""
        packed = socket.inet_aton(address)
        index = socket.if_nametoindex(name)
        body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
        body += _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._ask(_NEWADDR, body, address, _CREATE | _EXCL)

    def default_route(self, name: str, gateway: str) -> None:
        """Send what is for nobody here to ``gateway`` by way of a link."""
        kinds = (_TABLE_MAIN, _PROTOCOL_STATIC, 0, _TYPE_UNICAST)
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, *kinds, 0)
        body += _attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
        body += _number(_RTA_OIF, socket.if_nametoindex(name))
        self._ask(_NEWROUTE, body, gateway, _CREATE | _EXCL)

    def _ask(self, kind: int, body: bytes, subject: str, flags: int = 0) -> None:
        length = 16 + len(body)
        self._socket.send(struct.pack("=IHHII", length, kind, _REQUEST | _ACK | flags, 1, 0) + body)
        answer = self._socket.recv(65536)
        _, answered, _, _, _, code = struct.unpack_from("=IHHIIi", answer)
        if answered != _ERROR or code:
            raise OSError(-code, os.strerror(-code), subject)


def _link(index: int = 0, *, flags: int = 0) -> bytes:
    return struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def _kind(name: str, data: bytes = b"") -> bytes:
    details = _attribute(_INFO_DATA, data) if data else b""
    return _attribute(_IFLA_LINKINFO, _text(_INFO_KIND, name) + details)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))
