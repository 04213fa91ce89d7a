"""Forward ports of another machine to the same ports of this one, in the background."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import time
from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from danlu.remote.environment_access import TunnelPort
from danlu.remote.remote_host import RemoteHost, control_directory
from danlu.util.decoding import decode_json
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from danlu.util.sanitize import read_last_line

_LOOPBACK = "127.0.0.1"
_START_TIMEOUT = 15.0
_POLL_SECONDS = 0.05


class TunnelState(msgspec.Struct, frozen=True):
    """The ports that a background process was started for."""

    ports: tuple[TunnelPort, ...]


class PortTunnel:
    """One ssh process for all ports of one machine.

    It is the master of a shared connection, so that ssh itself tells whether it runs and stops it.
    """

    def __init__(self, host: RemoteHost, paths: Paths) -> None:
        self._host = host
        key = hashlib.sha256(host.url.encode()).hexdigest()[:16]
        self._state_file = paths.state / "remote" / f"tunnel-{key}.json"
        # Accounts of danlu (DANLU_HOME) share the directory of sockets.
        name = hashlib.sha256(f"{self._state_file}".encode()).hexdigest()[:32]
        self._socket = control_directory() / name

    def update(self, ports: Sequence[TunnelPort]) -> list[str]:
        """Forward exactly these ports; return sentences about those that cannot be."""
        with file_lock(self._state_file.with_suffix(".lock")):
            wanted = tuple(sorted({port for port in ports if _is_valid(port)}))
            state = self._read_state()
            running = self._control_process("check")
            if running and state is not None and state.ports == wanted:
                return []
            if running:
                self._stop_process()
            self._state_file.unlink(missing_ok=True)
            free = tuple(port for port in wanted if _is_free(port.port))
            problems = [
                f"port {port.port} of {self._host.name} is not forwarded: it is used here"
                for port in wanted
                if port not in free
            ]
            return problems + (self._start_process(free, wanted) if free else [])

    def _start_process(
        self, ports: Sequence[TunnelPort], wanted: tuple[TunnelPort, ...]
    ) -> list[str]:
        options = ["-M", "-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
        for port in ports:
            options += [
                "-L",
                f"{_LOOPBACK}:{port.port}:{_bracket_address(port.address)}:{port.port}",
            ]
        command = self._render_command(options)
        log = self._state_file.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        write_atomic(self._state_file, msgspec.json.encode(TunnelState(wanted)))
        deadline = time.monotonic() + _START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            if not any(_is_free(port.port) for port in ports):
                return []
            time.sleep(_POLL_SECONDS)
        reason = read_last_line(log.read_bytes(), otherwise="ssh did not start in time")
        return [f"ports of {self._host.name} are not forwarded: {reason}"]

    def _render_command(self, options: Sequence[str]) -> list[str]:
        words = self._host.command(options=options)
        # ssh uses the first value of an option.
        return [words[0], "-S", str(self._socket), "-o", "ControlPersist=no", *words[1:]]

    def _control_process(self, request: str) -> bool:
        """Send a request to the process (``-O`` of ssh); return whether it was answered."""
        command = self._render_command(["-O", request])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.returncode == 0

    def _stop_process(self) -> None:
        """End the process and wait until its ports are free."""
        self._control_process("exit")
        while self._control_process("check"):
            time.sleep(_POLL_SECONDS)

    def _read_state(self) -> TunnelState | None:
        try:
            return decode_json(self._state_file.read_bytes(), TunnelState)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None


def _is_valid(port: TunnelPort) -> bool:
    try:
        ip_address(port.address)
    except ValueError:
        return False
    return 0 < port.port < 65536


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As ssh sets it. Without it closed connections in TIME_WAIT would count (socket(7)).
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def _bracket_address(address: str) -> str:
    return f"[{address}]" if ":" in address else address
