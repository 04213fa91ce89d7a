"""Allocate addresses, ports and GPUs of this machine to the jobs of one user.

The state is one file, modified under a lock. An owner is the directory of a job; its resources are
free again as soon as no process holds the job's lock, no matter how the job ended.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.jobs.local.job_directory import JobDirectory
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock, lock_is_held

_ADDRESS_RANGE = int(IPv4Address("127.64.0.1")), int(IPv4Address("127.127.255.0"))
# Below the ephemeral ports of outgoing connections (net.ipv4.ip_local_port_range).
_PORT_RANGE = 20000, 32000


class ReplicaEndpoint(msgspec.Struct, frozen=True):
    """The address and port of one replica."""

    address: str
    port: int


# The names of these fields are the format of the file, which older versions share.
class _OwnerRecord(msgspec.Struct):
    seats: dict[str, ReplicaEndpoint] = {}
    gpus: list[int] = []
    since: int = 0


class _AllocationState(msgspec.Struct):
    next_address: int = _ADDRESS_RANGE[0]
    next_port: int = _PORT_RANGE[0]
    turn: int = 0
    owners: dict[str, _OwnerRecord] = {}


def ledger_file() -> Path:
    """Return the user's allocation file, shared by all danlu homes; it lasts until a reboot.

    Raises :class:`MachineError` if the directory belongs to another user.
    """
    directory = Path(f"/tmp/danlu-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    # Anybody can create this path in /tmp first, also as a link.
    status = os.lstat(directory)
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise MachineError(
            f"{directory} belongs to another user", hint="ask its owner or root to remove it"
        )
    return directory / "ledger.json"


class ResourceAllocator:
    """Allocates from the file ``path`` on behalf of the job whose directory is ``owner``."""

    def __init__(self, path: Path, owner: Path) -> None:
        self._path = path
        self._owner = str(owner)

    def allocate_endpoints(
        self, replicas: Sequence[str], *, wanted: int, common: bool
    ) -> Mapping[str, ReplicaEndpoint]:
        """Return an endpoint for each replica, the same as before if it already has one.

        The port is ``wanted`` if it is free; with ``common`` all replicas get the same port. Ports
        of different jobs differ even between addresses, because many programs listen on all
        addresses.
        """
        with self._locked_state() as state:
            record = state.owners.setdefault(self._owner, _OwnerRecord())
            for replica in replicas:
                if replica not in record.seats:
                    shared = [seat.port for seat in record.seats.values()] if common else []
                    port = _pick_port(state, wanted, shared)
                    record.seats[replica] = ReplicaEndpoint(_pick_address(state), port)
            return {replica: record.seats[replica] for replica in replicas}

    def allocate_gpus(self, number: int, present: Sequence[int]) -> tuple[int, ...] | None:
        """Return ``number`` GPUs for the whole job, or None if it has to wait.

        ``present`` are the machine's GPUs. Waiting jobs are served first come, first served.
        """
        with self._locked_state() as state:
            record = state.owners.setdefault(self._owner, _OwnerRecord())
            if len(record.gpus) >= number:
                return tuple(record.gpus)
            if not record.since:
                state.turn += 1
                record.since = state.turn
            earlier = [owner for owner in state.owners.values() if 0 < owner.since < record.since]
            taken = {gpu for owner in state.owners.values() for gpu in owner.gpus}
            free = [gpu for gpu in present if gpu not in taken]
            if earlier or len(free) < number - len(record.gpus):
                return None
            record.gpus += free[: number - len(record.gpus)]
            record.since = 0
            return tuple(record.gpus)

    def release_gpus(self) -> None:
        """Release the job's GPUs and its place in the queue for them."""
        with self._locked_state() as state:
            record = state.owners.get(self._owner)
            if record is not None:
                record.gpus, record.since = [], 0

    def release(self) -> None:
        """Release everything the job has."""
        with self._locked_state() as state:
            state.owners.pop(self._owner, None)

    @contextmanager
    def _locked_state(self) -> Iterator[_AllocationState]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path.with_suffix(".lock")):
            state = self._read_state()
            for name in list(state.owners):
                if name != self._owner and not lock_is_held(JobDirectory(Path(name)).lock):
                    del state.owners[name]
            yield state
            write_atomic(self._path, msgspec.json.encode(state), mode=0o600, sync=False)

    def _read_state(self) -> _AllocationState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_AllocationState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return _AllocationState()


def _pick_address(state: _AllocationState) -> str:
    """Return the next free address; recently freed ones may still have open connections."""
    taken = {seat.address for owner in state.owners.values() for seat in owner.seats.values()}
    while True:
        address = str(IPv4Address(state.next_address))
        first, last = _ADDRESS_RANGE
        state.next_address = first + (state.next_address + 1 - first) % (last - first)
        if address not in taken:
            return address


def _pick_port(state: _AllocationState, wanted: int, shared: Sequence[int]) -> int:
    if shared:
        return shared[0]
    taken = {seat.port for owner in state.owners.values() for seat in owner.seats.values()}
    if wanted not in taken and _is_free(wanted):
        return wanted
    first, last = _PORT_RANGE
    for _ in range(last - first):
        port = state.next_port
        state.next_port = first + (port + 1 - first) % (last - first)
        if port not in taken and _is_free(port):
            return port
    raise OSError(f"all ports from {first} to {last} are in use")


def _is_free(port: int) -> bool:
    """Return whether a program could listen on ``port`` of all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            # With SO_REUSEADDR two sockets may be bound to a port; only listening fails
            # (socket(7)).
            listener.listen(1)
        except OSError:
            return False
    return True
