"""The network of a job's containers: one namespace per replica, a switch, and Internet access.

The switch is in a separate namespace. Nothing of it shows up in the host's network, jobs cannot
reach each other, and the kernel removes everything when the supervisor dies. slirp4netns
(:mod:`danlu.sandbox.netns`) connects the switch to the Internet. ``/etc/hosts`` has the names of
the replicas, and selected ports of the host's loopback address are forwarded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread

from danlu.engine.container_process import spawn_session
from danlu.errors import MachineError
from danlu.sandbox import netns
from danlu.training.types import ReplicaId

# Every job uses this network. It hides a host network of the same range from containers only.
_NETWORK, _PREFIX = "10.213.0.0", 16
# libslirp always takes the second and third addresses of the network.
_GATEWAY, _NAMESERVER = "10.213.0.2", "10.213.0.3"
_ROW_SIZE = 250
_SLIRP_TIMEOUT = 20.0
_TAP_NAME = "outside"
_OPTIONS = (
    *(f"--cidr={_NETWORK}/{_PREFIX}", f"--mtu={netns.MTU}", "--netns-type=path"),
    # Containers cannot reach the host's loopback, and slirp parses their packets sandboxed.
    *("--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"),
)

_LOOPBACK = "127.0.0.1"
_LOCAL_HOSTS = (_LOOPBACK, "localhost")
_CHUNK_SIZE = 65536


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
        self._slirp_pid: int | None = None
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
        if self._slirp_pid is None:
            return ""
        return "\n".join([f"nameserver {_NAMESERVER}", *_host_resolver_options(), ""])

    async def connect(self) -> None:
        """Connect to the Internet; if that is not possible, :attr:`warning` says why."""
        if self._slirp_pid is not None:
            return
        try:
            program = netns.find_slirp_command()
        except MachineError as error:
            self.warning = _format_warning(f"{error.message}; {error.hint}")
            return
        command = [*program, *_OPTIONS, "--ready-fd=3", str(self._switch), _TAP_NAME]
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            log = os.open(self._directory / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                pid = spawn_session(command, stdin=null, stdout=null, stderr=log, more=[write])
            finally:
                for descriptor in (log, null, write):
                    os.close(descriptor)
            await self._plug_when_ready(read, pid)
        finally:
            os.close(read)

    async def _plug_when_ready(self, read: int, pid: int) -> None:
        with anyio.move_on_after(_SLIRP_TIMEOUT):
            await anyio.wait_readable(read)
            if os.read(read, 1):
                await to_thread.run_sync(netns.attach_port, self._switch, _TAP_NAME)
                self._slirp_pid = pid
                return
        _kill_process(pid)
        lines = (self._directory / "log").read_text(errors="replace").splitlines()
        reason = lines[-1] if lines else "it printed no error"
        self.warning = _format_warning(f"slirp4netns failed: {reason}")

    def close(self) -> None:
        """Remove everything."""
        if self._slirp_pid is not None:
            _kill_process(self._slirp_pid)
            self._slirp_pid = None
        for replica in tuple(self._namespaces):
            self._remove_namespace(replica)
        if self._switch.exists():
            netns.remove_namespace(self._switch)

    def _remove_namespace(self, replica: ReplicaId) -> None:
        namespace = self._namespaces.pop(replica, None)
        if namespace is not None:
            netns.remove_namespace(namespace.path)


def _format_warning(reason: str) -> str:
    return f"network: containers can reach each other, but not the Internet: {reason}"


def _host_resolver_options() -> list[str]:
    """Return the host's search domains and resolver options (resolv.conf(5))."""
    try:
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.split()[:1] in (["search"], ["options"], ["domain"])]


def _network_error(error: OSError) -> MachineError:
    return MachineError(
        f"cannot create the containers' network: {error.strerror} ({error.filename})",
        hint="the kernel needs veth and bridge, and danlu in a container needs --privileged;"
        " or run the job's processes on the host with --host-python",
    )


def _kill_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return


# -- ports of the host's loopback -----------------------------------------------------------------


class PortForwarder:
    """Forwards ports of namespaces' ``127.0.0.1`` to the same ports of the host's."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def add(self, namespace: Path, ports: Iterable[int]) -> None:
        """Forward these ports of a namespace until :meth:`close`."""
        for port in ports:
            listener = await to_thread.run_sync(_listen_inside, namespace, port)
            serve = _PortForward(port).serve
            self._servers.append(await asyncio.start_server(serve, sock=listener))

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        self._servers.clear()


class _PortForward:
    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            host_reader, host_writer = await asyncio.open_connection(_LOOPBACK, self._port)
        except OSError:
            writer.close()
            return
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_copy_stream, reader, host_writer)
                group.start_soon(_copy_stream, host_reader, writer)
        finally:
            host_writer.close()
            writer.close()


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until EOF, and pass that on, so that connections may be half-closed."""
    try:
        while data := await reader.read(_CHUNK_SIZE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


def _listen_inside(namespace: Path, port: int) -> socket.socket:
    return netns.run_in_namespace(namespace, lambda: socket.create_server((_LOOPBACK, port)))


def proxy_ports(environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the local ports of the proxies that environment variables name."""
    ports = set()
    for name, value in environment.items():
        if name.lower().endswith("_proxy") and name.lower() != "no_proxy":
            with suppress(ValueError):
                url = urlsplit(value if "://" in value else f"http://{value}")
                if url.hostname in _LOCAL_HOSTS and url.port:
                    ports.add(url.port)
    return tuple(sorted(ports))
