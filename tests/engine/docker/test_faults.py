"""Faults of Docker's daemon and of danlu's clients: files survive, and one message says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.conftest import Danlu, program_in
from tests.engine.test_full_disk import SmallDisk
from tests.engine.test_repeated_commands import enter_shell
from tests.engines import DockerDaemon, engine_variables, make_short_directory
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("busybox", "docker", "dockerd", "root"),
    pytest.mark.timeout(180),
]

UP = ("up", "--image", "box:1", "-d", "-n", "digits")
_PROGRAM = str(Path(sys.executable).with_name("danlu"))


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerDaemon]:
    with make_short_directory() as directory:
        daemon = DockerDaemon(directory)
        monkeypatch.setenv("DANLU_CONTEXT", "docker")
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
        daemon.start()
        yield daemon
        daemon.stop()


@pytest.fixture
def danlu(daemon: DockerDaemon, box_home: Path) -> Iterator[Danlu]:
    run = program_in(box_home)
    yield run
    run("down", "--grace", "0", "digits", cwd=box_home, check=False)


def start_client(
    home: Path, project: Path, *arguments: str, stdout: int | None = None
) -> subprocess.Popen[str]:
    environ = {**os.environ, "DANLU_HOME": str(home)}
    return subprocess.Popen(
        [_PROGRAM, *arguments],
        cwd=project,
        env=environ,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_inside(danlu: Danlu, project: Path, script: str) -> str:
    return danlu("exec", "-n", "digits", "--", "sh", "-c", script, cwd=project).stdout


def read_row(danlu: Danlu, project: Path) -> dict[str, object]:
    (row,) = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_files_survive_a_restart_of_the_daemon(
    danlu: Danlu, daemon: DockerDaemon, project: Path, sent: signal.Signals
) -> None:
    danlu(*UP, cwd=project)
    run_inside(danlu, project, "echo kept >/kept")
    daemon.stop(sent)
    wait_for(lambda: read_row(danlu, project)["phase"] != "Running")
    row = read_row(danlu, project)
    assert row["phase"] == "Stopped"
    assert str(row["reason"]).startswith("container ended: docker: ")
    refused = danlu("exec", "-n", "digits", "true", cwd=project, check=False)
    assert refused.returncode == 125
    assert "danlu start digits" in refused.stderr
    daemon.start()
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat /kept") == "kept\n"
    danlu("stop", "digits", cwd=project)
    danlu("down", "digits", cwd=project)
    assert danlu("ps", "-q", cwd=project).stdout == ""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_runs_while_the_daemon_ends_is_one_error(
    danlu: Danlu, daemon: DockerDaemon, box_home: Path, project: Path, sent: signal.Signals
) -> None:
    danlu(*UP, cwd=project)
    script = "echo ready; exec sleep 1000"
    words = ("exec", "-n", "digits", "--", "sh", "-c", script)
    client = start_client(box_home, project, *words, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    daemon.stop(sent)
    _, errors = client.communicate()
    assert client.returncode in (125, 137), errors
    assert errors.count("error:") == 1, errors
    # The environment ends with the program.
    lost = "error: the connection to the program was lost: docker: "
    assert errors.startswith((lost, "error: the environment was stopped"))
    daemon.start()
    danlu("start", "digits", cwd=project)
    assert "sleep 1000" not in run_inside(danlu, project, "ps")


def test_without_its_daemon_an_environment_stays_and_one_message_says_so(
    danlu: Danlu, daemon: DockerDaemon, project: Path
) -> None:
    danlu(*UP, cwd=project)
    run_inside(danlu, project, "echo kept >/kept")
    danlu("stop", "digits", cwd=project)
    daemon.stop()
    assert read_row(danlu, project)["phase"] == "Stopped"
    assert "digits is not running" in danlu("stop", "digits", cwd=project, check=False).stderr
    for command in ("start", "down", "commit"):
        refused = danlu(command, "digits", cwd=project, check=False)
        assert refused.returncode == 4, refused.stderr
        assert refused.stderr.startswith("error: docker: ")
        assert refused.stderr.count("error:") == 1
        assert "hint: start Docker Desktop or the daemon" in refused.stderr
        assert "Traceback" not in refused.stderr
    daemon.start()
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "cat /kept") == "kept\n"


def test_a_killed_client_leaves_an_environment_that_up_completes(
    danlu: Danlu, box_home: Path, project: Path
) -> None:
    client = start_client(box_home, project, *UP)
    wait_for(lambda: (box_home / "environments/digits").exists())
    client.send_signal(signal.SIGKILL)
    client.communicate()
    danlu(*UP, cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


def test_clients_at_once_agree(danlu: Danlu, box_home: Path, project: Path) -> None:
    clients = [start_client(box_home, project, *UP) for _ in range(2)]
    clients += [start_client(box_home, project, "down", "digits")]
    errors = [client.communicate()[1] for client in clients]
    assert [client.returncode for client in clients[:2]] == [0, 0], errors
    # It finds an environment or none.
    assert clients[2].returncode in (0, 2), errors
    assert "Traceback" not in "".join(errors)
    danlu(*UP, cwd=project)
    clients = [start_client(box_home, project, "stop", "digits") for _ in range(2)]
    errors = [client.communicate()[1] for client in clients]
    assert [client.returncode for client in clients] == [0, 0], errors
    assert read_row(danlu, project)["phase"] == "Stopped"
    danlu("start", "digits", cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"


class _DenyingRegistry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        error = b'{"errors": [{"code": "DENIED", "message": "not your image"}]}'
        self.send_response(403)
        self.send_header("Content-Length", str(len(error)))
        self.end_headers()
        self.wfile.write(error)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_registry_that_denies_the_base_leaves_nothing(danlu: Danlu, project: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _DenyingRegistry) as server:
        Thread(target=server.serve_forever).start()
        base = f"localhost:{server.server_port}/base:1"
        (project / "build.envd").write_text(f'def build():\n    base(image="{base}")\n')
        refused = danlu("up", "-d", "-n", "digits", cwd=project, check=False)
        server.shutdown()
    assert refused.returncode == 3, refused.stderr
    assert refused.stderr.count("error:") == 1
    assert "not your image" in refused.stderr
    assert danlu("ps", "-q", cwd=project).stdout == ""


def test_a_context_of_docker_is_used(
    danlu: Danlu,
    daemon: DockerDaemon,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name, address in (("mine", daemon.address), ("far", "ssh://me@gpu-box")):
        words = ["docker", "context", "create", name, "--docker", f"host={address}"]
        subprocess.run(words, check=True, capture_output=True)
    for name, code, message in (
        ("far", 2, "docker runs containers at ssh://me@gpu-box"),
        ("nowhere", 3, "hint: `docker context ls` lists them"),
    ):
        with monkeypatch.context() as chosen:
            chosen.setenv("DOCKER_CONTEXT", name)
            refused = danlu(*UP, cwd=project, check=False)
        assert (refused.returncode, message in refused.stderr) == (code, True), refused.stderr
        assert danlu("ps", "-q", cwd=project).stdout == ""
    subprocess.run(["docker", "context", "use", "mine"], check=True, capture_output=True)
    danlu(*UP, cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"
    danlu("down", "digits", cwd=project)


@pytest.fixture(params=["docker", "podman"])
def full_disk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallDisk]:
    """The disk on which an engine keeps images; it is full."""
    engine = request.param
    with ExitStack() as resources:
        if engine == "docker":
            directory = resources.enter_context(make_short_directory())
            place = directory / "data"
        else:
            variables = resources.enter_context(engine_variables("podman"))
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            place = Path(variables["CONTAINERS_CONF"]).with_name("root")
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
        subprocess.run(mount, check=True)
        resources.callback(subprocess.run, ["umount", "--lazy", str(place)])
        if engine == "docker":
            daemon = DockerDaemon(directory)
            monkeypatch.setenv("DOCKER_HOST", daemon.address)
            resources.callback(daemon.stop)
            daemon.start()
        else:
            subprocess.run(["podman", "info"], check=True, stdout=subprocess.DEVNULL)
        monkeypatch.setenv("DANLU_CONTEXT", engine)
        disk = SmallDisk(place)
        disk.fill()
        yield disk


@pytest.mark.needs("podman")
def test_a_full_disk_of_the_engine_is_named(
    full_disk: SmallDisk, box_home: Path, project: Path
) -> None:
    danlu = program_in(box_home)
    refused = danlu(*UP, cwd=project, check=False)
    assert refused.returncode == 3, refused.stderr
    assert "no space left on device" in refused.stderr
    assert "hint: free space where" in refused.stderr
    assert danlu("ps", "-q", cwd=project).stdout == ""
    full_disk.free()
    danlu(*UP, cwd=project)
    assert run_inside(danlu, project, "echo runs") == "runs\n"
    danlu("down", "digits", cwd=project)


def test_what_cannot_start_as_before_is_prepared_again(
    danlu: Danlu, box_home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "build.envd").write_text('def build():\n    base(image="box:1")\n')
    danlu("up", "-d", cwd=project)
    wait_for(lambda: enter_shell(project, box_home) == (4, False))
    danlu("stop", "digits", cwd=project)
    assert enter_shell(project, box_home) == (4, False)

    danlu("stop", "digits", cwd=project)
    for name in subprocess.check_output(["docker", "ps", "-aq"], text=True).split():
        subprocess.run(["docker", "rm", name], check=True)
    for name in subprocess.check_output(["docker", "images", "-q"], text=True).split():
        subprocess.run(["docker", "rmi", name], check=True)
    assert enter_shell(project, box_home) == (4, True)

    danlu("stop", "digits", cwd=project)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    assert enter_shell(project, box_home) == (4, True)
    assert run_inside(danlu, project, "echo $HTTPS_PROXY") == "http://proxy.invalid:3128\n"
