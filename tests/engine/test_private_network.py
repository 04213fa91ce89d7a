"""Environments whose network is private: only forwarded ports are reached, and the Internet."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from tests.conftest import Danlu
from tests.ports import free_port

pytestmark = [
    pytest.mark.real,
    pytest.mark.needs("busybox", "slirp4netns", "tun"),
    pytest.mark.timeout(120),
]


@pytest.fixture
def project(project: Path) -> Path:
    (project / "page").write_text("inside\n")
    return project


def start_server(danlu: Danlu, project: Path, name: str, *options: str) -> None:
    """Start an environment that serves the project on port 8000 of all its addresses."""
    up = ("up", "--image", "box:1", "-d", "-n", name, "--network", "private", *options)
    danlu(*up, cwd=project)
    serve = ("busybox", "httpd", "-p", "0.0.0.0:8000", "-h", "/workspace")
    danlu("exec", "-n", name, *serve, cwd=project)


def read_page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/page") as answer:
        text: str = answer.read().decode()
    return text


def test_two_environments_listen_on_the_same_port(danlu: Danlu, project: Path) -> None:
    first, second = free_port(), free_port()
    start_server(danlu, project, "first", "-p", f"{first}:8000")
    start_server(danlu, project, "second", "-p", f"{second}:8000")
    assert read_page(first) == read_page(second) == "inside\n"
    with pytest.raises(urllib.error.URLError):
        read_page(8000)


def test_servers_of_this_machine_are_out_of_reach(danlu: Danlu, project: Path) -> None:
    port = free_port()
    start_server(danlu, project, "digits", "-p", f"{port}:8000")
    for address in ("127.0.0.1", "10.214.0.2"):
        command = ("busybox", "wget", "-T", "5", "-q", "-O", "-", f"http://{address}:{port}/page")
        assert danlu("exec", "-n", "digits", *command, cwd=project, check=False).returncode != 0


def test_ssh_forwards_ports_of_the_environment(danlu: Danlu, box_home: Path, project: Path) -> None:
    start_server(danlu, project, "digits")
    config = box_home / "config/ssh.d/digits.conf"
    command = ["ssh", "-F", str(config), "-W", "127.0.0.1:8000", "digits.danlu"]
    request = b"GET /page HTTP/1.0\r\n\r\n"
    result = subprocess.run(command, input=request, capture_output=True, check=False)
    assert result.stdout.endswith(b"inside\n"), result.stderr


def test_a_proxy_of_this_machine_is_reached(
    danlu: Danlu, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    start_server(danlu, project, "proxy", "-p", f"{port}:8000")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    danlu("up", "--image", "box:1", "-d", "-n", "digits", "--network", "private", cwd=project)
    # Without the variable, because the server is not a proxy.
    script = f"unset http_proxy; busybox wget -q -O - http://127.0.0.1:{port}/page"
    result = danlu("exec", "-n", "digits", "sh", "-c", script, cwd=project)
    assert result.stdout == "inside\n"


def test_network_is_restored_after_a_restart(danlu: Danlu, box_home: Path, project: Path) -> None:
    port = free_port()
    start_server(danlu, project, "digits", "-p", f"{port}:8000")
    danlu("stop", "digits", cwd=project)
    danlu("start", "digits", cwd=project)
    serve = ("busybox", "httpd", "-p", "8000", "-h", "/workspace")
    danlu("exec", "-n", "digits", *serve, cwd=project)
    assert read_page(port) == "inside\n"
    assert EnvironmentDirectory(box_home / "environments/digits").read_spec().network == "private"


def test_other_engines_have_no_private_network(danlu: Danlu, project: Path) -> None:
    up = ("up", "--image", "box:1", "-d", "--on", "docker", "--network", "private")
    refused = danlu(*up, cwd=project, check=False)
    assert refused.returncode == 2
    assert "the docker engine cannot have a private network" in refused.stderr
