"""What of this machine the jobs of one user have: addresses, ports and GPUs, none given twice.

One file, changed under a lock. An owner is the directory of a job; what it has is free again when
nobody holds the job's lock any more, whatever became of it.
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
from danlu.jobs.local.state import Place, held
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

__all__ = ["Ledger", "Seat", "ledger_file"]

_ADDRESSES = int(IPv4Address("127.64.0.1")), int(IPv4Address("127.127.255.0"))
# Below those that the kernel gives to outgoing connections (net.ipv4.ip_local_port_range).
_PORTS = 20000, 32000


class Seat(msgspec.Struct, frozen=True):
    """Where one replica sits: its address and its port."""

    address: str
    port: int


class _Owner(msgspec.Struct):
    seats: dict[str, Seat] = {}
    gpus: list[int] = []
    since: int = 0


class _Book(msgspec.Struct):
    next_address: int = _ADDRESSES[0]
    next_port: int = _PORTS[0]
    turn: int = 0
    owners: dict[str, _Owner] = {}


def ledger_file() -> Path:
    """Where the user's ledger of this machine lies: one for all danlu homes, until it restarts.

    Raises :class:`MachineError` where somebody else made the directory.
    """
    directory = Path(f"/tmp/danlu-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    there = os.lstat(directory)
    if there.st_uid != os.getuid() or not stat.S_ISDIR(there.st_mode):
        raise MachineError(f"{directory} is somebody else's", hint="have it removed")
    return directory / "ledger.json"


class Ledger:
    """The ledger in the file ``path``, as the job in ``owner`` uses it."""

    def __init__(self, path: Path, owner: Path) -> None:
        self._path = path
        self._owner = str(owner)

    def seats(self, replicas: Sequence[str], *, wanted: int, common: bool) -> Mapping[str, Seat]:
        """A seat for each replica, the one it has where it has one.

        The port is ``wanted`` where nobody has or uses it; all have one port when ``common``.
        Ports differ across addresses too, for many programs listen on all of them.
        """
        with self._open() as book:
            mine = book.owners.setdefault(self._owner, _Owner())
            for replica in replicas:
                if replica not in mine.seats:
                    shared = [seat.port for seat in mine.seats.values()] if common else []
                    port = _port(book, wanted, shared)
                    mine.seats[replica] = Seat(_address(book), port)
            return {replica: mine.seats[replica] for replica in replicas}

    def gpus(self, number: int, present: Sequence[int]) -> tuple[int, ...] | None:
        """``number`` GPUs of those ``present`` for this job in all, or None: it has to wait.

        Those who wait are served in the order in which they came.
        """
        with self._open() as book:
            mine = book.owners.setdefault(self._owner, _Owner())
            if len(mine.gpus) >= number:
                return tuple(mine.gpus)
            if not mine.since:
                book.turn += 1
                mine.since = book.turn
            earlier = [one for one in book.owners.values() if 0 < one.since < mine.since]
            taken = {gpu for one in book.owners.values() for gpu in one.gpus}
            free = [gpu for gpu in present if gpu not in taken]
            if earlier or len(free) < number - len(mine.gpus):
                return None
            mine.gpus += free[: number - len(mine.gpus)]
            mine.since = 0
            return tuple(mine.gpus)

    def give_gpus_back(self) -> None:
        """Have no GPUs any more, and wait for none."""
        with self._open() as book:
            mine = book.owners.get(self._owner)
            if mine is not None:
                mine.gpus, mine.since = [], 0

    def leave(self) -> None:
        """Have nothing any more."""
        with self._open() as book:
            book.owners.pop(self._owner, None)

    @contextmanager
    def _open(self) -> Iterator[_Book]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self._path.with_suffix(".lock")):
            book = self._read()
            for name in list(book.owners):
                if name != self._owner and not held(Place(Path(name)).lock):
                    del book.owners[name]
            yield book
            write_atomic(self._path, msgspec.json.encode(book), mode=0o600, sync=False)

    def _read(self) -> _Book:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Book)
        except (FileNotFoundError, msgspec.MsgspecError):
            return _Book()


def _address(book: _Book) -> str:
    """The next address that nobody has: one that was had lately may still have its connections."""
    taken = {seat.address for owner in book.owners.values() for seat in owner.seats.values()}
    while True:
        address = str(IPv4Address(book.next_address))
        first, last = _ADDRESSES
        book.next_address = first + (book.next_address + 1 - first) % (last - first)
        if address not in taken:
            return address


def _port(book: _Book, wanted: int, shared: Sequence[int]) -> int:
    if shared:
        return shared[0]
    taken = {seat.port for owner in book.owners.values() for seat in owner.seats.values()}
    if wanted not in taken and _is_free(wanted):
        return wanted
    first, last = _PORTS
    for _ in range(last - first):
        port = book.next_port
        book.next_port = first + (port + 1 - first) % (last - first)
        if port not in taken and _is_free(port):
            return port
    raise OSError(f"no port from {first} to {last} is free")


def _is_free(port: int) -> bool:
    """Whether a program could listen on ``port`` of all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
            trial.listen(1)
        except OSError:
            return False
    return True
