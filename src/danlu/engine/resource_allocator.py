"""Allocate addresses, ports and GPUs of this machine to the jobs and environments of one user.

The state is one file, modified under a lock. An owner is the directory of a job or an environment;
its resources are free again as soon as no process holds the directory's lock, no matter how it
ended.
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

from danlu.engine.supervisor_directory import SupervisorDirectory
from danlu.errors import MachineError
from danlu.util.decoding import decode_json
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

_ADDRESS_RANGE = int(IPv4Address("127.64.0.1")), int(IPv4Address("127.127.255.0"))
# Below the ephemeral ports of outgoing connections (net.ipv4.ip_local_port_range).
_PORT_RANGE = 20000, 32000
#: Where allocations are recorded, instead of in /tmp.
_DIRECTORY_VARIABLE = "DANLU_ALLOCATION_DIR"


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


def ledger_file(uid: int | None = None) -> Path:
    """Return the user's allocation file, shared by all danlu homes; it lasts until a reboot.

    ``uid`` is that of the user outside of namespaces, if this process has entered one. Raises
    :class:`MachineError` if the directory belongs to another user.
    """
    default = f"/tmp/danlu-{os.getuid() if uid is None else uid}"
    directory = Path(os.environ.get(_DIRECTORY_VARIABLE) or default)
    directory.mkdir(mode=0o700, exist_ok=True)
    # Anybody can create this path in /tmp first, also as a link.
    status = os.lstat(directory)
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise MachineError(
            f"{directory} belongs to another user", hint="ask its owner or root to remove it"
        )
    return directory / "ledger.json"


class ResourceAllocator:
    """Allocates from the file ``path`` on behalf of the job or environment in ``owner``."""

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

    def claim_gpus(
        self, number: int, present: Sequence[int], *, share: bool
    ) -> tuple[int, ...] | None:
        """Return ``number`` GPUs at once, or None if too few are free.

        With ``share`` GPUs that others have make up for those that are missing.
        """
        with self._locked_state() as state:
            record = state.owners.setdefault(self._owner, _OwnerRecord())
            others = [owner for name, owner in state.owners.items() if name != self._owner]
            taken = {gpu for owner in others for gpu in owner.gpus}
            free = [gpu for gpu in present if gpu not in taken]
            if share:
                free += [gpu for gpu in present if gpu in taken]
            if len(free) < number:
                return None
            record.gpus = sorted(free[:number])
            return tuple(record.gpus)

    def record_gpus(self, gpus: Sequence[int]) -> None:
        """Record GPUs that the user chose, whether or not others have them."""
        with self._locked_state() as state:
            state.owners.setdefault(self._owner, _OwnerRecord()).gpus = sorted(gpus)

    def list_other_users(self, gpus: Sequence[int]) -> list[str]:
        """Return who else has one of ``gpus``: ``job first``, ``environment dev``."""
        with self._locked_state() as state:
            return sorted(
                _describe_owner(name)
                for name, owner in state.owners.items()
                if name != self._owner and not set(gpus).isdisjoint(owner.gpus)
            )

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
                if name != self._owner and not SupervisorDirectory(Path(name)).is_running():
                    del state.owners[name]
            yield state
            write_atomic(self._path, msgspec.json.encode(state), mode=0o600, sync=False)

    def _read_state(self) -> _AllocationState:
        return _read_state(self._path)


def read_gpu_owners(path: Path) -> dict[Path, tuple[int, ...]]:
    """Return the GPUs of each job's or environment's directory, from the file ``path``."""
    found = {Path(name): tuple(owner.gpus) for name, owner in _read_state(path).owners.items()}
    return {
        directory: gpus
        for directory, gpus in found.items()
        if gpus and SupervisorDirectory(directory).is_running()
    }


def _read_state(path: Path) -> _AllocationState:
    try:
        return decode_json(path.read_bytes(), _AllocationState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return _AllocationState()


def _describe_owner(name: str) -> str:
    directory = Path(name)
    kinds = {"environments": "environment", "jobs": "job"}
    kind = kinds.get(directory.parent.name)
    return f"{kind} {directory.name}" if kind else "a `danlu run`"


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
