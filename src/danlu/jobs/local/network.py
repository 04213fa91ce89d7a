"""The network of a job's containers: a namespace a replica, all on one switch, and a way outside.

The switch stands in a namespace of its own, so nothing of it is on this machine's network, jobs
cannot meet, and the kernel takes all of it away when the supervisor dies. The way outside is
``slirp4netns``, a user-mode network stack that is one more member on the switch: it needs neither
rights nor address translation. Names are in ``/etc/hosts``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from danlu.errors import MachineError
from danlu.jobs.local.containerprogram import spawn
from danlu.sandbox import netns
from danlu.sandbox.types import SYSTEM_PATH
from danlu.training.types import ReplicaId

__all__ = ["JobNetwork", "address"]

# Each job has this network for itself; it hides one of this machine's only from its containers.
_NETWORK, _PREFIX = "10.213.0.0", 16
# Where slirp4netns puts itself: libslirp takes the second and the third address.
_GATEWAY, _NAMESERVER = "10.213.0.2", "10.213.0.3"
_A_ROW = 250
_PATIENCE = 5.0
_TAP = "outside"
_TUN = Path("/dev/net/tun")


def address(number: int) -> str:
    """The address of a job's replica, counted from 0 over all of them.

    Raises :class:`MachineError` for the 62,501st.
    """
    row, place = divmod(number, _A_ROW)
    if row >= _A_ROW:
        raise MachineError(f"a job of more than {_A_ROW * _A_ROW} containers does not fit here")
    return f"10.213.{row + 1}.{place + 1}"


class _Member(msgspec.Struct, frozen=True):
    """One replica's namespace, of one attempt."""

    attempt: int
    place: Path


class JobNetwork:
    """One job's network; ``place`` is a new directory for what stands for its namespaces.

    Calls block, but for :meth:`connect`. Needs :func:`danlu.sandbox.userns.enter`.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._switch = place / "switch"
        self._members: dict[ReplicaId, _Member] = {}
        self._outside: int | None = None
        self._program, self.warning = _outside_program()

    def open(self) -> None:
        """Make the switch; raises :class:`MachineError` where this machine has none."""
        if self._switch.exists():
            return
        self._place.mkdir(exist_ok=True)
        try:
            netns.create_switch(self._switch)
        except OSError as error:
            raise _refused(error) from error

    def join(self, replica: ReplicaId, *, attempt: int, address: str) -> tuple[Path, bool]:
        """The namespace of a replica's attempt, and whether it was made now; an older one goes.

        Raises :class:`MachineError` where it cannot be made.
        """
        known = self._members.get(replica)
        if known is not None and known.attempt == attempt:
            return known.place, False
        place = self._place / f"{replica}.{attempt}"
        try:
            self._leave(replica)
            netns.create(place)
            self._members[replica] = _Member(attempt, place)
            netns.plug_in(
                place,
                self._switch,
                port=f"r{address.removeprefix('10.213.')}",
                address=address,
                prefix=_PREFIX,
                gateway=_GATEWAY,
            )
        except OSError as error:
            raise _refused(error) from error
        return place, True

    @property
    def resolver(self) -> str:
        """The text of ``/etc/resolv.conf`` inside."""
        if self._outside is None:
            return ""
        return "\n".join([f"nameserver {_NAMESERVER}", *_own_search(), ""])

    async def connect(self) -> None:
        """Open the way outside, where there is a program for it; else :attr:`warning` says why."""
        if self._program is None or self._outside is not None:
            return
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            log = os.open(self._place / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            command = [*self._program, "--ready-fd=3", str(self._switch), _TAP]
            try:
                pid = spawn(command, stdin=empty, stdout=empty, stderr=log, more=[write])
            finally:
                for descriptor in (log, empty, write):
                    os.close(descriptor)
            await self._plug_when_ready(read, pid)
        finally:
            os.close(read)

    async def _plug_when_ready(self, read: int, pid: int) -> None:
        with anyio.move_on_after(_PATIENCE):
            await anyio.wait_readable(read)
            if os.read(read, 1):
                await to_thread.run_sync(netns.plug, self._switch, _TAP)
                self._outside = pid
                return
        _end(pid)
        lines = (self._place / "log").read_text(errors="replace").splitlines()
        self._program = None
        self.warning = _warning(lines[-1] if lines else "slirp4netns did not start")

    def close(self) -> None:
        """Take all of it away."""
        if self._outside is not None:
            _end(self._outside)
            self._outside = None
        for replica in tuple(self._members):
            self._leave(replica)
        if self._switch.exists():
            netns.remove(self._switch)

    def _leave(self, replica: ReplicaId) -> None:
        member = self._members.pop(replica, None)
        if member is not None:
            netns.remove(member.place)


def _outside_program() -> tuple[Sequence[str] | None, str]:
    """The command line of the way outside without its last words, else why there is none."""
    program, setpriv = (
        shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)
        for name in ("slirp4netns", "setpriv")
    )
    if program is None or setpriv is None:
        return None, _warning("install slirp4netns for that")
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return None, _warning(f"{_TUN} is closed to this account or not there")
    return (
        *(setpriv, "--pdeathsig", "KILL", "--"),
        *(program, f"--cidr={_NETWORK}/{_PREFIX}", f"--mtu={netns.MTU}"),
        *("--disable-host-loopback", "--netns-type=path"),
    ), ""


def _warning(why: str) -> str:
    return f"network: containers reach one another and nothing outside: {why}"


def _own_search() -> list[str]:
    """What this machine adds to names and how it asks (resolv.conf(5))."""
    try:
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.split()[:1] in (["search"], ["options"], ["domain"])]


def _refused(error: OSError) -> MachineError:
    return MachineError(
        f"the containers' network could not be made: {error.strerror} ({error.filename})",
        hint="the kernel needs veth and bridge, and in a container --privileged; or run the job"
        " with --host-python",
    )


def _end(pid: int) -> None:
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return
