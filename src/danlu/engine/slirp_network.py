"""Connect a network namespace to the Internet with slirp4netns.

slirp4netns is described in :func:`danlu.sandbox.netns.find_slirp_command`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio

from danlu.errors import MachineError
from danlu.sandbox import netns
from danlu.sandbox.launcher.spawned_process import spawn_session

_TIMEOUT = 20.0
_OPTIONS = (
    *(f"--mtu={netns.MTU}", "--netns-type=path"),
    # Containers cannot reach the host's loopback, and slirp parses their packets sandboxed.
    *("--disable-host-loopback", "--enable-sandbox", "--enable-seccomp"),
)


class SlirpProcess:
    """A running slirp4netns."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        """Disconnect the namespace."""
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return


async def connect_namespace(
    namespace: Path, device: str, *options: str, cidr: str, log: Path
) -> SlirpProcess:
    """Add a network device to a namespace that leads to the Internet; return when it is there.

    libslirp takes the second address of ``cidr`` as gateway and the third as name server. Raises
    :class:`MachineError` with the reason if that is not possible.
    """
    try:
        program = netns.find_slirp_command()
    except MachineError as error:
        raise MachineError(f"{error.message}; {error.hint}") from error
    command = [*program, *_OPTIONS, f"--cidr={cidr}", *options, "--ready-fd=3"]
    command += [str(namespace), device]
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            pid = spawn_session(command, (None, None, output, write))
        finally:
            for descriptor in (output, write):
                # Also our end of the pipe: reading then ends if slirp4netns does.
                os.close(descriptor)
        process = SlirpProcess(pid)
        with anyio.move_on_after(_TIMEOUT):
            await anyio.wait_readable(read)
            # It writes a byte when the device is configured (slirp4netns(1), --ready-fd).
            if os.read(read, 1):
                return process
    finally:
        os.close(read)
    process.kill()
    lines = log.read_text(errors="replace").splitlines()
    raise MachineError(f"slirp4netns failed: {lines[-1] if lines else 'it printed no error'}")


def render_resolver(name_server: str) -> str:
    """Return ``/etc/resolv.conf`` with this machine's search domains and options."""
    try:
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    kept = (line for line in lines if line.split()[:1] in (["search"], ["options"], ["domain"]))
    return "\n".join([f"nameserver {name_server}", *kept, ""])
