"""``danlu login`` and ``danlu logout`` as users of Docker and skopeo type them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from danlu.oci.registry import RegistryCredentials, push_image
from tests.oci.layers import TreeLayerSource, image_of
from tests.oci.registries import client, debian_registry

from .conftest import Cli

USER, PASSWORD = "someone", "correct-horse-battery"
#: The password, encrypted with bcrypt as ``htpasswd -B`` does.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u"


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's configuration, in a home that has none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".docker/config.json"


def run(*command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def danlu(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "danlu", *arguments, stdin=stdin)


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("--password-stdin",), "x", "--password-stdin needs --username"),
        (("-u", "me"), "", "stdin is not a terminal"),
        (("-u", "me", "--password-stdin"), "\n", "the password is empty"),
        (("-u", "me", "--password-stdin"), "one\ntwo\n", "several lines"),
        (("-u", "m:e", "--password-stdin"), "x", "it has a colon"),
    ],
)
def test_wrong_usage_is_reported(
    home: Path, docker_config: Path, arguments: tuple[str, ...], stdin: str, message: str
) -> None:
    result = danlu("login", "localhost:1", *arguments, stdin=stdin)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert not docker_config.exists()


def test_logout_without_login_says_so(cli: Cli, docker_config: Path) -> None:
    result = cli("logout", "localhost:1")
    assert (result.code, result.err) == (0, "not logged in to localhost:1\n")
    assert not docker_config.exists()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry with an account, and an image in it."""
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, [{"etc/one": "1\n"}])

    async def push(host: str) -> None:
        async with client(host, login=RegistryCredentials(USER, PASSWORD)) as registry:
            await push_image(
                registry, "team/app", image, source, scratch=tmp_path, tags=["1"], kind="gzip"
            )

    with debian_registry(htpasswd=HTPASSWD) as host:
        anyio.run(push, host)
        yield host


real = pytest.mark.real
needs_registry = pytest.mark.needs("docker-registry", "skopeo", "docker")


@real
@needs_registry
def test_login_is_used_by_danlu_and_skopeo_and_known_to_docker(
    home: Path, registry: str, docker_config: Path
) -> None:
    name = f"{registry}/team/app:1"
    denied = danlu("image", "pull", name)
    assert denied.returncode == 3
    assert f"danlu login {registry}" in denied.stderr
    wrong = danlu("login", registry, "-u", USER, "--password-stdin", stdin="wrong-word")
    assert wrong.returncode == 3
    assert f"{registry} rejected the login of {USER}" in wrong.stderr
    assert not docker_config.exists()
    done = danlu("login", registry, "-u", USER, "--password-stdin", stdin=f"{PASSWORD}\n")
    assert done.returncode == 0, done.stderr
    assert "unencrypted" in done.stderr
    inspected = run("skopeo", "inspect", "--tls-verify=false", f"docker://{name}")
    assert inspected.returncode == 0, inspected.stderr
    assert danlu("image", "pull", name).returncode == 0
    assert danlu("image", "push", name, f"{registry}/team/copy:1").returncode == 0
    assert registry in json.loads(docker_config.read_text())["auths"]
    assert run("docker", "logout", registry).returncode == 0
    assert registry not in json.loads(docker_config.read_text())["auths"]
    assert danlu("image", "pull", name).returncode == 3


@real
@needs_registry
def test_logins_of_docker_and_skopeo_are_used_and_removed(
    home: Path, registry: str, docker_config: Path, tmp_path: Path
) -> None:
    words = (registry, "-u", USER, "--password-stdin")
    docker = run("docker", "login", *words, stdin=PASSWORD)
    assert docker.returncode == 0, docker.stderr
    assert danlu("image", "pull", f"{registry}/team/app:1").returncode == 0
    file = tmp_path / "runtime/containers/auth.json"
    skopeo = run(
        "skopeo", "login", "--tls-verify=false", f"--authfile={file}", *words, stdin=PASSWORD
    )
    assert skopeo.returncode == 0, skopeo.stderr
    result = danlu("logout", registry)
    assert f"logged out of {registry}" in result.stderr
    assert f"podman logout {registry}" in result.stderr
    assert json.loads(docker_config.read_text())["auths"] == {}
    assert danlu("image", "push", f"{registry}/team/app:1").returncode == 0


@real
@needs_registry
def test_password_is_read_from_the_terminal_without_echo(
    home: Path, registry: str, docker_config: Path
) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "danlu", "login", registry])
    shown = read_until(terminal, f"user name for {registry}: ")
    os.write(terminal, f"{USER}\n".encode())
    shown += read_until(terminal, f"password of {USER}: ")
    os.write(terminal, f"{PASSWORD}\n".encode())
    shown += read_until(terminal, "(stored in ")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert PASSWORD not in shown
    assert registry in json.loads(docker_config.read_text())["auths"]


def read_until(terminal: int, text: str) -> str:
    """Read what a program writes to its terminal until ``text`` has come."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 4096).decode()
    return shown
