"""Doctor's probes of servers and programs, and the packages it installs."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.diagnosis.doctor import DoctorCheck
from danlu.diagnosis.doctor_fix import install_packages, plan_installation
from danlu.diagnosis.doctor_probes import (
    list_probes,
    probe_cluster,
    probe_engine,
    probe_program,
    probe_server,
    run_probes,
)
from danlu.engine.docker.engine import DOCKER, PODMAN
from danlu.errors import MachineError, OutsideError
from danlu.util.config import Configuration, KubernetesConfig, MirrorConfig, RegistryConfig


@pytest.fixture
def server() -> Iterator[str]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead_server() -> str:
    """An address where nothing listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def write_program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_servers_that_answer_and_those_that_do_not(server: str, dead_server: str) -> None:
    assert probe_server(f"http://me:hunter2@{server}/x", {})[:2] == (
        True,
        f"http://***@{server}/x answers",
    )
    ok, detail, fix = probe_server(f"https://{dead_server}", {})
    assert not ok
    assert "Connection refused" in detail
    assert fix


def test_proxy_is_asked_instead_of_the_server(server: str, dead_server: str) -> None:
    environ = {"https_proxy": f"http://u:hunter2@{server}", "NO_PROXY": "inside.example.org"}
    ok, detail, _ = probe_server("https://host.invalid/simple", environ)
    assert ok
    assert "hunter2" not in detail
    assert not probe_server(f"https://{dead_server}", {**environ, "NO_PROXY": "127.0.0.1"})[0]


@pytest.mark.parametrize("url", ["http://[::1", "http://x:99999", "http://\x00", "", "https://"])
def test_invalid_addresses_are_a_result(url: str) -> None:
    results = run_probes({"it": lambda: probe_server(url, {})})
    assert not results["it"][0]


def test_probe_that_never_ends_does_not_keep_others_waiting() -> None:
    never = threading.Event()

    def wait() -> tuple[bool, str, str]:
        never.wait()
        return True, "", ""

    results = run_probes({"slow": wait, "fast": lambda: (True, "here", "")}, timeout=1.0)
    never.set()
    assert results["fast"] == (True, "here", "")
    assert results["slow"][:2] == (False, "no answer within 1 s")


def test_error_in_a_probe_is_its_result() -> None:
    def fail() -> tuple[bool, str, str]:
        raise MachineError("lacks it", hint="get it")

    assert run_probes({"x": fail})["x"] == (False, "lacks it", "get it")


def test_everything_that_is_configured_is_probed(server: str, tmp_path: Path) -> None:
    config = Configuration(
        mirrors={"npm": MirrorConfig(urls=(f"http://{server}", tmp_path.as_uri()))},
        registries={server: RegistryConfig(insecure=True)},
        kubernetes=KubernetesConfig(registry="registry.invalid/team"),
    )
    names = set(list_probes(config, {"PIP_INDEX_URL": f"http://{server}/simple"}))
    assert {"mirror npm", "mirror npm'", f"registry {server}", "Python index"} <= names
    assert "registry registry.invalid" in names
    assert "registry" not in names
    assert {"Docker", "Podman", "Kubernetes", "cgroups", "emulation", "ssh client"} <= names
    assert "registry" in list_probes(Configuration(), {})


def test_engine_without_a_daemon_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_program(tmp_path, "docker", "echo 'cannot connect to the daemon' >&2; exit 1")
    write_program(tmp_path, "podman", "echo 4.9.0")
    ok, detail, fix = probe_engine(DOCKER.program, {})
    assert (ok, detail) == (False, "docker: cannot connect to the daemon")
    assert "systemctl start docker" in fix
    remote = probe_engine(DOCKER.program, {"DOCKER_HOST": "tcp://u:hunter2@host"})[2]
    assert "DOCKER_HOST" in remote
    assert "hunter2" not in remote
    assert probe_engine(PODMAN.program, {}) == (True, "4.9.0", "")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert probe_program("ssh", ["-V"], "openssh-client") == (
        False,
        "ssh is not installed",
        "sudo apt-get install openssh-client",
    )


def test_cluster_of_the_kubeconfig_is_probed(server: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        f"clusters: [{{name: k, cluster: {{server: 'https://{server}'}}}}]\n"
        "users: [{name: u, user: {token: hunter2}}]\n"
    )
    environ = {"KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path)}
    assert probe_cluster(Configuration(), environ) == (True, f"https://{server} answers", "")
    ok, _, fix = probe_cluster(Configuration(), {"HOME": str(tmp_path)})
    assert not ok
    assert fix


FAILED = (
    DoctorCheck("newuidmap", False, "x", "sudo apt-get install uidmap"),
    DoctorCheck("runtime", False, "x", "install one: `sudo apt-get install runc` (Fedora: `crun`)"),
    DoctorCheck("runtime again", False, "x", "sudo apt-get install runc"),
    DoctorCheck("kernel", False, "old", "use Linux 5.12 or newer"),
    DoctorCheck("fine", True, "x", ""),
    DoctorCheck("Podman", False, "x", "sudo apt-get install podman", optional=True),
)


def test_packages_of_failed_checks_are_installed_with_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    write_program(tmp_path, "apt-get", f'echo "$@ $DEBIAN_FRONTEND" > {tmp_path}/called')
    write_program(tmp_path, "sudo", 'exec "$@"')
    plan = plan_installation(FAILED)
    assert [check.name for check in plan.remaining] == ["kernel"]
    assert plan.command[-2:] == ("uidmap", "runc")
    with (tmp_path / "output").open("wb") as output:
        install_packages(plan.command, output.fileno())
    assert (tmp_path / "called").read_text() == (
        "install --yes --no-install-recommends uidmap runc noninteractive\n"
    )
    assert plan_installation(FAILED, everything=True).command[-1] == "podman"
    assert plan_installation(FAILED[3:5]).command == ()
    if os.geteuid() == 0:
        assert "sudo" not in " ".join(plan.command)


def test_failure_of_apt_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path, "apt-get", "exit 100")
    with pytest.raises(OutsideError, match="exit code 100"):
        install_packages((str(tmp_path / "apt-get"), "install"), 2)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(MachineError, match="uidmap"):
        plan_installation(FAILED)
