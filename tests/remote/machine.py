"""Another machine: a real OpenSSH server with its own network and home directory.

Clients start the server for their connection (``sshd -i`` as the ``ProxyCommand``), so it needs no
port, and nothing listens on this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from danlu.store import Store
from danlu.util.paths import Paths
from tests.conftest import Danlu, program_in
from tests.jobs.containers.engine_rig import create_image
from tests.programs import SYSTEM_PATH

CONTEXT = "box"

_NETWORK = """
import fcntl, signal, socket, struct
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("ready", flush=True)
signal.pause()
"""


@dataclass(frozen=True)
class OtherMachine:
    """A machine that ``ssh box`` reaches, if ``programs`` is first on PATH.

    ``home`` is the home directory there; ``here`` is danlu's directory on this machine.
    """

    directory: Path
    network: subprocess.Popen[str]

    @property
    def home(self) -> Path:
        """The home directory on the other machine."""
        return self.directory / "home"

    @property
    def paths(self) -> Paths:
        """danlu's directories on the other machine."""
        return Paths.of({"HOME": str(self.home)})

    @property
    def here(self) -> Path:
        """danlu's directory on this machine, with the context."""
        return self.directory / "here"

    @property
    def environ(self) -> dict[str, str]:
        """Variables of this machine with which danlu works on the other one."""
        return {
            "PATH": f"{self.directory / 'bin'}:{SYSTEM_PATH}",
            "DANLU_SSH_CONFIG": str(self.directory / "ssh_config"),
        }

    def danlu(self) -> Danlu:
        """The real program on this machine; needs :attr:`environ`."""
        return program_in(self.here)

    def create_image(self) -> None:
        """Create the image ``box:1`` of busybox in the machine's store."""
        digest = create_image(self.paths)
        with Store.open(self.paths.store) as store:
            store.tag("box:1", digest)

    def kill_connections(self) -> None:
        """Kill the processes that serve connections, as if the network were lost."""
        network = os.readlink(f"/proc/{self.network.pid}/ns/net")
        for process in Path("/proc").glob("[0-9]*"):
            # A process may end while it is examined.
            with suppress(OSError):
                is_server = (process / "comm").read_text().startswith("sshd")
                if is_server and os.readlink(process / "ns/net") == network:
                    os.kill(int(process.name), signal.SIGKILL)

    def close(self) -> None:
        """End the machine."""
        self.kill_connections()
        self.network.kill()
        self.network.communicate()


def create_machine(directory: Path) -> OtherMachine:
    """Create a machine with the image ``box:1`` of busybox in its store."""
    network = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", _NETWORK], stdout=subprocess.PIPE, text=True
    )
    assert network.stdout is not None
    assert network.stdout.readline() == "ready\n"
    machine = OtherMachine(directory, network)
    for name in ("user", "host"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(command, check=True)
    (directory / "sshd_config").write_text(_render_server(machine))
    (directory / "client_config").write_text(_render_client(machine))
    (directory / "bin").mkdir()
    wrapper = directory / "bin/ssh"
    config = shlex.quote(str(directory / "client_config"))
    wrapper.write_text(
        "#!/bin/sh\n"
        # Clients of environments bring their own configuration.
        'case "$1" in -F) exec /usr/bin/ssh "$@" ;; esac\n'
        f'exec /usr/bin/ssh -F {config} "$@"\n'
    )
    wrapper.chmod(0o755)
    # sshd separates its privileges in this directory, which an init script makes elsewhere.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    machine.create_image()
    return machine


def _render_server(machine: OtherMachine) -> str:
    directory = machine.directory
    return (
        f"HostKey {directory / 'host'}\n"
        f"AuthorizedKeysFile {directory / 'user.pub'}\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv HOME={machine.home} DANLU_UPKEEP=off DANLU_SSH_CONFIG=off PATH={SYSTEM_PATH}\n"
    )


def _render_client(machine: OtherMachine) -> str:
    directory = machine.directory
    server = shutil.which("sshd", path=SYSTEM_PATH)
    return (
        "Host box\n"
        f"    ProxyCommand nsenter --net=/proc/{machine.network.pid}/ns/net "
        f"{server} -i -f {directory / 'sshd_config'}\n"
        f"    User root\n    IdentityFile {directory / 'user'}\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {directory / 'known_hosts'}\n"
        "    StrictHostKeyChecking accept-new\n"
    )
