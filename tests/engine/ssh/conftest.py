"""Real OpenSSH clients of a server whose environment is this machine."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.ssh_config import host_name, render_host

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class SshHost:
    """A host of a configuration file, and the programs that use it."""

    config: Path
    keys: SshKeys
    name: str

    def command(self, *arguments: str, program: str = "ssh") -> list[str]:
        """Return a command line of a client."""
        return [program, "-F", str(self.config), *arguments]

    def run(
        self, *arguments: str, input: bytes = b"", check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``ssh OPTIONS… HOST COMMAND``; the host is given by the caller."""
        completed = subprocess.run(
            self.command(*arguments), input=input, capture_output=True, check=False
        )
        if check:
            assert completed.returncode == 0, completed.stderr.decode()
        return completed

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``ssh`` with pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture
def host(tmp_path: Path) -> SshHost:
    """The host, with keys of its own."""
    keys = SshKeys(tmp_path / "keys")
    keys.create_missing("digits")
    text = render_host("digits", keys, program=["danlu"])
    module = (
        f"env PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -m tests.engine.ssh.host_server"
    )
    config = tmp_path / "config"
    config.write_text(
        text.replace("danlu ssh --stdio digits", f"{module} {shlex.quote(str(keys.directory))}")
    )
    config.chmod(0o600)
    return SshHost(config, keys, host_name("digits"))


def free_port() -> int:
    """Return a port that nothing uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def process_commands() -> list[str]:
    """Return the command lines of all processes."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.append(Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return found
