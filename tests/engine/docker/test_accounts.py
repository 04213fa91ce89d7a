"""Files that programs make in Docker and Podman belong to the user of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.store import Store
from tests.conftest import program_in
from tests.engines import DockerDaemon, engine_variables, make_short_directory
from tests.jobs.containers.engine_rig import image, paths_of
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import run_inside

__all__ = ["home"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("busybox", "root"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def docker_address() -> Iterator[str]:
    """The address of a daemon that every account may use."""
    with make_short_directory() as directory:
        daemon = DockerDaemon(directory)
        daemon.start()
        directory.chmod(0o711)
        daemon.socket.chmod(0o666)
        yield daemon.address
        daemon.stop()


def list_owners(home: Path, user: str) -> tuple[str, set[tuple[int, int]]]:
    """Run a program that writes to a project; return what it printed, and who owns the files."""
    os.environ["DANLU_SSH_CONFIG"] = "off"
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", image(home))
    project = home / "digits"
    project.mkdir()
    danlu = program_in(home)
    danlu("up", "--image", "box:1", "-d", *(["--user", user] if user else []), cwd=project)
    script = "mkdir made && echo made >made/file && cat made/file"
    output = danlu("exec", "sh", "-c", script, cwd=project).stdout
    danlu("down", "--grace", "0", cwd=project)
    made = project / "made"
    return output, {(path.stat().st_uid, path.stat().st_gid) for path in (made, made / "file")}


@pytest.mark.needs("docker", "dockerd")
@pytest.mark.parametrize("uid", [1000, 4711])
@pytest.mark.parametrize("user", ["", "worker", "7:7"])
def test_files_belong_to_the_user_of_a_docker_daemon(
    docker_address: str, home: Path, uid: int, user: str
) -> None:
    def act() -> tuple[str, set[tuple[int, int]]]:
        os.environ.update(DANLU_CONTEXT="docker", DOCKER_HOST=docker_address)
        return list_owners(home, user)

    output, owners = run_inside(act, home=home, ordinary=True, uid=uid, enter=lambda paths: None)
    assert output == "made\n"
    assert owners == {(uid, uid)}


@pytest.mark.needs("podman")
@pytest.mark.parametrize("uid", [1000, 4711])
@pytest.mark.parametrize("user", ["", "worker", "7:7"])
def test_files_belong_to_the_user_of_podman_without_root(home: Path, uid: int, user: str) -> None:
    def act() -> tuple[str, set[tuple[int, int]]]:
        with engine_variables("podman") as variables:
            os.environ.update(DANLU_CONTEXT="podman", **variables)
            return list_owners(home, user)

    output, owners = run_inside(act, home=home, ordinary=True, uid=uid, enter=lambda paths: None)
    assert output == "made\n"
    assert owners == {(uid, uid)}
