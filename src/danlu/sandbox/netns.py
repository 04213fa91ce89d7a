"""Network namespaces of our own: several machines on one switch, as far as programs can see.

A namespace is a file here (a mount, in this process's own view): what is made goes with the
process, however it ends. Needs :func:`danlu.sandbox.userns.enter`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from danlu.sandbox import _linux
from danlu.sandbox._netlink import Links

__all__ = ["MTU", "create", "create_switch", "inside", "plug", "plug_in", "remove", "unplug"]

T = TypeVar("T")

_SWITCH = "switch"
_LINK = "eth0"
#: The most that user-mode networking takes in a piece, and large enough to cost little.
MTU = 65520


def create(place: Path) -> None:
    """Make a network namespace with a loopback, as the file ``place``; raises :class:`OSError`."""
    place.touch(exist_ok=False)

    def act() -> None:
        _linux.unshare(_linux.CLONE_NEWNET)
        with Links() as links:
            links.up("lo")
        _linux.mount("/proc/thread-self/ns/net", str(place), flags=_linux.MS_BIND)

    try:
        _in_thread(act)
    except BaseException:
        place.unlink()
        raise


def create_switch(place: Path) -> None:
    """Make a namespace for a switch, to which others are plugged in; raises :class:`OSError`."""
    create(place)

    def act() -> None:
        with Links() as links:
            links.bridge(_SWITCH, mtu=MTU)
            links.up(_SWITCH)

    inside(place, act)


def plug_in(
    place: Path, switch: Path, *, port: str, address: str, prefix: int, gateway: str
) -> None:
    """Join the namespace ``place`` to a switch, by a link ``eth0`` of that address.

    ``port`` names the other end (15 bytes at most); an older one of that name is removed. The
    hardware address follows from ``address``, so that a successor is known by its neighbours at
    once. Raises :class:`OSError`.
    """
    mac = b"\x02\x42" + bytes(int(part) for part in address.split("."))
    unplug(switch, port)
    descriptor = os.open(switch, os.O_RDONLY | os.O_CLOEXEC)

    def act() -> None:
        with Links() as links:
            links.veth(_LINK, mac=mac, mtu=MTU, peer=port, peer_namespace=descriptor)
            links.address(_LINK, address, prefix=prefix)
            links.up(_LINK)
            links.default_route(_LINK, gateway)

    try:
        inside(place, act)
    finally:
        os.close(descriptor)
    plug(switch, port)


def plug(switch: Path, port: str) -> None:
    """Join a link that is in the switch's namespace to it; raises :class:`OSError`."""

    def act() -> None:
        with Links() as links:
            links.enslave(port, _SWITCH)

    inside(switch, act)


def unplug(switch: Path, port: str) -> None:
    """Remove a link from a switch; nothing where there is none."""

    def act() -> None:
        with Links() as links:
            links.remove(port)

    try:
        inside(switch, act)
    except OSError:
        return


def remove(place: Path) -> None:
    """Let go of a namespace: it goes with its last process, and its links with it."""
    try:
        _linux.umount(str(place), _linux.MNT_DETACH)
    finally:
        place.unlink(missing_ok=True)


def inside(place: Path, act: Callable[[], T]) -> T:
    """What ``act`` gives in the namespace ``place``; sockets that it makes stay there."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> T:
        _linux.setns(descriptor, _linux.CLONE_NEWNET)
        return act()

    try:
        return _in_thread(enter)
    finally:
        os.close(descriptor)


def _in_thread(act: Callable[[], T]) -> T:
    """What ``act`` gives in a thread of its own, which may leave the namespaces of the others."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
