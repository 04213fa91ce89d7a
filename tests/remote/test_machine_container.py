"""A client on macOS with the machine in a container of Docker, and that container's settings.

The client's Python lacks Linux-only functions and /proc. Docker is real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.engine.contexts import Context, create_context
from danlu.errors import UsageError
from danlu.util.paths import Paths
from tests.conftest import program_in
from tests.engines import Engine, docker_daemon
from tests.ports import free_port
from tests.programs import SYSTEM_PATH

_FAKE_SYSTEM = Path(__file__).with_name("macos")
_WITHOUT_PROC = 'mount -t tmpfs tmpfs /proc; exec "$@"'
_MACHINE_FILE = """
def build():
    base(os="debian12")
    install.apt_packages(["busybox", "nftables", "openssh-server", "python3", "runc"])
"""


@dataclass(frozen=True)
class MacClient:
    """danlu on a machine that looks like macOS, with the home directory ``home``."""

    home: Path
    docker_host: str = ""

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run danlu."""
        return self.run_program(str(Path(sys.executable).with_name("danlu")), *arguments, cwd=cwd)

    def run_program(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program without /proc, if that can be hidden."""
        hide = ["unshare", "--mount", "sh", "-c", _WITHOUT_PROC, "sh"]
        words = [*(hide if os.geteuid() == 0 else ()), *command]
        return subprocess.run(
            words, cwd=cwd, env=self._environ(), capture_output=True, text=True, check=False
        )

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.home),
            "PYTHONPATH": str(_FAKE_SYSTEM),
            "DOCKER_HOST": self.docker_host,
            "DANLU_UPKEEP": "off",
            "XDG_RUNTIME_DIR": "",
        }


def test_commands_that_need_linux_name_the_contexts(tmp_path: Path) -> None:
    client = MacClient(tmp_path)
    result = client.run("up", cwd=tmp_path)
    assert result.returncode == 4
    assert "needs Linux" in result.stderr
    assert "danlu context use docker" in result.stderr
    for command in (("context", "ls"), ("init", "--help"), ("version",), ("config",)):
        assert client.run(*command, cwd=tmp_path).returncode == 0


def test_settings_of_the_container_are_checked(tmp_path: Path) -> None:
    paths = Paths.of({"DANLU_HOME": str(tmp_path)})
    for engine in ("docker-container://", "docker-container://-v", "docker-container://a/b"):
        with pytest.raises(UsageError, match="invalid address"):
            create_context("box", Context(engine), paths)
    with pytest.raises(UsageError, match="--image and --mount need"):
        create_context("box", Context("ssh://box", image="debian"), paths)
    for mount in ("home", "/a,readonly", '/a"'):
        with pytest.raises(UsageError, match="cannot mount"):
            create_context("box", Context("docker-container://box", mounts=(mount,)), paths)
    create_context("box", Context("docker-container://box", mounts=("/a b",)), paths)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, real_home: Path) -> Iterator[Engine]:
    """Docker with the image ``machine:1``, which has the programs that danlu needs."""
    project = tmp_path_factory.mktemp("machine")
    (project / "build.envd").write_text(_MACHINE_FILE)
    danlu = program_in(real_home)
    danlu("build", "-o", f"type=docker,dest={project}/machine.tar", "-t", "machine:1", cwd=project)
    with ExitStack() as stack:
        engine = stack.enter_context(docker_daemon())
        engine.load(project / "machine.tar")
        yield engine
        engine("rm", "--force", "danlu")


@pytest.fixture(scope="module")
def client(docker: Engine, tmp_path_factory: pytest.TempPathFactory) -> MacClient:
    """A client whose current context is a container."""
    client = MacClient(tmp_path_factory.mktemp("users"), docker.command[2])
    address = ("--engine", "docker-container://danlu", "--image", "machine:1")
    assert client.run("context", "create", "machine", *address, cwd=client.home).returncode == 0
    assert client.run("context", "use", "machine", cwd=client.home).returncode == 0
    return client


@pytest.fixture(scope="module")
def project(docker: Engine, client: MacClient, real_home: Path) -> Path:
    """A project below the home directory, whose base is in the container's store."""
    project = client.home / "digits"
    project.mkdir()
    program_in(real_home)("image", "save", "machine:1", "-o", "machine.oci.tar", cwd=project)
    result = client.run("image", "load", "machine.oci.tar", cwd=project)
    assert "creating container danlu from machine:1" in result.stderr
    assert result.returncode == 0, result.stderr
    (project / "build.envd").write_text(
        'def build():\n    base(image="machine:1")\n    run(commands=["echo built >/opt/made"])\n'
    )
    return project


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("root", "docker", "dockerd", "ssh")
class TestContainer:
    """One container, with the commands in the order in which a user needs them."""

    def test_builds_and_runs_the_project_in_place(self, client: MacClient, project: Path) -> None:
        result = client.run("run", "sh", "-c", "cat /opt/made; echo x >made", cwd=project)
        assert (result.returncode, result.stdout) == (0, "built\n"), result.stderr
        assert (project / "made").read_text() == "x\n"
        assert (project / "danlu.lock").exists()

    def test_ports_and_ssh_reach_an_environment(self, client: MacClient, project: Path) -> None:
        port = free_port()
        result = client.run("up", "-d", "-p", str(port), cwd=project)
        assert "ssh digits.machine.danlu" in result.stderr
        serve = ("busybox", "httpd", "-p", f"127.0.0.1:{port}", "-h", "/workspace")
        assert client.run("exec", *serve, cwd=project).returncode == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/made") as answer:
            assert answer.read() == b"x\n"
        config = str(client.home / ".ssh/config")
        command = ("ssh", "-F", config, "digits.machine.danlu", "uname -s; exit 3")
        result = client.run_program(*command, cwd=project)
        assert (result.returncode, result.stdout) == (3, "Linux\n"), result.stderr

    def test_environments_outlive_the_container(
        self, docker: Engine, client: MacClient, project: Path
    ) -> None:
        assert client.run("exec", "touch", "/opt/kept", cwd=project).returncode == 0
        docker("rm", "--force", "danlu")
        assert "Stopped" in client.run("ps", cwd=project).stdout
        assert client.run("start", cwd=project).returncode == 0
        assert client.run("exec", "ls", "/opt/kept", cwd=project).stdout == "/opt/kept\n"
        assert client.run("down", "--grace", "0", "digits", cwd=project).returncode == 0

    def test_another_container_of_the_name_is_kept(self, docker: Engine, client: MacClient) -> None:
        docker("create", "--name", "other", "machine:1", "true")
        address = ("--engine", "docker-container://other", "--image", "machine:1")
        assert client.run("context", "create", "other", *address, cwd=client.home).returncode == 0
        assert client.run("context", "use", "other", cwd=client.home).returncode == 0
        result = client.run("ps", cwd=client.home)
        assert result.returncode == 2
        assert "container other has other settings than the context" in result.stderr
        assert docker("inspect", "--format", "{{.Config.Cmd}}", "other") == "[true]\n"

    def test_nothing_remains_of_a_failed_creation(self, docker: Engine, client: MacClient) -> None:
        address = ("--engine", "docker-container://empty", "--image", "danlu/does-not-exist:1")
        assert client.run("context", "create", "empty", *address, cwd=client.home).returncode == 0
        assert client.run("context", "use", "empty", cwd=client.home).returncode == 0
        result = client.run("ps", cwd=client.home)
        assert result.returncode == 3
        assert "docker create failed" in result.stderr
        assert docker("ps", "--all", "--quiet", "--filter", "name=empty") == ""
