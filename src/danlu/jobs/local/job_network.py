"""The network of a job's containers: one namespace per replica, a switch, and Internet access.

The switch is in a separate namespace. It does not show up in the host's network, jobs cannot
reach each other, and the kernel removes everything when the supervisor dies. slirp4netns
(:mod:`danlu.sandbox.netns`) connects the switch to the Internet. ``/etc/hosts`` has the names of
the replicas, and selected ports of the host's loopback address are forwarded.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from anyio import to_thread

from danlu.engine.slirp_network import SlirpProcess, connect_namespace, render_resolver
from danlu.errors import MachineError
from danlu.sandbox import netns
from danlu.training.types import ReplicaId

# Every job uses this network. It hides a host network of the same range from containers only.
_NETWORK, _PREFIX = "10.213.0.0", 16
# libslirp always takes the second and third addresses of the network.
_GATEWAY, _NAMESERVER = "10.213.0.2", "10.213.0.3"
_ROW_SIZE = 250
_TAP_NAME = "outside"


def replica_address(number: int) -> str:
    """Return the address of the replica with this number, counted over all types from 0.

    Raises :class:`MachineError` above 62,500 replicas.
    """
    row, column = divmod(number, _ROW_SIZE)
    if row >= _ROW_SIZE:
        limit = _ROW_SIZE * _ROW_SIZE
        raise MachineError(f"a job on this machine can have at most {limit} containers")
    return f"10.213.{row + 1}.{column + 1}"


class _ReplicaNamespace(msgspec.Struct, frozen=True):
    attempt: int
    path: Path


class JobNetwork:
    """One job's network; ``directory`` is a new directory for the namespaces' mount points.

    All methods but :meth:`connect` block. Requires :func:`danlu.sandbox.userns.enter`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._switch = directory / "switch"
        self._namespaces: dict[ReplicaId, _ReplicaNamespace] = {}
        self._slirp: SlirpProcess | None = None
        self.warning = ""

    def open(self) -> None:
        """Create the switch; raises :class:`MachineError` if this machine does not allow it."""
        if self._switch.exists():
            return
        self._directory.mkdir(exist_ok=True)
        try:
            netns.create_switch(self._switch)
        except OSError as error:
            raise _network_error(error) from error

    def join(self, replica: ReplicaId, *, attempt: int, address: str) -> tuple[Path, bool]:
        """Return the namespace of a replica's attempt, and whether it was created now.

        The namespace of an earlier attempt is removed. Raises :class:`MachineError` if it cannot be
        created.
        """
        existing = self._namespaces.get(replica)
        if existing is not None and existing.attempt == attempt:
            return existing.path, False
        path = self._directory / f"{replica}.{attempt}"
        try:
            self._remove_namespace(replica)
            netns.create_namespace(path)
            self._namespaces[replica] = _ReplicaNamespace(attempt, path)
            netns.connect_to_switch(
                path,
                self._switch,
                port=f"r{address.removeprefix('10.213.')}",
                address=address,
                prefix=_PREFIX,
                gateway=_GATEWAY,
            )
        except OSError as error:
            raise _network_error(error) from error
        return path, True

    @property
    def resolver(self) -> str:
        """The content of ``/etc/resolv.conf`` in the containers."""
        return "" if self._slirp is None else render_resolver(_NAMESERVER)

    async def connect(self) -> None:
        """Connect to the Internet; if that is not possible, :attr:`warning` says why."""
        if self._slirp is not None:
            return
        cidr, log = f"{_NETWORK}/{_PREFIX}", self._directory / "log"
        try:
            self._slirp = await connect_namespace(self._switch, _TAP_NAME, cidr=cidr, log=log)
        except MachineError as error:
            reason = error.message
            self.warning = (
                f"network: containers can reach each other, but not the Internet: {reason}"
            )
            return
        await to_thread.run_sync(netns.attach_port, self._switch, _TAP_NAME)

    def close(self) -> None:
        """Remove everything."""
        if self._slirp is not None:
            self._slirp.kill()
            self._slirp = None
        for replica in tuple(self._namespaces):
            self._remove_namespace(replica)
        if self._switch.exists():
            netns.remove_namespace(self._switch)

    def _remove_namespace(self, replica: ReplicaId) -> None:
        namespace = self._namespaces.pop(replica, None)
        if namespace is not None:
            netns.remove_namespace(namespace.path)


def _network_error(error: OSError) -> MachineError:
    return MachineError(
        f"cannot create the containers' network: {error.strerror} ({error.filename})",
        hint="the kernel needs veth and bridge, and danlu in a container needs --privileged;"
        " or run the job's processes on the host with --host-python",
    )
