"""``danlu up --ssh-port``: the real OpenSSH client connects over TCP."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.tcp_port import MAX_CONNECTIONS
from danlu.store import Store
from tests.conftest import Danlu, program_in
from tests.jobs.containers.engine_rig import image, paths_of
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.needs("ssh", "busybox", "root")]

OPTIONS = (
    *("-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"),
    *("-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
)


@dataclass(frozen=True)
class PortHost:
    """An environment with an SSH port, and who may log in."""

    danlu: Danlu
    project: Path
    environment: EnvironmentDirectory
    port: int
    key: Path

    @property
    def keys(self) -> SshKeys:
        return SshKeys(self.environment.directory / "ssh")

    def run(self, key: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a client that has only the host's key."""
        host_key = self.keys.known_hosts.read_text().split(maxsplit=1)[1]
        known_hosts = self.project / "known_hosts"
        known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}")
        command = ["ssh", *OPTIONS, "-o", f"UserKnownHostsFile={known_hosts}", "-i", str(key)]
        command += ["-p", str(self.port), "danlu@127.0.0.1", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortHost]:
    project, home = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("home")
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", image(home))
    danlu, port = program_in(home), free_port()
    for name in ("key", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", project / name])
    danlu(
        *("up", "--image=box:1", "-d", "-nboxed", f"--ssh-port={port}"),
        f"--authorized-keys={project / 'key.pub'}",
        cwd=project,
    )
    environment = EnvironmentDirectory(home / "environments" / "boxed")
    yield PortHost(danlu, project, environment, port, project / "key")
    danlu("down", "--grace", "0", "boxed", cwd=project)


def test_given_keys_and_the_own_key_log_in(host: PortHost) -> None:
    done = host.run(host.key, "echo out; echo problem >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "problem" in done.stderr
    assert host.run(host.keys.client_key, "true").returncode == 0


def test_other_keys_are_refused(host: PortHost) -> None:
    done = host.run(host.project / "other", "true")
    assert done.returncode == 255
    # No password is asked for: the server offers keys only.
    assert "Permission denied (publickey)" in done.stderr


def test_port_is_listed_and_on_the_loopback_interface(host: PortHost) -> None:
    listed = host.danlu("port", "boxed", cwd=host.project).stdout
    assert f"127.0.0.1:{host.port}" in listed
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # proc(5): local address in hexadecimal, remote address, and 0A for LISTEN.
    bound = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{host.port:04X}")]
    assert bound == [f"0100007F:{host.port:04X}"]


def test_idle_connections_are_limited(host: PortHost) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", host.port)))
        with socket.create_connection(("127.0.0.1", host.port)) as refused:
            refused.settimeout(20)
            assert refused.recv(1) == b""
    # Their processes end with them.
    wait_for(lambda: host.run(host.key, "true").returncode == 0)


def test_port_and_connections_end_with_the_environment(host: PortHost) -> None:
    host.danlu("stop", "--grace", "0", "boxed", cwd=host.project)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", host.port))
    with socket.create_server(("127.0.0.1", host.port)):
        taken = host.danlu("start", "boxed", cwd=host.project, check=False)
        assert (taken.returncode, "Address already in use" in taken.stderr) == (3, True)
    host.danlu("start", "boxed", cwd=host.project)
    assert host.run(host.key, "true").returncode == 0
