"""Network namespaces: containers of a job on one virtual switch, and slirp4netns as the way out.

A namespace is represented by a file that it is bind-mounted on, in this process's own mount
namespace: it disappears with the process, however that ends. Links, addresses and routes are
configured by rtnetlink(7) directly, so that no program is needed. Requires
:func:`danlu.sandbox.userns.enter`.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from danlu.errors import MachineError
from danlu.sandbox import _linux
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.pdeathsig import SETPRIV_OPTIONS

T = TypeVar("T")

_SWITCH = "switch"
_LINK = "eth0"
#: The largest that slirp4netns supports; large packets keep its overhead low.
MTU = 65520

_TUN_DEVICE = Path("/dev/net/tun")

# rtnetlink(7): message types, flags and attributes.
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


def create_namespace(place: Path) -> None:
    """Create a network namespace with a loopback as the file ``place``. Raises :class:`OSError`."""
    place.touch(exist_ok=False)

    def act() -> None:
        _linux.unshare(_linux.CLONE_NEWNET)
        with NetlinkSocket() as links:
            links.set_up("lo")
        # A bind mount keeps a namespace alive that has no process.
        _linux.mount("/proc/thread-self/ns/net", str(place), flags=_linux.MS_BIND)

    try:
        _run_in_thread(act)
    except BaseException:
        place.unlink()
        raise


def create_switch(place: Path) -> None:
    """Create a namespace with a bridge that others can connect to. Raises :class:`OSError`."""
    create_namespace(place)

    def act() -> None:
        with NetlinkSocket() as links:
            links.add_bridge(_SWITCH, mtu=MTU)
            links.set_up(_SWITCH)

    run_in_namespace(place, act)


def connect_to_switch(
    place: Path, switch: Path, *, port: str, address: str, prefix: int, gateway: str
) -> None:
    """Connect the namespace ``place`` to a switch by a link ``eth0`` with that address.

    ``port`` names the other end (at most 15 bytes); an older port of that name is removed. The MAC
    address is derived from ``address``, so that neighbours recognise a restarted container at once.
    Raises :class:`OSError`.
    """
    # The second bit of the first byte marks a locally administered address (IEEE 802).
    mac = b"\x02\x42" + bytes(int(part) for part in address.split("."))
    # The kernel destroys a namespace, and its links, some time after its last user has gone: the
    # port of the last attempt may still be there.
    detach_port(switch, port)
    descriptor = os.open(switch, os.O_RDONLY | os.O_CLOEXEC)

    def act() -> None:
        with NetlinkSocket() as links:
            links.add_veth(_LINK, mac=mac, mtu=MTU, peer=port, peer_namespace=descriptor)
            links.add_address(_LINK, address, prefix=prefix)
            links.set_up(_LINK)
            links.add_default_route(_LINK, gateway)

    try:
        run_in_namespace(place, act)
    finally:
        os.close(descriptor)
    attach_port(switch, port)


def attach_port(switch: Path, port: str) -> None:
    """Attach a link in the switch's namespace to the switch. Raises :class:`OSError`."""

    def act() -> None:
        with NetlinkSocket() as links:
            links.join_bridge(port, _SWITCH)

    run_in_namespace(switch, act)


def detach_port(switch: Path, port: str) -> None:
    """Remove a link from a switch if it exists."""

    def act() -> None:
        with NetlinkSocket() as links:
            links.remove_link(port)

    try:
        run_in_namespace(switch, act)
    except OSError:
        return


def remove_namespace(place: Path) -> None:
    """Release a namespace: the kernel destroys it, and its links, when its last process exits."""
    try:
        _linux.umount(str(place), _linux.MNT_DETACH)
    finally:
        place.unlink(missing_ok=True)


def run_in_namespace(place: Path, act: Callable[[], T]) -> T:
    """Return the result of ``act`` in the namespace ``place``; sockets it creates stay there."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> T:
        _linux.setns(descriptor, _linux.CLONE_NEWNET)
        return act()

    try:
        return _run_in_thread(enter)
    finally:
        os.close(descriptor)


def _run_in_thread(act: Callable[[], T]) -> T:
    """Return the result of ``act``, called in a new thread that may change its own namespaces."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    # setns(2) and unshare(2) change the namespace of the calling thread, and this one ends here.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def find_slirp_command() -> tuple[str, ...]:
    """Return the start of the slirp4netns command line, wrapped so that it exits when danlu does.

    slirp4netns is a network stack in user space that connects a namespace to this machine's
    network: connections leave as this account's own. So it needs no forwarding, address translation
    or firewall rules, which danlu could not get past Docker's rules, or would leave behind when it
    is killed. Raises :class:`MachineError`, with the remedy, if the program or its device is
    missing.
    """
    command: list[str] = []
    for name, package in (("setpriv", "util-linux"), ("slirp4netns", "slirp4netns")):
        program = shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
        if program is None:
            raise MachineError(
                f"{name} is not installed", hint=f"install it: `sudo apt-get install {package}`"
            )
        command += [program, *(SETPRIV_OPTIONS if name == "setpriv" else ())]
    if not _TUN_DEVICE.exists():
        raise MachineError(
            f"{_TUN_DEVICE} does not exist",
            hint="load it: `sudo modprobe tun`; start a container with `--device /dev/net/tun`",
        )
    if not os.access(_TUN_DEVICE, os.R_OK | os.W_OK):
        raise MachineError(
            f"this account cannot open {_TUN_DEVICE}",
            hint=f"allow it: `sudo chmod 0666 {_TUN_DEVICE}`",
        )
    return tuple(command)


