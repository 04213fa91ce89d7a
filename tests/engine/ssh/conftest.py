"""Real OpenSSH clients of a server whose environment is this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.ssh_config import host_name, render_host
from danlu.store import Store
from tests.conftest import program_in
from tests.jobs.containers.engine_rig import image, paths_of

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class SshHost:
    """A host of a configuration file, and the programs that use it.

    ``server_words`` are in the command line of a server for it.
    """

    config: Path
    keys: SshKeys
    name: str
    server_words: str

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


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentDirectory]:
    """A running environment with this machine's programs, and the tests' files at their paths."""
    base = tmp_path_factory.getbasetemp()
    project = tmp_path_factory.mktemp("project")
    home = tmp_path_factory.mktemp("home")
    with Store.open(paths_of(home).store) as store:
        digest = image(home)
        store.tag("box:1", digest)
    programs = [f"-v{path}:{path}:ro" for path in ("/usr", "/lib", "/lib64") if Path(path).exists()]
    # Hides this machine's scp, which is looked for first: that of the host "machine" is OpenSSH's.
    (home / "scp").touch()
    programs.append(f"-v{home}/scp:/usr/bin/scp:ro")
    danlu = program_in(home)
    danlu("up", "--image=box:1", "-d", "-ndigits", f"-v{base}:{base}", *programs, cwd=project)
    yield EnvironmentDirectory(home / "environments" / "digits")
    danlu("down", "--grace", "0", "digits", cwd=project)


@pytest.fixture(
    params=[
        "machine",
        pytest.param("environment", marks=pytest.mark.needs("busybox", "root")),
    ]
)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> SshHost:
    """A host whose environment is this machine, or a real one."""
    config = tmp_path / "config"
    if request.param == "environment":
        directory = request.getfixturevalue("environment").directory
        keys = SshKeys(directory / "ssh")
        text = (directory.parents[1] / "config/ssh.d/digits.conf").read_text()
        server_words = f"DANLU_HOME={directory.parents[1]}"
    else:
        keys = SshKeys(tmp_path / "keys")
        keys.create_missing("digits")
        server_words = "tests.engine.ssh.host_server"
        program = f"env PYTHONPATH={shlex.quote(str(ROOT))} {sys.executable} -m {server_words}"
        text = render_host("digits", keys, program=["danlu"])
        text = text.replace("danlu ssh --stdio digits", f"{program} {keys.directory}")
    config.write_text(text)
    return SshHost(config, keys, host_name("digits"), server_words)


def process_commands() -> list[str]:
    """Return the command lines of all processes."""
    results = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                results.append(
                    Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace")
                )
            except OSError:
                continue
    return results
