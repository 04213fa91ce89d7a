"""Environments of an account that is not root."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.exec_connection import ExecConnection
from danlu.engine.settings import load_settings
from danlu.engine.types import ExecRequest
from danlu.environments.manage import remove_environment, stop_environment
from danlu.environments.spec import UpOptions
from danlu.environments.up import start_environment
from danlu.environments.vscode import add_archives
from danlu.store import Store
from tests.fakes.vscode_archives import COMMIT, make_server
from tests.jobs.containers.engine_rig import image, paths_of
from tests.ports import free_port
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import run_inside

__all__ = ["home"]

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]


def run_script(environment: EnvironmentDirectory, script: str) -> str:
    """Run a shell script in the environment and return its output."""
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as null:
        streams = null.fileno(), writing, writing
        request = encode_exec(ExecRequest(("sh", "-c", script)))
        connection = ExecConnection.open(environment.directory, request, streams)
    os.close(writing)
    with open(reading) as output:
        text = output.read()
    while connection.read_exit() is None:
        pass
    connection.close()
    return text


def test_an_account_without_subordinate_ids_has_environments(home: Path) -> None:
    def act() -> tuple[str, set[int]]:
        settings = load_settings(paths_of(home))
        with Store.open(settings.paths.store) as store:
            store.tag("box:1", image(home))
        work = home / "work"
        work.mkdir()
        environment = start_environment(
            work,
            settings=settings,
            options=UpOptions(name="digits"),
            progress=lambda event: None,
            image="box:1",
        ).environment
        output = run_script(environment, "id -u; touch made; echo kept >/kept; cat /kept")
        owners = {path.stat().st_uid for path in work.iterdir()}
        stop_environment(environment)
        remove_environment(environment, settings)
        return output, owners

    output, owners = run_inside(act, home=home, ordinary=True, ids=False, enter=lambda paths: None)
    assert output == "0\nkept\n"
    assert owners == {home.stat().st_uid}


def test_files_of_a_rootless_environment_belong_to_the_user(home: Path) -> None:
    def act() -> tuple[str, str, set[int], bool]:
        settings = load_settings(paths_of(home))
        with Store.open(settings.paths.store) as store:
            store.tag("box:1", image(home))
        work = home / "work"
        work.mkdir()
        options = UpOptions(name="digits")

        def start() -> EnvironmentDirectory:
            return start_environment(
                work, settings=settings, options=options, progress=lambda event: None, image="box:1"
            ).environment

        environment = start()
        script = "id -u; touch made; echo kept >/kept; mkdir /own; chown 7 /own; ls -ldn /own"
        before = run_script(environment, script)
        owners = {path.stat().st_uid for path in work.iterdir()}
        stop_environment(environment)
        after = run_script(start(), "cat /kept; ls -ldn /own")
        stop_environment(environment)
        remove_environment(environment, settings)
        return before, after, owners, environment.directory.exists()

    before, after, owners, exists = run_inside(
        act, home=home, ordinary=True, enter=lambda paths: None
    )
    assert before.splitlines()[0] == "0"
    assert before.splitlines()[1].split()[2] == "7"
    assert owners == {home.stat().st_uid}
    assert after.splitlines()[0] == "kept"
    assert after.splitlines()[1].split()[2] == "7"
    assert not exists


def test_a_rootless_environment_has_the_servers_of_vs_code(home: Path) -> None:
    def act() -> str:
        settings = load_settings(paths_of(home))
        with Store.open(settings.paths.store) as store:
            store.tag("box:1", image(home))
        work = home / "work"
        work.mkdir()
        work.chmod(0o777)
        add_archives([make_server(work / "server.tar.gz")], settings.paths)
        environment = start_environment(
            work,
            settings=settings,
            options=UpOptions(name="digits", user="7:7", environment=("HOME=/workspace",)),
            progress=lambda event: None,
            image="box:1",
        ).environment
        place = f"/workspace/.vscode-server/cli/servers/Stable-{COMMIT}"
        output = run_script(
            environment,
            f"id -u; {place}/server/bin/code-server --version; touch {place}/log.txt && echo log;"
            f"touch {place}/server/made 2>/dev/null || echo readonly",
        )
        stop_environment(environment)
        remove_environment(environment, settings)
        return output

    output = run_inside(act, home=home, ordinary=True, enter=lambda paths: None)
    assert output == "7\n--version 1.105.1\nlog\nreadonly\n"


def test_an_account_has_private_networks(home: Path) -> None:
    def act() -> tuple[str, str]:
        settings = load_settings(paths_of(home))
        with Store.open(settings.paths.store) as store:
            store.tag("box:1", image(home))
        work = home / "work"
        work.mkdir()
        port = free_port()
        environment = start_environment(
            work,
            settings=settings,
            options=UpOptions(name="digits", ports=(f"{port}:8000",), network="private"),
            progress=lambda event: None,
            image="box:1",
        ).environment
        script = "echo page >/page; busybox httpd -p 8000 -h /; ls /sys/class/net"
        links = run_script(environment, script)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/page") as answer:
            page = answer.read().decode()
        stop_environment(environment)
        remove_environment(environment, settings)
        return links, page

    links, page = run_inside(act, home=home, ordinary=True, enter=lambda paths: None)
    assert set(links.split()) <= {"lo", "eth0"}
    assert page == "page\n"