class NetlinkSocket:
    """Configure links in the thread's network namespace; methods raise :class:`OSError`.

    ``links.add_bridge("switch", mtu=1500); links.set_up("switch")``.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._socket.close()

    def set_up(self, name: str) -> None:
        """Set a link up. A loopback then gets its address."""
        self._send_request(_NEWLINK, _encode_link(socket.if_nametoindex(name), flags=_UP), name)

    def add_bridge(self, name: str, *, mtu: int) -> None:
        """Create a bridge, which switches between the links that join it."""
        body = (
            _encode_link()
            + _encode_text(_IFLA_IFNAME, name)
            + _encode_number(_IFLA_MTU, mtu)
            + _encode_kind("bridge")
        )
        self._send_request(_NEWLINK, body, name, _CREATE | _EXCL)

    def add_veth(self, name: str, *, mac: bytes, mtu: int, peer: str, peer_namespace: int) -> None:
        """Create a pair of links, with ``peer`` in the namespace of that descriptor."""
        other = (
            _encode_link()
            + _encode_text(_IFLA_IFNAME, peer)
            + _encode_number(_IFLA_NS_FD, peer_namespace)
        )
        other += _encode_number(_IFLA_MTU, mtu)
        body = _encode_link() + _encode_text(_IFLA_IFNAME, name) + _encode_number(_IFLA_MTU, mtu)
        body += _encode_attribute(_IFLA_ADDRESS, mac)
        body += _encode_kind("veth", _encode_attribute(_VETH_PEER, other))
        self._send_request(_NEWLINK, body, name, _CREATE | _EXCL)

    def join_bridge(self, name: str, bridge: str) -> None:
        """Attach a link to a bridge and set it up."""
        master = _encode_number(_IFLA_MASTER, socket.if_nametoindex(bridge))
        self._send_request(
            _NEWLINK, _encode_link(socket.if_nametoindex(name), flags=_UP) + master, name
        )

    def remove_link(self, name: str) -> None:
        """Remove a link, and with it the other end of a pair."""
        self._send_request(_DELLINK, _encode_link(socket.if_nametoindex(name)), name)

    def add_address(self, name: str, address: str, *, prefix: int) -> None:
        """Give a link an IPv4 address, and thereby the route to its subnet."""
        packed = socket.inet_aton(address)
        index = socket.if_nametoindex(name)
        body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
        body += _encode_attribute(_IFA_LOCAL, packed) + _encode_attribute(_IFA_ADDRESS, packed)
        self._send_request(_NEWADDR, body, address, _CREATE | _EXCL)

    def add_default_route(self, name: str, gateway: str) -> None:
        """Route everything else to ``gateway`` through a link."""
        kinds = (_TABLE_MAIN, _PROTOCOL_STATIC, 0, _TYPE_UNICAST)
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, *kinds, 0)
        body += _encode_attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
        body += _encode_number(_RTA_OIF, socket.if_nametoindex(name))
        self._send_request(_NEWROUTE, body, gateway, _CREATE | _EXCL)

    def _send_request(self, kind: int, body: bytes, subject: str, flags: int = 0) -> None:
        length = 16 + len(body)
        self._socket.send(struct.pack("=IHHII", length, kind, _REQUEST | _ACK | flags, 1, 0) + body)
        answer = self._socket.recv(65536)
        _, answered, _, _, _, code = struct.unpack_from("=IHHIIi", answer)
        if answered != _ERROR or code:
            raise OSError(-code, os.strerror(-code), subject)


def _encode_link(index: int = 0, *, flags: int = 0) -> bytes:
    return struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def _encode_kind(name: str, data: bytes = b"") -> bytes:
    details = _encode_attribute(_INFO_DATA, data) if data else b""
    return _encode_attribute(_IFLA_LINKINFO, _encode_text(_INFO_KIND, name) + details)


def _encode_attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _encode_text(kind: int, text: str) -> bytes:
    return _encode_attribute(kind, text.encode() + b"\0")


def _encode_number(kind: int, number: int) -> bytes:
    return _encode_attribute(kind, struct.pack("=I", number))
