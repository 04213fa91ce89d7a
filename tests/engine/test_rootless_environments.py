"""Environments of an account that is not root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.commands.environments.manage import remove_environment, stop_environment
from danlu.commands.environments.spec import UpOptions
from danlu.commands.environments.up import start_environment
from danlu.commands.settings import load_settings
from danlu.engine.environment_control import ExecConnection
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.types import ExecRequest
from danlu.store import Store
from tests.jobs.containers.engine_rig import image, paths_of
from tests.sandbox.conftest import home
from tests.sandbox.forked import inside

__all__ = ["home"]

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]


def run_inside(environment: EnvironmentDirectory, script: str) -> str:
    """Return what a shell script of the environment prints."""
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as null:
        streams = null.fileno(), writing, writing
        connection = ExecConnection.open(environment, ExecRequest(("sh", "-c", script)), streams)
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
        output = run_inside(environment, "id -u; touch made; echo kept >/kept; cat /kept")
        owners = {path.stat().st_uid for path in work.iterdir()}
        stop_environment(environment)
        remove_environment(environment, settings)
        return output, owners

    output, owners = inside(act, home=home, ordinary=True, ids=False, enter=lambda paths: None)
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
        before = run_inside(environment, script)
        owners = {path.stat().st_uid for path in work.iterdir()}
        stop_environment(environment)
        after = run_inside(start(), "cat /kept; ls -ldn /own")
        stop_environment(environment)
        remove_environment(environment, settings)
        return before, after, owners, environment.directory.exists()

    before, after, owners, exists = inside(act, home=home, ordinary=True, enter=lambda paths: None)
    assert before.splitlines()[0] == "0"
    assert before.splitlines()[1].split()[2] == "7"
    assert owners == {home.stat().st_uid}
    assert after.splitlines()[0] == "kept"
    assert after.splitlines()[1].split()[2] == "7"
    assert not exists
